// Tests the calls that load and unload models, and version policies, through the engine's public interface.

#include "engine/serving/models/model_manager.h"

#include <atomic>
#include <stdexcept>
#include <thread>

#include "absl/synchronization/notification.h"
#include "engine/base/error_reason.h"
#include "tests/engine/serving/manager_test.h"
#include "tests/support/await_true.h"

namespace voxserve::model_manager_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

class ModelManagerTest : public ManagerTest {};
INSTANTIATE_TEST_SUITE_P(Devices, ModelManagerTest, support::AllDevices(), support::DeviceName);

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

TEST_P(ModelManagerTest, LoadsAModelAndAVersionThatCameLater) {
  Write("a", 1, ModelOf(0));
  Start();
  EXPECT_EQ(Ask("b").status().code(), absl::StatusCode::kNotFound);
  Write("b", 3, ModelOf(1));
  Write("a", 2, ModelOf(2));
  EXPECT_EQ(Ask("b").status().code(), absl::StatusCode::kNotFound) << "nobody asked yet";
  EXPECT_THAT(Load("b").value(), ElementsAre(3));
  EXPECT_THAT(Load("a").value(), ElementsAre(1, 2));
  EXPECT_THAT(Answer("b"), Pair(3, 1));
  EXPECT_THAT(Answer("a"), Pair(2, 2));
  EXPECT_THAT(Answer("a", 1), Pair(1, 0));
  EXPECT_THAT(observer_.states(),
              ElementsAre(Pair(Pair("a", 1), true), Pair(Pair("a", 2), true), Pair(Pair("b", 3), true)));
}

TEST_P(ModelManagerTest, WhatHasNotChangedIsLeftAsItIs) {
  Write("a", 1, ModelOf(0));
  Start();
  ASSERT_EQ(observer_.num_builds(), 1);
  EXPECT_THAT(Load("a").value(), ElementsAre(1));
  EXPECT_THAT(Load("a", 1).value(), ElementsAre(1));
  Write("a", 1, ModelOf(0));  // new files with the old bytes
  EXPECT_THAT(Load("a").value(), ElementsAre(1));
  EXPECT_EQ(observer_.num_builds(), 1);
}

TEST_P(ModelManagerTest, ReloadsWhatHasChanged) {
  Write("a", 1, ModelOf(0));
  Start();
  const std::string digest = InfoOf("a", 1).digest;
  Write("a", 1, ModelOf(2));
  EXPECT_THAT(Answer("a"), Pair(1, 0)) << "what was loaded stays until somebody asks";
  EXPECT_THAT(Load("a").value(), ElementsAre(1));
  EXPECT_THAT(Answer("a"), Pair(1, 2));
  EXPECT_NE(InfoOf("a", 1).digest, digest);
  WriteConfig("a", "max_points: 7");
  EXPECT_THAT(Load("a", 1).value(), ElementsAre(1));
  EXPECT_EQ(InfoOf("a", 1).max_points, 7);
  EXPECT_EQ(observer_.num_builds(), 3);
}

TEST_P(ModelManagerTest, ABrokenSuccessorLeavesTheOldOneInService) {
  Write("a", 1, ModelOf(0));
  Start();
  support::TestModel broken = ModelOf(1);
  broken.Replace("epsilon: 0.001", "epsilon: -1");
  broken.weights.erase("head.bias");
  Write("a", 1, broken);
  for (const int64_t version : {0, 1}) {
    const absl::Status status = Load("a", version).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(ReasonOf(status), error_reason::kBadModel);
    EXPECT_THAT(MessageOf(status), HasSubstr("version 1 has 2 problems"));
    EXPECT_THAT(MessageOf(status), HasSubstr("epsilon is -1"));
    EXPECT_THAT(MessageOf(status), HasSubstr("tensor \"head.bias\": is missing"));
  }
  EXPECT_THAT(Answer("a"), Pair(1, 0));
  EXPECT_EQ(InfoOf("a", 1).state, ModelState::kReady);
  EXPECT_THAT(InfoOf("a", 1).problems, SizeIs(2));
  EXPECT_TRUE(observer_.states().begin()->second);

  Write("a", 1, ModelOf(0));  // the files of the version in service again
  EXPECT_TRUE(Load("a").ok());
  EXPECT_THAT(InfoOf("a", 1).problems, IsEmpty());
  EXPECT_EQ(observer_.num_builds(), 1);
}

