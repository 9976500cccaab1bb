// Tests an engine that serves a float version and an 8-bit version of one model, on the CPU, and what the log says
// about versions that have a config of their own.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "engine/serving/admission/engine_observer.h"
#include "tests/engine/serving/test_engine.h"
#include "tests/support/model_folder.h"

namespace voxserve::precisions_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Answer = absl::StatusOr<InferResult>;

constexpr char kInt8Config[] = "precision: PRECISION_INT8";
// Roughly the largest magnitudes of the clouds below, over 127.
const std::map<std::string, float> kScales = {{"voxels", 0.05f}, {"conv", 2}, {"relu", 2}, {"down", 8}, {"sum", 16}};

class Observer final : public EngineObserver {
 public:
  void OnBatch(std::string_view /*model*/, int64_t requests, int64_t /*points*/, int64_t /*voxels*/) override {
    absl::MutexLock lock(&mutex_);
    batches_.push_back(requests);
  }
  void OnPrediction(std::string_view model, absl::Duration /*predicted*/, absl::Duration /*actual*/) override {
    absl::MutexLock lock(&mutex_);
    num_predictions_ += model == "m" ? 1 : 0;
  }
  // Returns the requests of each batch so far.
  std::vector<int64_t> batches() {
    absl::MutexLock lock(&mutex_);
    return batches_;
  }
  int num_predictions() {  // of the model "m"
    absl::MutexLock lock(&mutex_);
    return num_predictions_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<int64_t> batches_ ABSL_GUARDED_BY(mutex_);
  int num_predictions_ ABSL_GUARDED_BY(mutex_) = 0;
};

class PrecisionsTest : public ::testing::Test {
 protected:
  // Writes a version of the model "m". config: its own; "": none.
  void Write(int64_t version, const std::string& config) const {
    support::TestModel model = support::SmallModel();
    if (config == kInt8Config) {
      for (const auto& [node, scale] : kScales) model.weights[node + ".scale"] = support::FloatTensor({1}, {scale});
    }
    model.WriteTo(folder_.path() / "m", version);
    if (!config.empty()) {
      support::WriteFile(folder_.path() / "m" / std::to_string(version) / "config.textproto", config);
    }
  }
  void WriteConfig(const std::string& text) const { support::WriteFile(folder_.path() / "m/config.textproto", text); }
  void Start() {
    engine_ = MakeEngine({.model_repository = folder_.path().string(),
                          .num_threads = 2,
                          .devices = "cpu",
                          .streams_per_device = 1,
                          .observer = &observer_});
  }
  // Starts the engine, and returns what it logs until it has loaded.
  std::string LogOfStart() {
    ::testing::internal::CaptureStderr();
    Start();
    return ::testing::internal::GetCapturedStderr();
  }
  void Load() {
    std::promise<absl::StatusOr<std::vector<int64_t>>> answer;
    engine_->Load({.model = "m", .done = [&](absl::StatusOr<std::vector<int64_t>> versions) {
                     answer.set_value(std::move(versions));
                   }});
    const auto versions = answer.get_future().get();
    EXPECT_TRUE(versions.ok()) << versions.status();
  }

  // Returns how many batches of "m" that have answered had a prediction.
  int NumPredictions() {
    // The only worker reports a batch after its answers, and before it takes the next one.
    InferTask task = Task(0);
    task.model = "other";
    EXPECT_TRUE(Infer(*engine_, std::move(task)).ok());
    return observer_.num_predictions();
  }

  static InferTask Task(int64_t version, float shift = 0) {
    std::vector<float> points;
    for (int i = 0; i < 200; ++i) {
      points.insert(points.end(), {shift + 0.1f * static_cast<float>(i % 37), 0.1f * static_cast<float>(i / 37),
                                   0.2f * static_cast<float>(i % 7), 0.5f * static_cast<float>(i % 5)});
    }
    return {.model = "m", .version = version, .cloud = Cloud(points), .return_scores = true};
  }
  InferResult Ask(int64_t version, float shift = 0) {
    const Answer answer = Infer(*engine_, Task(version, shift));
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? *answer : InferResult();
  }
  // Returns the answers of one batch with a request for each shift.
  std::vector<InferResult> AskTogether(int64_t version, const std::vector<float>& shifts) {
    absl::Notification is_held, may_go_on;
    InferTask first = Task(version);
    first.done = [&](const Answer& /*answer*/) {  // the only worker waits here
      is_held.Notify();
      may_go_on.WaitForNotification();
    };
    engine_->Submit(std::move(first));
    is_held.WaitForNotification();
    std::vector<std::promise<Answer>> answers(shifts.size());
    for (size_t i = 0; i < shifts.size(); ++i) {
      InferTask task = Task(version, shifts[i]);
      task.done = [&answers, i](Answer answer) { answers[i].set_value(std::move(answer)); };
      engine_->Submit(std::move(task));
    }
    may_go_on.Notify();
    std::vector<InferResult> results;
    for (std::promise<Answer>& promise : answers) {
      const Answer answer = promise.get_future().get();
      EXPECT_TRUE(answer.ok()) << answer.status();
      results.push_back(answer.value_or(InferResult()));
    }
    return results;
  }
  static void ExpectSameOutputs(const InferResult& a, const InferResult& b) {
    ASSERT_EQ(a.outputs.size(), 2U) << "labels and scores";
    ASSERT_EQ(b.outputs.size(), 2U);
    for (size_t i = 0; i < a.outputs.size(); ++i) {
      EXPECT_FALSE(a.outputs[i].bytes.empty());
      EXPECT_TRUE(a.outputs[i].bytes == b.outputs[i].bytes) << a.outputs[i].name;
    }
  }

