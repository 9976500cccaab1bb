// Tests the shares that clients get of one batcher: their places in its queue, their admission, and their part of a
// batch. Where predicted times matter, a batch takes 2 ms, and 4 ms more for each request.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "tests/engine/serving/admission/fake_batcher.h"

namespace voxserve::client_shares_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class ClientSharesTest : public testing::Test {
 protected:
  // Pushes `count` tasks of a client, with tickets from `first` on. The batcher must admit all of them.
  static void PushAll(FakeBatcher& fake, uint64_t first, uint64_t count, const FakeBatcher::TaskOptions& options) {
    for (uint64_t ticket = first; ticket < first + count; ++ticket) {
      const absl::Status status = fake.Push(ticket, options);
      ASSERT_TRUE(status.ok()) << ticket << ": " << status;
    }
  }
};

TEST_F(ClientSharesTest, BatchesAreFilledByTurns) {
  FakeBatcher fake({}, {.max_batch_requests = 4});
  PushAll(fake, 1, 6, {.client = "a"});
  PushAll(fake, 11, 2, {.client = "b"});
  PushAll(fake, 21, 1, {.client = "c"});
  EXPECT_THAT(fake.Pop(), ElementsAre(1, 11, 21, 2));
  EXPECT_THAT(fake.Pop(), ElementsAre(12, 3, 4, 5));
  EXPECT_THAT(fake.Pop(), ElementsAre(6));
}

TEST_F(ClientSharesTest, ABatchsLimitsHoldWhoeverComesFirst) {
  FakeBatcher fake({}, {.max_batch_points = 100});
  PushAll(fake, 1, 3, {.points = 70, .client = "a"});
  PushAll(fake, 11, 3, {.points = 20, .client = "b"});
  EXPECT_THAT(fake.Pop(), ElementsAre(1, 11));
  EXPECT_THAT(fake.Pop(), ElementsAre(2, 12));
  EXPECT_THAT(fake.Pop(), ElementsAre(3, 13));
}

TEST_F(ClientSharesTest, ABatchGrowsOnlyWhileItMakesTheDeadlinesInIt) {
  FakeBatcher fake({.num_workers = {4}});
  fake.Teach();
  ASSERT_TRUE(fake.Push(1, {.timeout = absl::Milliseconds(12), .client = "light"}).ok());
  PushAll(fake, 2, 3, {.client = "heavy"});
  // A batch of two takes 10 ms, one of three would take 14 ms.
  EXPECT_THAT(fake.Pop(), ElementsAre(1, 2));
}

TEST_F(ClientSharesTest, WhatWouldEndLateLeavesItsPlaceToOthers) {
  for (const bool is_shared : {true, false}) {
    FakeBatcher fake({.num_workers = {4}}, {.max_batch_requests = 2});
    fake.Teach();
    ASSERT_TRUE(fake.Push(1, {.timeout = absl::Milliseconds(3), .client = "a"}).ok());
    // A batch of two takes 10 ms.
    ASSERT_TRUE(fake.Push(2, {.timeout = absl::Milliseconds(9), .client = is_shared ? "b" : "a"}).ok());
    ASSERT_TRUE(fake.Push(3, {.client = is_shared ? "c" : "a"}).ok());
    EXPECT_THAT(fake.Pop(), ElementsAre(1, is_shared ? 3 : 2));
    EXPECT_THAT(fake.Pop(), ElementsAre(is_shared ? 2 : 3));
  }
}

TEST_F(ClientSharesTest, ClientsTakeTurnsWithinEachModelsTurns) {
  FakeBatcher fake({}, {.max_batch_requests = 1});
  const auto other = FakeModel("n", {.max_batch_requests = 1});
  PushAll(fake, 1, 2, {.client = "a"});
  PushAll(fake, 3, 2, {.model = other, .client = "a"});
  PushAll(fake, 11, 2, {.model = other, .client = "b"});
  std::vector<uint64_t> ran;
  for (int i = 0; i < 6; ++i) ran.push_back(fake.Pop().at(0));
  EXPECT_THAT(ran, ElementsAre(1, 3, 2, 11, 4, 12));
}

