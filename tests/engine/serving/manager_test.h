#pragma once

// ManagerTest is the fixture of tests that change a model repository while an engine serves its models. ModelManager
// then loads and unloads versions. A model of these tests gives every point the same label, so an answer shows from
// which files the model was loaded.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/serving/admission/engine_observer.h"
#include "engine/serving/engine.h"
#include "tests/engine/serving/test_engine.h"
#include "tests/support/model_folder.h"
#include "tests/support/test_device.h"

namespace voxserve {

// Returns SmallModel with a bias that makes it answer `label` (0 to 2) for every point. Another `variant` gives other
// weights and so another digest, but the same labels.
inline support::TestModel ModelOf(int label, float variant = 0) {
  support::TestModel model = support::SmallModel();
  std::vector<float> bias = {0, 0, 0};
  bias[static_cast<size_t>(label)] = 10'000;
  model.weights["head.bias"] = support::FloatTensor({3}, bias);
  model.weights["conv.bias"] = support::FloatTensor({4}, {variant, 0, 0, 0});
  return model;
}

// Records what the model manager reports. Thread-safe. The Await... methods return false after a minute.
class ManagerObserver final : public EngineObserver {
 public:
  void OnModelState(std::string_view model, int64_t version, bool ready) override {
    std::function<void()> call;
    {
      absl::MutexLock lock(&mutex_);
      states_[{std::string(model), version}] = ready;
      call.swap(at_next_state_);
    }
    if (call) call();
  }
  // Calls `call` on the manager's thread when the next version begins to load or becomes ready.
  void CallAtNextState(std::function<void()> call) {
    absl::MutexLock lock(&mutex_);
    at_next_state_ = std::move(call);
  }
  void OnModelRemoved(std::string_view model, int64_t version) override {
    absl::MutexLock lock(&mutex_);
    const auto state = states_.find({std::string(model), version});
    EXPECT_TRUE(state != states_.end() && !state->second) << model << " " << version;
    if (state != states_.end()) states_.erase(state);
  }
  void OnPlanLookup(bool) override {
    absl::MutexLock lock(&mutex_);
    ++num_builds_;
    if (!exception_.empty()) throw std::length_error(std::exchange(exception_, ""));
    if (num_builds_without_memory_ > 0) {
      --num_builds_without_memory_;
      throw std::bad_alloc();
    }
  }
  // Makes the next num_builds builds of a version fail as if the host had no memory: OnPlanLookup, which every build
  // calls, throws std::bad_alloc.
  void TakeMemoryFrom(int num_builds) {
    absl::MutexLock lock(&mutex_);
    num_builds_without_memory_ = num_builds;
  }
  // Makes the next build of a version fail with an exception other than std::bad_alloc.
  void FailNextBuild(const std::string& what) {
    absl::MutexLock lock(&mutex_);
    exception_ = what;
  }
  void OnDeviceMemory(std::string_view, std::string_view kind, int64_t bytes) override {
    absl::MutexLock lock(&mutex_);
    if (kind == "weights") weight_bytes_ = bytes;
  }

  using States = std::map<std::pair<std::string, int64_t>, bool>;
  States states() {
    absl::MutexLock lock(&mutex_);
    return states_;
  }
  // Returns how often a version was built from its files, also if it never answered requests.
  int num_builds() {
    absl::MutexLock lock(&mutex_);
    return num_builds_;
  }
  int64_t weight_bytes() {
    absl::MutexLock lock(&mutex_);
    return weight_bytes_;
  }
  bool AwaitWeightBytes(int64_t bytes) {
    absl::MutexLock lock(&mutex_);
    const auto is_there = [&] { return weight_bytes_ == bytes; };
    return mutex_.AwaitWithTimeout(absl::Condition(&is_there), absl::Seconds(60));
  }
  bool AwaitState(const std::string& model, int64_t version, bool ready) {
    absl::MutexLock lock(&mutex_);
    const auto is_so = [&] {
      const auto state = states_.find({model, version});
      return state != states_.end() && state->second == ready;
    };
    return mutex_.AwaitWithTimeout(absl::Condition(&is_so), absl::Seconds(60));
  }
  bool AwaitGone(const std::string& model, int64_t version) {
    absl::MutexLock lock(&mutex_);
    const auto is_gone = [&] { return states_.count({model, version}) == 0; };
    return mutex_.AwaitWithTimeout(absl::Condition(&is_gone), absl::Seconds(60));
  }
  bool AwaitBuilds(int at_least) {
    absl::MutexLock lock(&mutex_);
    const auto are_there = [&] { return num_builds_ >= at_least; };
    return mutex_.AwaitWithTimeout(absl::Condition(&are_there), absl::Seconds(60));
  }

