// Tests ClientTurns: the order in which clients take turns at one level, and the work that it predicts before a
// newcomer.

#include "engine/serving/admission/client_turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/serving/admission/fake_model.h"

namespace voxserve::client_turns_test {
namespace {

using testing::ElementsAre;

// Owns the tasks that the turns order. Tickets tell the tasks apart.
class ClientTurnsTest : public testing::Test {
 protected:
  struct TaskOptions {
    double cost = 1;
    double share = 1;
    int urgency = 0;  // smaller is more urgent; among equal ones the oldest is first
    std::shared_ptr<ServedModel> model;
  };

  WaitingTask* Add(const std::string& client, uint64_t ticket, const TaskOptions& options) {
    QueuedTask queued = FakeTask(ticket, options.model ? options.model : model_, &unused_);
    queued.task.client = client;
    queued.task.client_share = options.share;
    queued.task.deadline = absl::UnixEpoch() + absl::Seconds(1);
    auto task = std::make_unique<WaitingTask>(queued, latency_, absl::UnixEpoch());
    task->queued = std::move(queued);
    task->cost = options.cost;
    task->urgency = absl::UnixEpoch() + absl::Milliseconds(options.urgency);
    task->arrival = next_arrival_++;
    turns_.Add(task.get());
    return (tasks_[ticket] = std::move(task)).get();
  }
  WaitingTask* Add(const std::string& client, uint64_t ticket) { return Add(client, ticket, TaskOptions()); }
  void AddAll(const std::string& client, uint64_t first, uint64_t last) {
    for (uint64_t ticket = first; ticket <= last; ++ticket) Add(client, ticket);
  }

  // Returns the ticket, or 0 if nothing waits.
  uint64_t RunNext() {
    WaitingTask* first = turns_.First();
    if (first == nullptr) return 0;
    const uint64_t ticket = first->queued.ticket;
    turns_.Run(first);
    tasks_.erase(ticket);
    return ticket;
  }
  std::vector<uint64_t> RunSome(int count) {
    std::vector<uint64_t> ran;
    for (int i = 0; i < count; ++i) ran.push_back(RunNext());
    return ran;
  }
  int64_t RequestsAfter(const std::string& client) const {
    int64_t requests = 0;
    for (const auto& [model, load] : turns_.ExpectedExtraLoad(client)) requests -= load.requests;
    return requests;
  }