TEST_F(ClientSharesTest, LevelsComeBeforeTurns) {
  FakeBatcher fake({}, {.max_batch_requests = 1, .priority_levels = 2});
  PushAll(fake, 1, 3, {.priority = 0, .client = "a"});
  PushAll(fake, 11, 2, {.priority = 1, .client = "b"});
  std::vector<uint64_t> ran;
  for (int i = 0; i < 5; ++i) ran.push_back(fake.Pop().at(0));
  EXPECT_THAT(ran, ElementsAre(1, 2, 3, 11, 12));
}

// Guards against an earlier error: while one client had 64 calls in flight, the batcher refused 20 of 20 small requests
// of another client.
TEST_F(ClientSharesTest, ALightClientIsAdmittedWhileAHeavyOnesRequestsAreRefused) {
  FakeBatcher fake({}, {.max_batch_requests = 1});
  fake.Teach();
  ASSERT_TRUE(fake.Push(1, {.client = "heavy"}).ok());
  Batch running = fake->TryPop(0);
  int num_refused = 0;
  for (uint64_t ticket = 2; ticket <= 64; ++ticket) {
    const absl::Status status = fake.Push(ticket, {.timeout = absl::Milliseconds(200), .client = "heavy"});
    if (status.ok()) continue;
    ++num_refused;
    EXPECT_EQ(ReasonOf(status), error_reason::kDeadlineUnmeetable);
  }
  EXPECT_GT(num_refused, 20);
  uint64_t heavy_ticket = 1000;
  const auto run_one = [&] {
    fake.clock.Advance(absl::Milliseconds(6));
    fake->Finished(running, {1});
    while (fake.Push(heavy_ticket, {.timeout = absl::Milliseconds(200), .client = "heavy"}).ok()) ++heavy_ticket;
    running = fake->TryPop(0);
    ASSERT_EQ(running.tasks.size(), 1u);
  };
  for (uint64_t ticket = 101; ticket <= 120; ++ticket) {
    // The light client waits 6 ms for the running batch and 12 ms for two turns of the heavy client, which is behind by
    // one turn. Its own batch takes 6 ms.
    ASSERT_TRUE(fake.Push(ticket, {.timeout = absl::Milliseconds(25), .client = "light"}).ok()) << ticket;
    do run_one();
    while (running.tasks[0].ticket != ticket);
    EXPECT_LE(fake.clock.now() + absl::Milliseconds(6), running.tasks[0].task.deadline);
    run_one();  // runs the batch of the light client to its end
  }
}

TEST_F(ClientSharesTest, ALightClientsOwnBacklogCounts) {
  FakeBatcher fake({}, {.max_batch_requests = 1});
  fake.Teach();
  ASSERT_TRUE(fake.Push(1, {.client = "heavy"}).ok());
  const Batch running = fake->TryPop(0);
  PushAll(fake, 2, 20, {.client = "heavy"});
  PushAll(fake, 101, 3, {.client = "light"});
  // The running batch, three tasks of the light client, four tasks of the heavy client, and the new task take 6 ms
  // each.
  EXPECT_EQ(ReasonOf(fake.Push(110, {.timeout = absl::Milliseconds(50), .client = "light"})),
            error_reason::kDeadlineUnmeetable);
  EXPECT_TRUE(fake.Push(111, {.timeout = absl::Milliseconds(56), .client = "light"}).ok());
}

// The heavy client's tasks were admitted before the light client came. The light client gets its share of turns, so
// half of the heavy client's tasks can no longer end in time and are answered with DEADLINE_EXCEEDED.
TEST_F(ClientSharesTest, WhatANewcomersTurnsMakeHopelessIsGivenUp) {
  FakeBatcher fake({}, {.max_batch_requests = 1});
  fake.Teach();
  ASSERT_TRUE(fake.Push(1, {.client = "heavy"}).ok());
  Batch running = fake->TryPop(0);
  // Without another client, all ten tasks would end in time: after the running batch, within 66 ms.
  for (uint64_t ticket = 2; ticket <= 11; ++ticket) {
    ASSERT_TRUE(fake.Push(ticket, {.timeout = absl::Milliseconds(67), .client = "heavy"}).ok()) << ticket;
  }
  PushAll(fake, 101, 10, {.client = "light"});
  int heavy_ran = 0, light_ran = 0;
  do {
    fake.clock.Advance(absl::Milliseconds(6));
    fake->Finished(running, {1});
    running = fake->TryPop(0);
    if (!running.tasks.empty()) ++(running.tasks[0].ticket > 100 ? light_ran : heavy_ran);
  } while (!running.tasks.empty());
  EXPECT_EQ(light_ran, 10);
  EXPECT_EQ(heavy_ran, 5);
  for (uint64_t ticket = 7; ticket <= 11; ++ticket) {
    EXPECT_EQ(fake.answer(ticket).status.code(), absl::StatusCode::kDeadlineExceeded) << ticket;
  }
}