 private:
  absl::Mutex mutex_;
  States states_ ABSL_GUARDED_BY(mutex_);
  int num_builds_ ABSL_GUARDED_BY(mutex_) = 0;
  int num_builds_without_memory_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string exception_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> at_next_state_ ABSL_GUARDED_BY(mutex_);
  int64_t weight_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

class ManagerTest : public ::testing::TestWithParam<support::Device> {
 protected:
  using Versions = std::vector<int64_t>;

  void SetUp() override { SKIP_WITHOUT(GetParam()); }

  void Start(absl::Duration poll_interval = absl::ZeroDuration()) {
    engine_ = MakeEngine({.model_repository = root_.path().string(),
                          .num_threads = 2,
                          .devices = GetParam() == support::Device::kCpu ? "cpu" : "cuda:0",
                          .streams_per_device = 1,
                          .model_poll_interval = poll_interval,
                          .observer = &observer_});
  }

  void Write(const std::string& name, int64_t version, const support::TestModel& model) {
    model.WriteTo(root_.path() / name, version);
  }
  // Moves a version into the repository in one step, as a careful operator does. The manager therefore never sees only
  // some of the version's files.
  void MoveIn(const std::string& name, int64_t version, const support::TestModel& model) {
    const support::TemporaryFolder outside;
    model.WriteTo(outside.path(), version);
    std::filesystem::create_directories(root_.path() / name);
    std::filesystem::copy(outside.path() / std::to_string(version), root_.path() / name / ".coming",
                          std::filesystem::copy_options::recursive);
    std::filesystem::rename(root_.path() / name / ".coming", root_.path() / name / std::to_string(version));
  }
  void WriteConfig(const std::string& name, const std::string& text) {
    support::WriteFile(root_.path() / name / "config.textproto", text);
  }
  void Delete(const std::string& path) { std::filesystem::remove_all(root_.path() / path); }

  absl::StatusOr<Versions> Load(const std::string& name, int64_t version = 0) {
    std::promise<absl::StatusOr<Versions>> answer;
    engine_->Load({.model = name, .version = version, .done = [&](absl::StatusOr<Versions> versions) {
                     answer.set_value(std::move(versions));
                   }});
    return answer.get_future().get();
  }
  absl::StatusOr<Versions> Unload(const std::string& name, int64_t version = 0) {
    std::promise<absl::StatusOr<Versions>> answer;
    engine_->Unload({.model = name, .version = version, .done = [&](absl::StatusOr<Versions> versions) {
                       answer.set_value(std::move(versions));
                     }});
    return answer.get_future().get();
  }

  absl::StatusOr<InferResult> Ask(const std::string& name, int64_t version = 0) {
    return Infer(*engine_, {.model = name, .version = version, .cloud = Cloud({0.1f, 0.1f, 0.1f, 0.5f})});
  }
  // Returns {version, label}. If the request is refused, the test fails and the result is {-1, -1}.
  std::pair<int64_t, int> Answer(const std::string& name, int64_t version = 0) {
    const absl::StatusOr<InferResult> result = Ask(name, version);
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return {-1, -1};
    return {result->version, result->labels().at(0)};
  }
  ModelVersionInfo InfoOf(const std::string& name, int64_t version) {
    const absl::StatusOr<ModelVersionInfo> info = engine_->GetModel(name, version);
    EXPECT_TRUE(info.ok()) << info.status();
    return info.value_or(ModelVersionInfo());
  }
  // Returns the versions of the model that ListModels lists, in any state.
  Versions Listed(const std::string& name) {
    Versions versions;
    for (const ModelVersionInfo& info : engine_->ListModels()) {
      if (info.name == name) versions.push_back(info.version);
    }
    return versions;
  }

  const support::TemporaryFolder root_;
  ManagerObserver observer_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace voxserve