TEST_P(ModelManagerTest, ABrokenNewcomerIsListedAndRetried) {
  Write("a", 1, ModelOf(0));
  Start();
  support::TestModel broken = ModelOf(1);
  broken.graph = "nodes {";
  Write("a", 2, broken);
  EXPECT_EQ(Load("a").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(InfoOf("a", 2).state, ModelState::kFailed);
  EXPECT_THAT(Answer("a"), Pair(1, 0));
  EXPECT_EQ(ReasonOf(Ask("a", 2).status()), error_reason::kModelFailed);
  Write("a", 2, ModelOf(1));
  EXPECT_THAT(Load("a", 2).value(), ElementsAre(1, 2));
  EXPECT_THAT(InfoOf("a", 2).problems, IsEmpty());
  EXPECT_THAT(Answer("a"), Pair(2, 1));
}

TEST_P(ModelManagerTest, UnloadedVersionsStayOutUntilTheyAreLoaded) {
  for (const int version : {1, 2}) Write("a", version, ModelOf(version));
  Start();
  EXPECT_THAT(Unload("a", 2).value(), ElementsAre(2));
  EXPECT_THAT(Listed("a"), ElementsAre(1));
  EXPECT_THAT(Answer("a"), Pair(1, 1));
  const absl::Status gone = Ask("a", 2).status();
  EXPECT_EQ(gone.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReasonOf(gone), error_reason::kVersionNotFound);
  EXPECT_THAT(MessageOf(gone), HasSubstr("there is 1; it was unloaded, LoadModel brings it back"));
  EXPECT_EQ(Unload("a", 2).status().code(), absl::StatusCode::kNotFound) << "once is enough";
  EXPECT_THAT(observer_.states(), ElementsAre(Pair(Pair("a", 1), true)));

  EXPECT_THAT(Load("a", 2).value(), ElementsAre(1, 2));
  EXPECT_THAT(Answer("a"), Pair(2, 2));

  EXPECT_THAT(Unload("a").value(), ElementsAre(1, 2));
  EXPECT_THAT(engine_->ListModels(), IsEmpty());
  EXPECT_EQ(ReasonOf(Ask("a").status()), error_reason::kModelNotFound);
  EXPECT_THAT(MessageOf(Ask("a").status()), HasSubstr("it was unloaded, LoadModel brings it back"));
  EXPECT_THAT(Load("a", 1).value(), ElementsAre(1)) << "the other one stays out";
  EXPECT_THAT(Load("a").value(), ElementsAre(1, 2));
}

TEST_P(ModelManagerTest, BrokenVersionsCanBeUnloadedToo) {
  support::TestModel broken = ModelOf(1);
  broken.weights.clear();
  Write("a", 1, broken);
  Start();
  EXPECT_EQ(InfoOf("a", 1).state, ModelState::kFailed);
  EXPECT_THAT(Unload("a").value(), ElementsAre(1));
  EXPECT_THAT(engine_->ListModels(), IsEmpty());
  EXPECT_THAT(observer_.states(), IsEmpty());
}

TEST_P(ModelManagerTest, NamesAreNotTrusted) {
  Write("a", 1, ModelOf(0));
  const support::TemporaryFolder outside;
  ModelOf(1).WriteTo(outside.path());
  Write(".hidden", 1, ModelOf(1));
  Start();
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), "../" + outside.path().filename().string(),
        outside.path().string(), std::string("a/../a"), std::string("a/"), std::string("/a"), std::string(".hidden"),
        std::string("a\0b", 3)}) {
    EXPECT_EQ(Load(name).status().code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(Unload(name, 1).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
  EXPECT_EQ(Load("a", -1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Unload("a", -1).status().code(), absl::StatusCode::kInvalidArgument);
  for (const std::string& name : {std::string("b"), std::string("A"), std::string("a "), std::string("a\\..\\a"),
                                  std::string(100'000, 'n'), std::string("\xff\n")}) {
    const absl::Status load = Load(name).status();
    EXPECT_EQ(load.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(ReasonOf(load), error_reason::kModelNotFound);
    EXPECT_THAT(MessageOf(load), HasSubstr("; there is a"));
    EXPECT_EQ(Unload(name).status().code(), absl::StatusCode::kNotFound);
  }
  const absl::Status no_version = Load("a", 9).status();
  EXPECT_EQ(no_version.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReasonOf(no_version), error_reason::kVersionNotFound);
  EXPECT_THAT(MessageOf(no_version), HasSubstr("has no version 9; there is 1"));
  EXPECT_THAT(Listed("a"), ElementsAre(1));
  EXPECT_THAT(engine_->ListModels(), SizeIs(1));
}

TEST_P(ModelManagerTest, AFolderWithoutAVersionIsNoModel) {
  Write("a", 1, ModelOf(0));
  std::filesystem::create_directories(root_.path() / "empty");
  Start();
  EXPECT_EQ(ReasonOf(Load("empty").status()), error_reason::kModelNotFound);
}

TEST_P(ModelManagerTest, ThePolicySaysWhichVersionsAreServed) {
  for (const int version : {1, 2, 3}) Write("a", version, ModelOf(version - 1));
  WriteConfig("a", "version_policy { latest: 2 }");
  Start();
  EXPECT_THAT(Listed("a"), ElementsAre(2, 3));
  Write("a", 4, ModelOf(0));
  EXPECT_THAT(Load("a").value(), ElementsAre(3, 4)) << "2 made way";
  WriteConfig("a", "version_policy { specific { versions: 3 versions: 1 } }");
  EXPECT_THAT(Load("a").value(), ElementsAre(1, 3));
  EXPECT_THAT(Answer("a"), Pair(3, 2));
  EXPECT_THAT(Load("a", 2).value(), ElementsAre(1, 2, 3)) << "by number, whatever the policy";
  EXPECT_THAT(Load("a").value(), ElementsAre(1, 2, 3)) << "and for good";
  EXPECT_THAT(Unload("a", 2).value(), ElementsAre(2));
  EXPECT_THAT(Load("a").value(), ElementsAre(1, 3));
  std::filesystem::remove(root_.path() / "a/config.textproto");
  EXPECT_THAT(Load("a").value(), ElementsAre(1, 2, 3, 4));
}

TEST_P(ModelManagerTest, AVersionThatThePolicyNamesAndNobodyCopiedIsAProblem) {
  Write("a", 1, ModelOf(1));
  WriteConfig("a", "version_policy { specific { versions: 1 versions: 7 } }");
  Start();
  EXPECT_THAT(Listed("a"), ElementsAre(1, 7));
  EXPECT_EQ(InfoOf("a", 7).state, ModelState::kFailed);
  EXPECT_THAT(InfoOf("a", 7).problems, ElementsAre("version_policy names it, and there is no such folder"));
  const absl::Status status = Load("a").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(MessageOf(status), HasSubstr("version 7 has 1 problem: version_policy names it"));
  EXPECT_THAT(Answer("a"), Pair(1, 1));
  Write("a", 7, ModelOf(2));
  WriteConfig("a", "version_policy { specific { versions: 1 versions: 7 } }");
  EXPECT_THAT(Load("a").value(), ElementsAre(1, 7));
  EXPECT_THAT(InfoOf("a", 7).problems, IsEmpty());
  Delete("a/7");
  EXPECT_FALSE(Load("a").ok());
  EXPECT_EQ(ReasonOf(Ask("a", 7).status()), error_reason::kModelFailed) << "its folder is gone, and so is it";
  WriteConfig("a", "version_policy { specific { versions: 1 } }");
  EXPECT_THAT(Load("a").value(), ElementsAre(1));
  EXPECT_THAT(Listed("a"), ElementsAre(1));
}

TEST_P(ModelManagerTest, NothingMakesWayForABrokenNewcomer) {
  Write("a", 1, ModelOf(1));
  WriteConfig("a", "version_policy { latest: 1 }");
  Start();
  support::TestModel broken = ModelOf(2);
  broken.weights.erase("head.bias");
  Write("a", 2, broken);
  EXPECT_EQ(ReasonOf(Load("a").status()), error_reason::kBadModel);
  EXPECT_THAT(Answer("a"), Pair(1, 1));
  Write("a", 2, ModelOf(2));
  EXPECT_THAT(Load("a").value(), ElementsAre(2));
  EXPECT_THAT(Listed("a"), ElementsAre(2));
}

TEST_P(ModelManagerTest, ABrokenConfigTakesNothingOutAndBringsNothingIn) {
  for (const int version : {1, 2, 3}) Write("a", version, ModelOf(version - 1));
  WriteConfig("a", "version_policy { latest: 1 }");
  Start();
  for (const std::string& config :
       {std::string("version_policy { latest: 0 }"), std::string("version_policy { specific {} }"),
        std::string("version_policy { specific { versions: -3 } }"), std::string("version_polic")}) {
    WriteConfig("a", config);
    const absl::Status status = Load("a").status();
    EXPECT_EQ(ReasonOf(status), error_reason::kBadModel) << config;
    EXPECT_THAT(MessageOf(status), HasSubstr("config.textproto")) << config;
    EXPECT_THAT(Listed("a"), ElementsAre(3)) << config;
    EXPECT_THAT(Answer("a"), Pair(3, 2));
  }
}

TEST_P(ModelManagerTest, WhatWasAcceptedIsAnsweredAfterTheUnloadAndThenTheWeightsAreFreed) {
  Write("a", 1, ModelOf(1));
  Write("b", 1, ModelOf(2));
  Start();
  const int64_t of_both = observer_.weight_bytes();
  ASSERT_GT(of_both, 0);
  absl::Notification may_go_on;
  absl::Notification is_held;
  // The only worker waits in the callback of the first answer, so the second task stays in the queue.
  engine_->Submit({.model = "b", .cloud = Cloud({0, 0, 0, 0}), .done = [&](absl::StatusOr<InferResult> result) {
                     EXPECT_TRUE(result.ok()) << result.status();
                     is_held.Notify();
                     may_go_on.WaitForNotification();
                   }});
  is_held.WaitForNotification();
  std::promise<absl::StatusOr<InferResult>> answer;
  engine_->Submit({.model = "a", .cloud = Cloud({0, 0, 0, 0}), .done = [&](absl::StatusOr<InferResult> result) {
                     answer.set_value(std::move(result));
                   }});
  EXPECT_THAT(Unload("a").value(), ElementsAre(1));
  EXPECT_EQ(Ask("a").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(observer_.weight_bytes(), of_both) << "the task that waits needs them";
  may_go_on.Notify();
  const absl::StatusOr<InferResult> result = answer.get_future().get();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->labels().at(0), 1);
  EXPECT_TRUE(observer_.AwaitWeightBytes(of_both / 2));
}

TEST_P(ModelManagerTest, AReloadFreesTheOldWeights) {
  Write("a", 1, ModelOf(0));
  Start();
  const int64_t bytes = observer_.weight_bytes();
  for (int i = 1; i <= 3; ++i) {
    Write("a", 1, ModelOf(i % 3));
    ASSERT_TRUE(Load("a").ok());
    EXPECT_TRUE(observer_.AwaitWeightBytes(bytes));
  }
  EXPECT_TRUE(Unload("a").ok());
  EXPECT_TRUE(observer_.AwaitWeightBytes(0));
}

TEST_P(ModelManagerTest, ASearchEndsWithTheVersionThatItIsFor) {
  Write("a", 1, ModelOf(0));
  Start();
  const auto tune = [&](std::promise<absl::Status>& end) {
    engine_->Tune({.model = "a", .max_wait = absl::InfiniteDuration(), .done = [&](absl::StatusOr<TuneResult> result) {
                     end.set_value(result.status());
                   }});
  };
  std::promise<absl::Status> of_replaced, of_unloaded;
  tune(of_replaced);
  Write("a", 1, ModelOf(1));
  EXPECT_TRUE(Load("a").ok());
  EXPECT_EQ(of_replaced.get_future().get().code(), absl::StatusCode::kCancelled);
  tune(of_unloaded);
  EXPECT_TRUE(Unload("a").ok());
  EXPECT_EQ(of_unloaded.get_future().get().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(observer_.AwaitWeightBytes(0));
}

TEST_P(ModelManagerTest, AnExceptionIsAProblemOfItsVersion) {
  Write("a", 1, ModelOf(0));
  Start();
  Write("a", 2, ModelOf(1));
  observer_.FailNextBuild("vector::_M_default_append");
  const absl::Status status = Load("a").status();
  EXPECT_EQ(ReasonOf(status), error_reason::kBadModel) << status;
  EXPECT_THAT(MessageOf(status), HasSubstr("version 2 has 1 problem: it failed with \"vector::_M_default_append\""));
  EXPECT_THAT(InfoOf("a", 2).problems, SizeIs(1));
  EXPECT_THAT(Answer("a"), Pair(1, 0));
  EXPECT_THAT(Load("a").value(), ElementsAre(1, 2));
}

TEST_P(ModelManagerTest, AnExceptionBesideALoadIsSurvived) {
  const auto fail = [] { throw std::length_error("odd"); };
  Write("a", 1, ModelOf(0));
  observer_.CallAtNextState(fail);  // in the constructor
  Start();
  EXPECT_THAT(Answer("a"), Pair(1, 0));
  Write("b", 1, ModelOf(1));
  observer_.CallAtNextState(fail);
  const absl::Status status = Load("b").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(MessageOf(status), HasSubstr("odd"));
  EXPECT_THAT(Load("b").value(), ElementsAre(1));
  EXPECT_THAT(Answer("b"), Pair(1, 1));
}

TEST_P(ModelManagerTest, OfManyBrokenVersionsTheErrorNamesTheFirst) {
  Write("a", 1, ModelOf(0));
  Start();
  for (int64_t version = 2; version <= 16; ++version) {
    support::WriteFile(root_.path() / "a" / std::to_string(version) / "model.textproto", "nodes {}");
  }
  const std::string message = MessageOf(Load("a").status());
  EXPECT_THAT(message, HasSubstr("version 11 has "));
  EXPECT_THAT(message, ::testing::EndsWith("; and 5 more versions have problems"));
}

TEST_P(ModelManagerTest, ALoadEndsWhenLoadingStops) {
  Write("a", 1, ModelOf(0));
  Start();
  Write("b", 1, ModelOf(1));
  observer_.CallAtNextState([this] { engine_->StopLoading(); });  // while "b" is loaded
  EXPECT_EQ(ReasonOf(Load("b").status()), error_reason::kDraining);
  EXPECT_THAT(InfoOf("b", 1).problems, IsEmpty()) << "that is no problem of the version";
  EXPECT_EQ(ReasonOf(Load("b").status()), error_reason::kDraining);
  EXPECT_THAT(Answer("a"), Pair(1, 0)) << "what serves still does";
  engine_->Drain();
}

TEST_P(ModelManagerTest, NothingIsLoadedOrUnloadedAfterADrain) {
  Write("a", 1, ModelOf(0));
  Start();
  engine_->Drain();
  Write("b", 1, ModelOf(0));
  for (const absl::Status& status : {Load("b").status(), Unload("a").status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(ReasonOf(status), error_reason::kDraining);
  }
  EXPECT_THAT(Listed("a"), ElementsAre(1));
}

TEST_P(ModelManagerTest, CallsThatWaitAreBoundedAndADrainEndsThem) {
  Write("a", 1, ModelOf(0));
  Start();
  absl::Notification is_held, may_go_on;
  engine_->Load({.model = "a", .done = [&](absl::StatusOr<Versions> versions) {
                   EXPECT_TRUE(versions.ok());
                   is_held.Notify();
                   may_go_on.WaitForNotification();
                 }});
  is_held.WaitForNotification();
  std::atomic<int> num_cancelled{0};
  for (int i = 0; i < ModelManager::kMaxWaitingJobs; ++i) {
    const auto done = [&](absl::StatusOr<Versions> versions) {
      num_cancelled += ReasonOf(versions.status()) == error_reason::kDraining ? 1 : 0;
    };
    if (i % 2 == 0) {
      engine_->Load({.model = "a", .done = done});
    } else {
      engine_->Unload({.model = "a", .done = done});
    }
  }
  const absl::Status full = Load("a").status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(full), error_reason::kQueueFull);
  EXPECT_EQ(num_cancelled, 0);
  std::thread drain([&] { engine_->Drain(); });
  // From some moment of the drain on, new calls are refused. Calls that wait are answered when the drain ends.
  EXPECT_TRUE(support::AwaitTrue([&] { return ReasonOf(Load("a").status()) == error_reason::kDraining; }));
  may_go_on.Notify();
  drain.join();
  EXPECT_EQ(num_cancelled, ModelManager::kMaxWaitingJobs);
  EXPECT_THAT(Listed("a"), ElementsAre(1)) << "nothing was unloaded";
}

}  // namespace
}  // namespace voxserve::model_manager_test