  const support::TemporaryFolder folder_;
  Observer observer_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(PrecisionsTest, AFloatVersionAndOneIn8BitsAnswerSideBySide) {
  Write(1, "");
  Write(2, kInt8Config);
  Start();
  std::vector<int64_t> listed;
  for (const ModelVersionInfo& info : engine_->ListModels()) listed.push_back(info.version);
  EXPECT_THAT(listed, ElementsAre(1, 2));
  for (const int64_t version : {1, 2}) {
    const absl::StatusOr<ModelVersionInfo> info = engine_->GetModel("m", version);
    ASSERT_TRUE(info.ok()) << info.status();
    EXPECT_EQ(info->state, ModelState::kReady);
    EXPECT_EQ(Ask(version).version, version);
  }
  EXPECT_EQ(Ask(0).version, 2) << "the newest";
  ExpectSameOutputs(Ask(0), Ask(2));
  // The versions differ in nothing but the rounding.
  const InferResult in_float = Ask(1), in_8_bits = Ask(2);
  ASSERT_EQ(in_float.scores().size(), 600U);
  ASSERT_EQ(in_8_bits.scores().size(), 600U);
  EXPECT_FALSE(in_float.Find(NamedOutput::kScores)->bytes == in_8_bits.Find(NamedOutput::kScores)->bytes);
  float largest = 0, difference = 0;
  for (size_t i = 0; i < 600; ++i) {
    largest = std::max(largest, std::abs(in_float.scores()[i]));
    difference = std::max(difference, std::abs(in_8_bits.scores()[i] - in_float.scores()[i]));
  }
  EXPECT_LT(difference, 0.1f * largest);
}

TEST_F(PrecisionsTest, ABatchIn8BitsHasTheBytesOfItsRequestsAlone) {
  Write(1, "");
  Write(2, kInt8Config);
  Start();
  const InferResult a = Ask(2, 0), b = Ask(2, 1.7f);
  const std::vector<InferResult> both = AskTogether(2, {0, 1.7f});
  EXPECT_EQ(observer_.batches().back(), 2) << "they ran together";
  ExpectSameOutputs(both[0], a);
  ExpectSameOutputs(both[1], b);
  for (const InferResult& result : AskTogether(1, {0, 1.7f})) EXPECT_EQ(result.version, 1);
}

TEST_F(PrecisionsTest, PredictionsAreTakenOverFromAVersionOfTheSamePrecisionOnly) {
  Write(1, "");
  support::SmallModel().WriteTo(folder_.path() / "other");
  Start();
  for (int i = 0; i < 50 && NumPredictions() == 0; ++i) Ask(1);
  const int before = NumPredictions();
  ASSERT_GT(before, 0) << "the float version has learned";
  Write(2, kInt8Config);
  Load();
  EXPECT_EQ(Ask(2).version, 2);
  EXPECT_EQ(NumPredictions(), before) << "float32's time says nothing about 8 bits";
  Write(3, "");
  Load();
  EXPECT_EQ(Ask(3).version, 3);
  EXPECT_EQ(NumPredictions(), before + 1) << "version 1 has taught version 3, though 2 is newer";
}

TEST_F(PrecisionsTest, TheLogNamesThePrecisionAndAVersionsOwnConfig) {
  Write(1, "");
  Write(2, kInt8Config);
  std::istringstream log(LogOfStart());
  std::vector<std::string> ready;
  for (std::string line; std::getline(log, line);) {
    if (line.find("model ready") != std::string::npos) ready.push_back(line);
  }
  ASSERT_EQ(ready.size(), 2U) << log.str();
  EXPECT_THAT(ready[0], HasSubstr("version=1 precision=float32 "));
  EXPECT_THAT(ready[0], Not(HasSubstr("config=")));
  EXPECT_THAT(ready[1], HasSubstr("version=2 precision=int8 config=2/config.textproto "));
}

TEST_F(PrecisionsTest, AConfigThatNoVersionIsLoadedByIsCheckedNevertheless) {
  Write(1, "max_points: 500");
  Write(2, kInt8Config);
  WriteConfig("version_polici { latest: 1 }");
  const std::string log = LogOfStart();
  const size_t first = log.find("model's config broken");
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_THAT(log, HasSubstr("version_polici"));
  EXPECT_EQ(log.find("model's config broken", first + 1), std::string::npos) << "told once: " << log;
  EXPECT_THAT(log, Not(HasSubstr("model broken")));
  EXPECT_EQ(Ask(1).version, 1) << "without a policy, all versions are served";
}

TEST_F(PrecisionsTest, AConfigThatAVersionIsLoadedByIsToldByItsLoad) {
  Write(1, "");
  Write(2, kInt8Config);
  WriteConfig("version_polici { latest: 1 }");
  const std::string log = LogOfStart();
  EXPECT_THAT(log, HasSubstr("model broken"));
  EXPECT_THAT(log, Not(HasSubstr("model's config broken")));
}

}  // namespace
}  // namespace voxserve::precisions_test
