// Tests how the engine polls the model repository for changes, and that reloads under load fail no request.

#include <atomic>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "tests/engine/serving/manager_test.h"

namespace voxserve::model_polling_test {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr absl::Duration kOften = absl::Milliseconds(2);

class ModelPollingTest : public ManagerTest {
 protected:
  // Waits until a look through the whole repository that began after this call has ended.
  void AwaitPoll() {
    for (int i = 0; i < 2; ++i) {
      const std::string name = absl::StrCat("poll", num_polls_++);
      MoveIn(name, 1, ModelOf(0));
      ASSERT_TRUE(observer_.AwaitState(name, 1, true));
    }
  }

  int num_polls_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Devices, ModelPollingTest, support::AllDevices(), support::DeviceName);

int Count(const std::string& text, const std::string& what) {
  int count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST_P(ModelPollingTest, PollsOnceWhereItIsAskedTo) {
  MoveIn("a", 1, ModelOf(0));
  Start();
  ASSERT_TRUE(observer_.AwaitState("a", 1, true));
  MoveIn("b", 1, ModelOf(2));
  engine_->Poll();
  ASSERT_TRUE(observer_.AwaitState("b", 1, true));
  EXPECT_THAT(Answer("b"), Pair(1, 2));
  Delete("a");
  MoveIn("c", 1, ModelOf(1));
  ASSERT_TRUE(Load("c").ok());  // a job of the manager's thread, which would poll behind it if it polled by itself
  ASSERT_TRUE(Load("c").ok());
  EXPECT_THAT(Listed("a"), ElementsAre(1)) << "nobody asked";
  engine_->Poll();
  ASSERT_TRUE(observer_.AwaitGone("a", 1));
}

TEST_P(ModelPollingTest, FindsWhatIsNewChangedAndGone) {
  MoveIn("a", 1, ModelOf(0));
  Start(kOften);
  MoveIn("a", 2, ModelOf(1));
  ASSERT_TRUE(observer_.AwaitState("a", 2, true));
  EXPECT_THAT(Answer("a"), Pair(2, 1));
  MoveIn("b", 1, ModelOf(2));
  ASSERT_TRUE(observer_.AwaitState("b", 1, true));
  EXPECT_THAT(Answer("b"), Pair(1, 2));

  const int num_builds = observer_.num_builds();
  support::WriteFile(root_.path() / "a/2/weights.safetensors", support::Safetensors(ModelOf(2).weights));
  ASSERT_TRUE(observer_.AwaitBuilds(num_builds + 1));
  AwaitPoll();
  EXPECT_THAT(Answer("a"), Pair(2, 2));

  Delete("a/2");
  ASSERT_TRUE(observer_.AwaitGone("a", 2));
  EXPECT_THAT(Answer("a"), Pair(1, 0));
  Delete("b");
  ASSERT_TRUE(observer_.AwaitGone("b", 1));
  const absl::Status gone = Ask("b").status();
  EXPECT_EQ(ReasonOf(gone), error_reason::kModelNotFound);
  EXPECT_THAT(std::string(gone.message()), Not(HasSubstr("unloaded"))) << "nobody did";
}

TEST_P(ModelPollingTest, WhatDoesNotChangeIsNotLoadedAgain) {
  MoveIn("a", 1, ModelOf(0));
  Start(kOften);
  AwaitPoll();
  EXPECT_EQ(observer_.num_builds(), 1 + num_polls_);
}

TEST_P(ModelPollingTest, WhatIsBrokenIsToldOnceAChange) {
  MoveIn("a", 1, ModelOf(0));
  ::testing::internal::CaptureStderr();
  Start(kOften);
  support::TestModel broken = ModelOf(1);
  broken.weights.erase("head.bias");
  MoveIn("a", 2, broken);
  std::filesystem::create_directories(root_.path() / "a/draft");
  AwaitPoll();
  AwaitPoll();
  EXPECT_EQ(InfoOf("a", 2).state, ModelState::kFailed);
  broken.weights.erase("head.weight");
  // The file is moved in: a poll that saw a half of it would report the whole again.
  support::WriteFile(root_.path() / ".coming", support::Safetensors(broken.weights));
  std::filesystem::rename(root_.path() / ".coming", root_.path() / "a/2/weights.safetensors");
  AwaitPoll();
  AwaitPoll();
  const std::string log = ::testing::internal::GetCapturedStderr();
  // The first change is reported with the missing bias, the second with bias and weight.
  EXPECT_EQ(Count(log, "\\\"head.bias\\\": is missing"), 2) << log;
  EXPECT_EQ(Count(log, "\\\"head.weight\\\": is missing"), 1) << log;
  EXPECT_EQ(Count(log, "\\\"draft\\\" is no version"), 1) << log;
  EXPECT_EQ(Count(log, "model broken"), 3) << log;
}

TEST_P(ModelPollingTest, WhatFoundNoMemoryIsTriedAgain) {
  MoveIn("a", 1, ModelOf(1));
  observer_.TakeMemoryFrom(3);
  Start(kOften);
  ASSERT_TRUE(observer_.AwaitState("a", 1, true)) << "though its folder did not change";
  EXPECT_THAT(Answer("a"), Pair(1, 1));
  EXPECT_EQ(observer_.num_builds(), 4);
  AwaitPoll();
  EXPECT_EQ(observer_.num_builds(), 4 + num_polls_) << "and no more once it is there";
}

TEST_P(ModelPollingTest, ASuccessorThatFoundNoMemoryTakesOverWhenThereIsSome) {
  MoveIn("a", 1, ModelOf(1));
  Start(kOften);
  observer_.TakeMemoryFrom(1);
  support::WriteFile(root_.path() / "a/1/weights.safetensors", support::Safetensors(ModelOf(2).weights));
  ASSERT_TRUE(observer_.AwaitBuilds(3));
  AwaitPoll();
  EXPECT_THAT(Answer("a"), Pair(1, 2));
  EXPECT_THAT(InfoOf("a", 1).problems, SizeIs(0));
}

// Without polling, a failed version is tried again only when a call asks for it.
TEST_P(ModelPollingTest, WithoutPollingACallTriesAgain) {
  MoveIn("a", 1, ModelOf(1));
  observer_.TakeMemoryFrom(1);
  Start();
  const ModelVersionInfo info = InfoOf("a", 1);
  EXPECT_EQ(info.state, ModelState::kFailed);
  EXPECT_THAT(info.problems, ElementsAre(HasSubstr("memory")));
  EXPECT_THAT(Load("a").value(), ElementsAre(1));
  EXPECT_THAT(Answer("a"), Pair(1, 1));
}

TEST_P(ModelPollingTest, WhatWasUnloadedByCallStaysOut) {
  for (const int version : {1, 2}) MoveIn("a", version, ModelOf(version));
  MoveIn("b", 1, ModelOf(0));
  Start(kOften);
  ASSERT_TRUE(Unload("a", 2).ok());
  ASSERT_TRUE(Unload("b").ok());
  MoveIn("b", 2, ModelOf(0));
  support::WriteFile(root_.path() / "a/2/weights.safetensors", support::Safetensors(ModelOf(0).weights));
  AwaitPoll();
  EXPECT_THAT(Listed("a"), ElementsAre(1));
  EXPECT_THAT(Listed("b"), ElementsAre());
  EXPECT_THAT(Load("a").value(), ElementsAre(1, 2));
  EXPECT_THAT(Answer("a"), Pair(2, 0));
  EXPECT_THAT(Load("b", 2).value(), ElementsAre(2));
  AwaitPoll();
  EXPECT_THAT(Listed("b"), ElementsAre(2)) << "the rest of it is still out";
  EXPECT_THAT(Load("b").value(), ElementsAre(1, 2));
}

TEST_P(ModelPollingTest, APolicyThatChangesIsFollowed) {
  for (const int version : {1, 2}) MoveIn("a", version, ModelOf(version));
  Start(kOften);
  WriteConfig("a", "version_policy { latest: 1 }");
  ASSERT_TRUE(observer_.AwaitGone("a", 1));
  EXPECT_THAT(Answer("a"), Pair(2, 2));
  MoveIn("a", 3, ModelOf(0));
  ASSERT_TRUE(observer_.AwaitGone("a", 2));
  EXPECT_THAT(Answer("a"), Pair(3, 0));
}

TEST_P(ModelPollingTest, ARepositoryThatIsAwayTakesNothingOut) {
  const std::filesystem::path real = root_.path() / "real";
  ModelOf(1).WriteTo(real / "a");
  const std::filesystem::path link = root_.path() / "link";
  std::filesystem::create_directory_symlink(real, link);
  ::testing::internal::CaptureStderr();
  engine_ = MakeEngine({.model_repository = link.string(),
                        .num_threads = 2,
                        .devices = GetParam() == support::Device::kCpu ? "cpu" : "cuda:0",
                        .model_poll_interval = kOften,
                        .observer = &observer_});
  std::filesystem::remove(link);
  // The log alone shows that the engine saw the missing repository.
  const auto is_told = [] {
    std::ostringstream so_far;
    so_far << std::ifstream("/proc/self/fd/2").rdbuf();
    return Count(so_far.str(), "is not a folder") > 0;
  };
  for (int i = 0; i < 30'000 && !is_told(); ++i) absl::SleepFor(absl::Milliseconds(2));
  EXPECT_THAT(Answer("a"), Pair(1, 1));
  std::filesystem::create_directory_symlink(real, link);
  ModelOf(2).WriteTo(real / "b");
  ASSERT_TRUE(observer_.AwaitState("b", 1, true));
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(Count(log, "is not a folder"), 1) << log;
  EXPECT_THAT(Answer("a"), Pair(1, 1));
}

// The number of reloads bounds the test; clients send requests as long as there are reloads.
TEST_P(ModelPollingTest, ReloadsUnderLoadCostNoRequest) {
  constexpr int kReloads = 200;
  Write("a", 1, ModelOf(1));
  Write("a", 2, ModelOf(2));
  Write("other", 1, ModelOf(0));
  Start();
  const int64_t bytes = observer_.weight_bytes();
  std::atomic<bool> stop{false};
  std::atomic<int64_t> num_answers{0};
  std::vector<std::thread> clients;
  for (int client = 0; client < 3; ++client) {
    clients.emplace_back([&, client] {
      for (int64_t i = client; !stop; ++i) {
        const int64_t version = i % 3;  // 0: the newest
        const auto answer = Answer("a", version);
        ASSERT_EQ(answer.first, version == 0 ? 2 : version);
        ASSERT_EQ(answer.second, answer.first) << "each version's label is its number";
        ASSERT_THAT(Answer("other"), Pair(1, 0));
        ++num_answers;
      }
    });
  }
  for (int i = 0; i < kReloads; ++i) {
    const int version = 1 + i % 2;
    Write("a", version, ModelOf(version, static_cast<float>(i + 1)));
    ASSERT_TRUE(Load("a").ok());
  }
  // At least ten answers must come after the last load.
  const int64_t answers = num_answers;
  for (int i = 0; i < 30'000 && num_answers < answers + 10; ++i) absl::SleepFor(absl::Milliseconds(2));
  stop = true;
  for (std::thread& client : clients) client.join();
  EXPECT_GE(num_answers, answers + 10);
  EXPECT_EQ(observer_.num_builds(), 3 + kReloads);
  EXPECT_TRUE(observer_.AwaitWeightBytes(bytes)) << "all that were replaced are gone";
}

// The number of takeovers bounds the test. A request without a version is answered by the version in service, before,
// during and after each takeover.
TEST_P(ModelPollingTest, TakeoversUnderLoadCostNoRequest) {
  constexpr int kTakeovers = 60;
  const auto serve_only = [this](int version) {
    WriteConfig("a", absl::StrCat("version_policy { specific { versions: ", version, " } }"));
  };
  Write("a", 1, ModelOf(1));
  Write("a", 2, ModelOf(2));
  serve_only(2);
  Start();
  std::atomic<bool> stop{false};
  std::atomic<int64_t> num_answers[3] = {};  // by version
  std::vector<std::thread> clients;
  for (int client = 0; client < 3; ++client) {
    clients.emplace_back([&] {
      while (!stop) {
        const auto answer = Answer("a");
        ASSERT_THAT(answer.first, AnyOf(1, 2));
        ASSERT_EQ(answer.second, answer.first) << "each version's label is its number";
        ++num_answers[answer.first];
      }
    });
  }
  for (int i = 0; i < kTakeovers; ++i) {
    const int version = 1 + i % 2;
    serve_only(version);
    EXPECT_THAT(Load("a").value_or(Versions()), ElementsAre(version));
    const int64_t answers = num_answers[version];
    for (int tries = 0; tries < 30'000 && num_answers[version] == answers; ++tries) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_GT(num_answers[version], answers);
  }
  stop = true;
  for (std::thread& client : clients) client.join();
  EXPECT_THAT(Listed("a"), ElementsAre(2));
}

}  // namespace
}  // namespace voxserve::model_polling_test