TEST_F(ClientSharesTest, AClientBelowItsShareTakesAPlaceOfTheOneThatHoldsMost) {
  FakeBatcher fake({.max_queue_requests = 9});
  PushAll(fake, 1, 6, {.client = "a"});
  PushAll(fake, 11, 3, {.client = "b"});
  ASSERT_TRUE(fake.Push(21, {.client = "c"}).ok());
  EXPECT_EQ(ReasonOf(fake.answer(6).status), error_reason::kQueueFull) << "the newest of a's";
  EXPECT_THAT(std::string(fake.answer(6).status.message()), HasSubstr("a client that holds less of it came"));
  EXPECT_LT(RetryDelayOf(fake.answer(6).status), absl::Seconds(10));
  ASSERT_TRUE(fake.Push(22, {.client = "c"}).ok());
  ASSERT_TRUE(fake.Push(23, {.client = "c"}).ok());
  EXPECT_EQ(fake.answer(5).calls + fake.answer(4).calls, 2);
  // Now each of the three clients holds a third of the queue.
  for (const char* client : {"a", "b", "c"}) {
    EXPECT_EQ(ReasonOf(fake.Push(99, {.client = client})), error_reason::kQueueFull) << client;
  }
  EXPECT_EQ(fake.observer.depth["m"], 9);
  EXPECT_THAT(fake.observer.dropped,
              ElementsAre("queue_full", "queue_full", "queue_full", "queue_full", "queue_full", "queue_full"));
  // With a fourth client, the share of each is two of the nine places.
  ASSERT_TRUE(fake.Push(31, {.client = "d"}).ok());
  ASSERT_TRUE(fake.Push(32, {.client = "d"}).ok());
  EXPECT_EQ(ReasonOf(fake.Push(33, {.client = "d"})), error_reason::kQueueFull);
}

TEST_F(ClientSharesTest, BytesHaveSharesToo) {
  FakeBatcher fake({.max_queue_bytes = 4000});
  PushAll(fake, 1, 4, {.points = 250, .client = "a"});
  ASSERT_TRUE(fake.Push(11, {.points = 400, .client = "b"}).ok());  // takes two places
  EXPECT_EQ(fake.answer(4).calls, 1);
  EXPECT_EQ(fake.answer(3).calls, 1);
  EXPECT_EQ(fake.answer(2).calls, 0);
  EXPECT_EQ(ReasonOf(fake.Push(12, {.points = 200, .client = "b"})), error_reason::kQueueFull) << "beyond its share";
  EXPECT_EQ(fake.answer(2).calls, 0) << "nobody is evicted in vain";
  EXPECT_TRUE(fake.Push(13, {.points = 100, .client = "b"}).ok());
}

TEST_F(ClientSharesTest, ARequestBeyondItsClientsShareOfBytesIsRefused) {
  FakeBatcher fake({.max_queue_bytes = 4000});
  PushAll(fake, 1, 4, {.points = 250, .client = "a"});
  EXPECT_EQ(ReasonOf(fake.Push(11, {.points = 501, .client = "b"})), error_reason::kQueueFull);
  for (uint64_t ticket = 1; ticket <= 4; ++ticket) EXPECT_EQ(fake.answer(ticket).calls, 0);
}

TEST_F(ClientSharesTest, LessUrgentLevelsGiveWayBeforeClientsOfTheSameOne) {
  FakeBatcher fake({.max_queue_requests = 4}, {.priority_levels = 2});
  PushAll(fake, 1, 3, {.priority = 0, .client = "a"});
  ASSERT_TRUE(fake.Push(11, {.priority = 1, .client = "b"}).ok());
  ASSERT_TRUE(fake.Push(21, {.priority = 0, .client = "c"}).ok());
  EXPECT_EQ(fake.answer(11).calls, 1);
  ASSERT_TRUE(fake.Push(22, {.priority = 0, .client = "c"}).ok());
  EXPECT_EQ(fake.answer(3).calls, 1);
}