  std::shared_ptr<ServedModel> model_ = FakeModel();
  const LatencyModel latency_{{1}};
  Answer unused_;
  std::map<uint64_t, std::unique_ptr<WaitingTask>> tasks_;
  uint64_t next_arrival_ = 0;
  ClientTurns turns_;
};

TEST_F(ClientTurnsTest, OneClientRunsByUrgency) {
  Add("a", 1, {.urgency = 3});
  Add("a", 2, {.cost = 50, .urgency = 1});
  Add("a", 3, {.urgency = 2});
  Add("a", 4, {.urgency = 1});
  EXPECT_EQ(RequestsAfter("a"), 0);
  EXPECT_THAT(RunSome(5), ElementsAre(2, 4, 3, 1, 0));
  EXPECT_TRUE(turns_.empty());
}

TEST_F(ClientTurnsTest, ClientsAlternateWhateverTheirUrgency) {
  for (uint64_t ticket = 1; ticket <= 4; ++ticket) Add("a", ticket, {.urgency = 1});
  for (uint64_t ticket = 11; ticket <= 14; ++ticket) Add("b", ticket, {.urgency = 9});
  EXPECT_THAT(RunSome(8), ElementsAre(1, 11, 2, 12, 3, 13, 4, 14));
}

TEST_F(ClientTurnsTest, ANewcomersTurnComesAfterOneOfTheOther) {
  AddAll("a", 1, 60);
  RunSome(40);
  AddAll("b", 101, 102);
  EXPECT_THAT(RunSome(5), ElementsAre(41, 101, 42, 102, 43));
}

TEST_F(ClientTurnsTest, TheMoreUrgentOfTwoThatAreDueComesFirst) {
  Add("a", 1, {.urgency = 2});
  Add("b", 2, {.urgency = 1});
  Add("c", 3, {.urgency = 3});
  EXPECT_THAT(RunSome(3), ElementsAre(2, 1, 3));
}

// A request of "a" costs ten times as much as one of "b", so it would be unfair to run one of each in turn.
TEST_F(ClientTurnsTest, TurnsAreWeighedByCost) {
  for (uint64_t ticket = 1; ticket <= 5; ++ticket) Add("a", ticket, {.cost = 10});
  AddAll("b", 11, 60);
  EXPECT_EQ(RunNext(), 1u);
  for (int round = 2; round <= 5; ++round) {
    int num_small = 0;
    while (RunNext() >= 11) ++num_small;
    EXPECT_EQ(num_small, 10) << round;
  }
}

TEST_F(ClientTurnsTest, OneRequestAtATimeRunsByUrgencyOnce) {
  Add("a", 1, {.urgency = 1});
  for (uint64_t i = 0; i < 8; ++i) Add(absl::StrCat("b", i), 10 + i, {.urgency = 5});
  EXPECT_EQ(RunNext(), 1u);
  Add("a", 2, {.urgency = 1});
  EXPECT_EQ(RunNext(), 2u) << "it may be ahead by one request";
  Add("a", 3, {.urgency = 1});
  for (int i = 0; i < 7; ++i) EXPECT_GE(RunNext(), 10u);
  Add("c", 4, {.urgency = 9});
  Add("a", 5, {.urgency = 1});
  EXPECT_EQ(RunSome(3).back(), 4u);
}

TEST_F(ClientTurnsTest, WhoWasAwayHasSavedNothingUp) {
  AddAll("a", 1, 100);
  Add("b", 201);
  RunSome(50);  // b has no task for a long time
  AddAll("b", 202, 240);
  AddAll("c", 301, 340);
  std::map<char, int> turns;
  for (const uint64_t ticket : RunSome(30)) ++turns[ticket > 300 ? 'c' : ticket > 200 ? 'b' : 'a'];
  for (const auto& [client, count] : turns) EXPECT_NEAR(count, 10, 1) << client;
}

// A client that leaves after each turn and comes back must not make another client's account grow.
TEST_F(ClientTurnsTest, VisitorsLeaveNoDebtBehind) {
  AddAll("a", 1, 1000);
  for (uint64_t visit = 0; visit < 300; ++visit) {
    Add("b", 2000 + visit, {.urgency = -1});
    RunSome(3);
  }
  AddAll("c", 3001, 3040);
  int turns_of_a = 0;
  for (const uint64_t ticket : RunSome(30)) turns_of_a += ticket <= 1000;
  EXPECT_NEAR(turns_of_a, 15, 2);
}

TEST_F(ClientTurnsTest, TasksThatDoNotRunCostNoTurn) {
  AddAll("a", 1, 4);
  AddAll("b", 11, 14);
  for (const uint64_t ticket : {11, 12}) turns_.Remove(tasks_[ticket].get());
  EXPECT_THAT(RunSome(6), ElementsAre(1, 13, 2, 14, 3, 4));
}

TEST_F(ClientTurnsTest, VersionsOfOneClientShareItsTurns) {
  const auto other = FakeModel("n");
  for (uint64_t ticket = 1; ticket <= 4; ++ticket) Add("a", ticket, {.model = ticket % 2 == 0 ? other : model_});
  AddAll("b", 11, 12);
  EXPECT_THAT(RunSome(6), ElementsAre(1, 11, 2, 12, 3, 4));
}

TEST_F(ClientTurnsTest, ANewcomerFindsOthersWorkAsFarAsItsTurnComesFirst) {
  AddAll("a", 1, 64);
  RunSome(8);
  EXPECT_EQ(RequestsAfter("a"), 0) << "all of its own";
  EXPECT_EQ(RequestsAfter("b"), 55) << "one is before it";
  AddAll("b", 101, 103);
  EXPECT_EQ(RequestsAfter("b"), 52);
  EXPECT_EQ(RequestsAfter("a"), 0);
  EXPECT_EQ(RequestsAfter("c"), 55 + 2);
}

TEST_F(ClientTurnsTest, WorkAfterIsCountedInPointsByVersion) {
  const auto other = FakeModel("n");
  for (uint64_t ticket = 1; ticket <= 10; ++ticket) Add("a", ticket, {.model = ticket % 2 == 0 ? other : model_});
  const auto beyond = turns_.ExpectedExtraLoad("b");
  ASSERT_EQ(beyond.size(), 2u);
  EXPECT_EQ(beyond.at(model_.get()).requests, -4);
  EXPECT_EQ(beyond.at(model_.get()).points, -4);
  EXPECT_EQ(beyond.at(other.get()).requests, -4);
}

// The predicted work before a newcomer must be an upper bound: no more tasks may run before the newcomer.
TEST_F(ClientTurnsTest, ThePredictionIsAnUpperBoundOfWhatComesFirst) {
  for (const uint64_t seed : {1, 2, 3, 4, 5, 6, 7, 8}) {
    std::mt19937_64 random(seed);
    uint64_t ticket = 1;
    for (int client = 0; client < 5; ++client) {
      for (uint64_t i = random() % 12; i > 0; --i) Add(std::to_string(client), ticket++);
    }
    RunSome(static_cast<int>(random() % 10));
    const int64_t waiting = static_cast<int64_t>(tasks_.size());
    const int64_t after = RequestsAfter("new");
    const uint64_t newcomer = ticket++;
    Add("new", newcomer, {.urgency = 1});
    int64_t before = 0;
    while (RunNext() != newcomer) ++before;
    EXPECT_LE(before, waiting - after) << seed;
    RunSome(100);
    ASSERT_TRUE(turns_.empty());
  }
}

TEST_F(ClientTurnsTest, ACursorWalksInTheOrderOfTheTurns) {
  AddAll("a", 1, 4);
  AddAll("b", 11, 12);
  Add("c", 21, {.model = FakeModel("n")});
  ClientTurns::Cursor cursor(turns_, model_.get());
  std::vector<uint64_t> walked;
  while (const WaitingTask* task = cursor.Next()) {
    walked.push_back(task->queued.ticket);
    cursor.Take();
  }
  EXPECT_THAT(walked, ElementsAre(1, 11, 2, 12, 3, 4));
  EXPECT_EQ(cursor.Next(), nullptr);
}

TEST_F(ClientTurnsTest, ATaskThatIsPassedOverCostsNoTurn) {
  AddAll("a", 1, 3);
  AddAll("b", 11, 12);
  ClientTurns::Cursor cursor(turns_, model_.get());
  EXPECT_EQ(cursor.Next()->queued.ticket, 1u);
  EXPECT_EQ(cursor.Next()->queued.ticket, 2u) << "still a's turn";
  cursor.Take();
  EXPECT_EQ(cursor.Next()->queued.ticket, 11u);
}

TEST_F(ClientTurnsTest, ACursorOfAVersionThatNobodyWantsIsEmpty) {
  AddAll("a", 1, 3);
  EXPECT_EQ(ClientTurns::Cursor(turns_, FakeModel("n").get()).Next(), nullptr);
}

TEST_F(ClientTurnsTest, NamesMayBeEmptyOrLong) {
  const std::string nul("\0x", 2), longest(1'000'000, 'x');
  AddAll("", 1, 3);
  AddAll(nul, 11, 13);
  AddAll(longest, 21, 23);
  EXPECT_THAT(RunSome(9), ElementsAre(1, 11, 21, 2, 12, 22, 3, 13, 23));
}

// A flood of clients that each come once must not starve a client that waits. In the second case, a few large requests
// take most of the time, so the clients that sent them are in debt for long.
TEST_F(ClientTurnsTest, ThousandsOfNewClientsDoNotStarveOneThatWaits) {
  constexpr int kWaiting = 20, kTurns = 20000;
  constexpr double kCost = 0.001;
  for (const int percent_large : {0, 3}) {
    SCOPED_TRACE(absl::StrCat(percent_large, "% large"));
    std::mt19937_64 random(1);
    uint64_t ticket = 1;
    const auto add_new = [&] {
      const bool is_large = static_cast<int>(random() % 100) < percent_large;
      Add(absl::StrCat("new", ticket), ticket, {.cost = is_large ? 200 * kCost : kCost, .urgency = is_large ? -9 : -5});
      ++ticket;
    };
    uint64_t own = ticket++;
    Add("a", own, {.cost = kCost});
    for (int i = 0; i < kWaiting; ++i) add_new();
    int since_last = 0, longest = 0, turns_of_a = 0;
    int64_t most_active = 0;
    for (int i = 0; i < kTurns; ++i) {
      ++since_last;
      if (RunNext() == own) {
        ++turns_of_a;
        longest = std::max(longest, since_last);
        since_last = 0;
        own = ticket++;
        Add("a", own, {.cost = kCost});
      } else {
        add_new();
      }
      most_active = std::max(most_active, turns_.num_active());
    }
    longest = std::max(longest, since_last);
    EXPECT_GE(turns_of_a, kTurns / (3 * kWaiting));
    EXPECT_LE(longest, 6 * kWaiting);
    EXPECT_LE(most_active, kWaiting + 1 + 64) << "no more are remembered";
    while (RunNext() != 0) {
    }
  }
}

// Uses random requests: clients that always wait must get equal shares of the device whatever their requests cost, and
// none may starve.
TEST_F(ClientTurnsTest, BackloggedClientsHaveEqualShares) {
  for (const uint64_t seed : {1, 2, 3, 4, 5}) {
    std::mt19937_64 random(seed);
    constexpr int kClients = 7;
    std::vector<double> had(kClients);
    std::map<uint64_t, size_t> client_of;  // by ticket; it has no visitors
    uint64_t ticket = 1;
    const auto add = [&](size_t client) {
      const double cost = 0.1 + static_cast<double>(random() % 100) / 10 * static_cast<double>(1 + client % 3);
      client_of[ticket] = client;
      Add(std::to_string(client), ticket++, {.cost = cost, .urgency = static_cast<int>(random() % 100)});
    };
    for (size_t client = 0; client < kClients; ++client) {
      for (int i = 0; i < 3; ++i) add(client);
    }
    for (int step = 0; step < 3000; ++step) {
      const double cost = turns_.First()->cost;
      if (const auto client = client_of.find(RunNext()); client != client_of.end()) {
        had[client->second] += cost;
        add(client->second);
      }
      if (random() % 4 == 0) {
        WaitingTask* visitor = Add(absl::StrCat("v", random() % 3), ticket++, {.cost = 3, .urgency = 1000});
        if (random() % 2 == 0) turns_.Remove(visitor);
      }
    }
    const double most = *std::max_element(had.begin(), had.end());
    const double least = *std::min_element(had.begin(), had.end());
    EXPECT_LE(most - least, 4 * 30.1) << seed;  // the cost of four of the largest requests
    while (RunNext() != 0) {
    }
  }
}

TEST_F(ClientTurnsTest, ClientsHaveTheDeviceByTheirShares) {
  for (uint64_t i = 0; i < 400; ++i) {
    Add("a", 1000 + i, {.share = 3});
    Add("b", 2000 + i, {.share = 1});
    Add("c", 3000 + i, {.share = 0.5});
  }
  std::map<uint64_t, int> ran;
  for (const uint64_t ticket : RunSome(450)) ++ran[ticket / 1000];
  EXPECT_NEAR(ran[1], 300, 3);
  EXPECT_NEAR(ran[2], 100, 3);
  EXPECT_NEAR(ran[3], 50, 3);
}

TEST_F(ClientTurnsTest, AShareThatChangesCountsFromTheNextTask) {
  for (uint64_t i = 0; i < 200; ++i) {
    Add("a", 1000 + i);
    Add("b", 2000 + i);
  }
  std::map<uint64_t, int> ran;
  for (const uint64_t ticket : RunSome(100)) ++ran[ticket / 1000];
  EXPECT_NEAR(ran[1], 50, 2);
  Add("a", 1999, {.share = 3});
  ran.clear();
  for (const uint64_t ticket : RunSome(100)) ++ran[ticket / 1000];
  EXPECT_NEAR(ran[1], 75, 3);
}

}  // namespace
}  // namespace voxserve::client_turns_test
