#pragma once

// StreamSessionTest is the fixture of the tests of StreamSession. The session submits its frames to a ManualEngine and
// reads a clock that the test sets. The number of a frame's points identifies the frame.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/serving/admission/engine_observer.h"
#include "engine/serving/streams/stream_session.h"

namespace voxserve {

inline const absl::Time kStart = absl::FromUnixSeconds(1'700'000'000);

// Returns a cloud of num_points points with the fields x, y and z.
inline PointCloud CloudOf(uint64_t num_points) {
  const std::vector<float> points(num_points * 3, 1.0f);
  return *PointCloud::FromFloats({"x", "y", "z"}, points.data(), num_points);
}

// Holds tasks until the test starts and ends them. The methods with `points` mean the task whose cloud has this number
// of points.
class ManualEngine {
 public:
  uint64_t Submit(InferTask task) {
    const uint64_t ticket = next_ticket_++;
    if (on_submit) std::exchange(on_submit, nullptr)();
    if (!refuse_next.ok()) {
      task.done(std::exchange(refuse_next, absl::OkStatus()));
    } else {
      tasks_.push_back({ticket, std::move(task), false});
    }
    return ticket;
  }

  bool Cancel(uint64_t ticket) {
    const auto found = std::find_if(tasks_.begin(), tasks_.end(), [&](const Task& t) { return t.ticket == ticket; });
    if (found == tasks_.end() || found->is_running) return false;
    InferTask task = std::move(found->task);
    tasks_.erase(found);
    task.done(cancel_answer);
    return true;
  }

  void Start(uint64_t points) { Find(points).is_running = true; }

  void End(uint64_t points, absl::StatusOr<InferResult> result) {
    Task& found = Find(points);
    InferTask task = std::move(found.task);
    tasks_.erase(tasks_.begin() + (&found - tasks_.data()));
    task.done(std::move(result));
  }
  // Ends the frame with this number of points. The result has the number as its version.
  void End(uint64_t points) {
    InferResult result;
    result.version = static_cast<int64_t>(points);
    result.stages = {{Stage::kQueue, absl::Milliseconds(1)}, {Stage::kFeatures, absl::Milliseconds(2)}};
    End(points, std::move(result));
  }

  const InferTask& task(uint64_t points) { return Find(points).task; }

  std::vector<uint64_t> queued() const { return PointsOf(false); }
  std::vector<uint64_t> running() const { return PointsOf(true); }

  // If not OK, the next Submit refuses its task with this error.
  absl::Status refuse_next;
  absl::Status cancel_answer = WithReason(absl::CancelledError("cancelled"), error_reason::kCancelled);
  std::function<void()> on_submit;  // the next Submit calls it, and later ones do not

 private:
  struct Task {
    uint64_t ticket = 0;
    InferTask task;
    bool is_running = false;
  };

  Task& Find(uint64_t points) {
    const auto found =
        std::find_if(tasks_.begin(), tasks_.end(), [&](const Task& t) { return t.task.cloud.num_points() == points; });
    if (found == tasks_.end()) ADD_FAILURE() << "the engine has no frame of " << points << " points";
    return *found;
  }

  std::vector<uint64_t> PointsOf(bool is_running) const {
    std::vector<uint64_t> points;
    for (const Task& task : tasks_) {
      if (task.is_running == is_running) points.push_back(task.task.cloud.num_points());
    }
    return points;
  }

  std::vector<Task> tasks_;
  uint64_t next_ticket_ = 1;
};

class DropCounter final : public EngineObserver {
 public:
  void OnDropped(std::string_view model, DropReason reason) override {
    ++drops[absl::StrCat(std::string(model), " ", std::string(NameOf(reason)))];
  }

  std::map<std::string, int> drops;
};

class StreamSessionTest : public testing::Test {
 protected:
  std::shared_ptr<StreamSession> Open(StreamSession::Config config) {
    config.model = "m";
    return StreamSession::Create(std::move(config),
                                 {.submit = [this](InferTask task) { return engine_.Submit(std::move(task)); },
                                  .cancel =
                                      [this](uint64_t ticket, DropReason reason) {
                                        if (!engine_.Cancel(ticket)) return false;
                                        if (absl::IsCancelled(engine_.cancel_answer)) observer_.OnDropped("m", reason);
                                        return true;
                                      },
                                  .observer = &observer_,
                                  .now = [this] { return now_; }});
  }
  void OpenLatest() { session_ = Open({}); }
  void OpenQueue(int max_queued_frames = 4) {
    session_ = Open({.policy = StreamPolicy::kQueue, .max_queued_frames = max_queued_frames});
  }
  void OpenSweeps(int num_sweeps) {
    session_ = Open({.sweeps = SweepHistory::Options{.num_sweeps = num_sweeps}, .age_feature = "age"});
  }

  StreamFrame FrameOf(uint64_t points) {
    StreamFrame frame;
    frame.cloud = CloudOf(points);
    frame.done = [this, points](absl::StatusOr<InferResult> result, int num_sweeps) {
      EXPECT_FALSE(answers_.contains(points)) << points << " was answered before";
      answers_.emplace(points, std::move(result));
      num_sweeps_[points] = num_sweeps;
      order_.push_back(points);
    };
    return frame;
  }
  StreamFrame SweepOf(uint64_t points, double seconds) {
    StreamFrame frame = FrameOf(points);
    frame.pose = Pose{.x = seconds};
    frame.stamp = kStart + absl::Seconds(seconds);
    return frame;
  }

  void Push(uint64_t points) { session_->Push(FrameOf(points)); }

  // Returns "OK" or the reason of the frame's answer, or "" if it has no answer.
  std::string AnswerTo(uint64_t points) const {
    const auto found = answers_.find(points);
    if (found == answers_.end()) return "";
    if (!found->second.ok()) return ReasonOf(found->second.status());
    EXPECT_EQ(found->second->version, static_cast<int64_t>(points)) << "another frame's answer";
    return "OK";
  }

  absl::Time now_ = kStart;
  ManualEngine engine_;
  DropCounter observer_;
  std::map<uint64_t, absl::StatusOr<InferResult>> answers_;
  std::map<uint64_t, int> num_sweeps_;
  std::vector<uint64_t> order_;
  std::shared_ptr<StreamSession> session_;
};

}  // namespace voxserve