TEST_F(ClientSharesTest, AMoreUrgentTaskTakesThePlaceOfTheClientThatHoldsMost) {
  FakeBatcher fake({.max_queue_requests = 6}, {.priority_levels = 3});
  PushAll(fake, 1, 1, {.priority = 1, .client = "heavy"});
  PushAll(fake, 2, 4, {.priority = 2, .client = "heavy"});
  ASSERT_TRUE(fake.Push(11, {.priority = 2, .client = "light"}).ok());
  for (const uint64_t ticket : {5, 4, 3}) {
    ASSERT_TRUE(fake.Push(100 + ticket, {.priority = 0, .client = "heavy"}).ok());
    EXPECT_EQ(fake.answer(ticket).calls, 1) << "the newest of heavy's at the least urgent priority";
    EXPECT_EQ(fake.answer(11).calls, 0) << "the newest of all, but its client's only one";
  }
  EXPECT_THAT(std::string(fake.answer(5).status.message()), HasSubstr("a request of a more urgent level came"));
  // Now both clients hold one task of the least urgent priority, and the newer task gives way.
  ASSERT_TRUE(fake.Push(201, {.priority = 0, .client = "heavy"}).ok());
  EXPECT_EQ(fake.answer(11).calls, 1);
  EXPECT_EQ(fake.answer(1).calls + fake.answer(2).calls, 0);
}

TEST_F(ClientSharesTest, AMoreUrgentTaskTakesTheBytesOfTheClientThatHoldsMostOfThem) {
  FakeBatcher fake({.max_queue_bytes = 4000}, {.priority_levels = 2});
  PushAll(fake, 1, 1, {.points = 700, .priority = 1, .client = "large"});
  PushAll(fake, 11, 3, {.points = 100, .priority = 1, .client = "small"});
  ASSERT_TRUE(fake.Push(21, {.points = 100, .priority = 0, .client = "c"}).ok());
  EXPECT_EQ(fake.answer(1).calls, 1) << "one request, but most of the bytes";
  for (const uint64_t ticket : {11, 12, 13}) EXPECT_EQ(fake.answer(ticket).calls, 0) << ticket;
}

TEST_F(ClientSharesTest, ALessUrgentTaskTakesNoPlaceOfAMoreUrgentLevel) {
  FakeBatcher fake({.max_queue_requests = 4}, {.priority_levels = 2});
  PushAll(fake, 1, 3, {.priority = 0, .client = "a"});
  ASSERT_TRUE(fake.Push(11, {.priority = 1, .client = "b"}).ok());
  // The more urgent tasks leave one place for level 1, which is less than one for each of the clients b and c.
  EXPECT_EQ(ReasonOf(fake.Push(21, {.priority = 1, .client = "c"})), error_reason::kQueueFull);
  EXPECT_EQ(fake.answer(11).calls, 0);
}

TEST_F(ClientSharesTest, AsManyClientsAsPlacesKeepTheNextOneOut) {
  FakeBatcher fake({.max_queue_requests = 5000});
  for (uint64_t ticket = 1; ticket <= 5000; ++ticket) {
    ASSERT_TRUE(fake.Push(ticket, {.client = absl::StrCat("client", ticket)}).ok());
  }
  EXPECT_EQ(ReasonOf(fake.Push(9999, {.client = "one more"})), error_reason::kQueueFull);
  EXPECT_EQ(fake.observer.depth["m"], 5000);
  std::set<uint64_t> ran;
  for (std::vector<uint64_t> batch = fake.Pop(); !batch.empty(); batch = fake.Pop())
    ran.insert(batch.begin(), batch.end());
  EXPECT_EQ(ran.size(), 5000u);
}

TEST_F(ClientSharesTest, AnyNameIsAClient) {
  FakeBatcher fake({.max_queue_requests = 6}, {.max_batch_requests = 1});
  const std::string longest(1'000'000, 'x'), binary("\0\xff\n\"", 4);
  PushAll(fake, 1, 6, {.client = ""});
  ASSERT_TRUE(fake.Push(11, {.client = longest}).ok());
  ASSERT_TRUE(fake.Push(21, {.client = binary}).ok());
  EXPECT_THAT(std::string(fake.answer(6).status.message()), testing::Not(HasSubstr("xxx")));
  std::vector<uint64_t> ran;
  for (int i = 0; i < 6; ++i) ran.push_back(fake.Pop().at(0));
  EXPECT_THAT(ran, ElementsAre(1, 11, 21, 2, 3, 4));
  EXPECT_THAT(fake.Pop(), IsEmpty());
}

// Tests, like BatcherPropertyTest, that every task ends once in a random order of events. Here tasks have clients, and
// the queue is mostly full.
class ClientSharesPropertyTest : public testing::TestWithParam<uint64_t> {};

TEST_P(ClientSharesPropertyTest, EveryTaskEndsOnceAndTheQueueKeepsItsLimit) {
  std::mt19937_64 random(GetParam());
  const auto below = [&random](uint64_t limit) { return random() % limit; };
  FakeBatcher fake({.max_queue_requests = 24, .max_queue_bytes = 20'000, .num_workers = {2, 1}},
                   {.max_batch_points = 1000, .max_batch_requests = 4, .priority_levels = 2});
  const auto other = FakeModel("n", {.max_batch_requests = 8, .max_queue_delay = absl::Milliseconds(50)}, 2);
  std::vector<Batch> running;
  std::set<uint64_t> taken, refused;
  uint64_t next_ticket = 1;
  const auto finish = [&](size_t index) {
    for (const QueuedTask& task : running[index].tasks) task.task.done(InferResult());
    fake->Finished(running[index], {running[index].load.points / 2});
    running.erase(running.begin() + static_cast<std::ptrdiff_t>(index));
  };
  const auto start = [&](size_t device) {
    Batch batch = fake->TryPop(device);
    for (const QueuedTask& task : batch.tasks) {
      EXPECT_EQ(fake.answer(task.ticket).calls, 0);
      EXPECT_GT(task.task.deadline, fake.clock.now());
    }
    if (!batch.tasks.empty()) running.push_back(std::move(batch));
  };
  for (int step = 0; step < 4000; ++step) {
    fake.clock.Advance(absl::Microseconds(below(1500)));
    switch (below(8)) {
      case 0:
        fake->ExpireDue();
        break;
      case 1:
        fake->Cancel(1 + below(next_ticket));
        break;
      case 2:
        if (!running.empty()) finish(below(running.size()));
        break;
      case 3:
        if (running.size() < 3) start(below(2));
        break;
      default: {
        const uint64_t ticket = next_ticket++;
        const auto& model = below(3) == 0 ? other : fake.model;
        const absl::Status status =
            fake.Push(ticket, {.points = static_cast<int64_t>(below(10) == 0 ? 2000 : below(400)),
                               .timeout = absl::Milliseconds(1 + below(200)),
                               .priority = model == other ? 0 : static_cast<int>(below(2)),
                               .model = model,
                               // One client sends as much as all others together.
                               .client = below(2) == 0 ? "heavy" : absl::StrCat("c", below(1 + step / 100))});
        (status.ok() ? taken : refused).insert(ticket);
        EXPECT_LE(fake.observer.depth["m"], 24);
      }
    }
  }
  fake->Stop();
  while (!running.empty()) finish(0);
  for (start(0); !running.empty(); start(1)) finish(0);
  fake->WaitUntilIdle();
  EXPECT_EQ(fake->NextExpiry(), absl::InfiniteFuture());
  for (const uint64_t ticket : taken) EXPECT_EQ(fake.answer(ticket).calls, 1) << ticket;
  for (const uint64_t ticket : refused) EXPECT_EQ(fake.answer(ticket).calls, 0) << ticket;
  EXPECT_GT(taken.size(), 300u);
  EXPECT_GT(refused.size(), 30u);
  EXPECT_EQ(fake.observer.depth["m"], 0);
  EXPECT_EQ(other.use_count(), 1);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ClientSharesPropertyTest, testing::Range<uint64_t>(1, 21));

}  // namespace
}  // namespace voxserve::client_shares_test
