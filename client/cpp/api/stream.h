#pragma once

// One vehicle's frames: each is sent when it is taken, and answered when it is ready.
//
//   auto stream = client->OpenStream({.model = "minkunet"}, {
//       .on_result = [](FrameOutcome frame) { if (frame.result.ok()) Use(frame.frame_id, *frame.result); },
//       .on_going_away = [] { ... },                   // connect to another server
//       .on_end = [](absl::Status status) { ... }});
//   (*stream)->Send(frame_id, std::move(cloud));       // at 10 Hz, say
//
// Frames may come faster than the link or the server takes them. Under LATEST a newer frame then supersedes an older
// one, here as at the server, so that answers are to the newest scan and no lag builds up. Under QUEUE all are
// answered, in order, and Send refuses what does not fit. See StreamConfig in proto/voxserve/v1/inference.proto.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cpp/api/detections.h"
#include "client/cpp/api/farthest_points.h"
#include "client/cpp/api/point_cloud.h"
#include "client/cpp/api/segmentation.h"

namespace voxserve::client {

enum class StreamPolicy { kLatest, kQueue };

// Single sweeps for a model that wants several at once: the server keeps the last ones and runs them together. Each
// frame has a pose and its cloud a stamp then. Under LATEST, a frame that is superseded before it is sent is missing
// from the accumulated sweeps.
struct SweepOptions {
  int num_sweeps = 1;                          // with the newest, 1 to 64
  std::string age_feature = {};                // the model's feature that is a point's age in s; "" where none is
  std::optional<absl::Duration> max_age = {};  // up to 60 s; older sweeps are dropped; absent: 2 s
};

struct StreamOptions {
  std::string model = {};      // required
  int64_t version = 0;         // 0: the newest that is ready
  bool return_scores = false;  // logits per point and class as well; not of boxes
  uint32_t priority = 0;       // 0 is the most urgent
  StreamPolicy policy = StreamPolicy::kLatest;
  std::optional<absl::Duration> frame_timeout = {};   // from a frame's arrival at the server; absent: the model's
  int max_queued_frames = 0;                          // of QUEUE, at the server, 1 to 64; 0: its default
  int max_unsent_frames = 8;                          // of QUEUE, here; LATEST holds one
  std::optional<SweepOptions> sweeps = {};            // absent: each frame is a whole scan
  std::optional<FarthestPoints> sample = {};          // of every frame's points; not beside sweeps
  WantedTensors tensors = {};                         // of every frame; for Answer::tensors
  absl::Duration timeout = absl::InfiniteDuration();  // of the whole stream

  // INVALID_ARGUMENT naming the option.
  absl::Status Validate() const;
};

// Of the cloud's coordinates in a frame that stands still: p_world = rotation * p_cloud + (x, y, z).
struct Pose {
  double x = 0, y = 0, z = 0;             // metres
  double qw = 1, qx = 0, qy = 0, qz = 0;  // a quaternion; the server normalises it
};

struct FrameOptions {
  std::optional<Pose> pose = {};  // required where sweeps accumulate
  bool reset_sweeps = false;      // forget those before this one: after a jump of the pose, say
};

// Result: Segmentation or Detections.
template <typename Result>
struct FrameOutcomeOf {
  uint64_t frame_id = 0;
  // Errors are those of Infer and Detect, and ABORTED with reason SUPERSEDED; a frame that the stream's end left
  // unanswered gets the stream's error. round_trip is from Send.
  absl::StatusOr<Result> result;
  int num_sweeps = 0;  // that were run together; 0 where none accumulate
};

// Called one at a time, on threads of gRPC's, never within a call of Stream's. They must not block or destroy the
// stream; they may Send and Cancel. Empty ones are not called.
template <typename Result>
struct StreamCallbacksOf {
  // Exactly once for each frame that Send accepted, before on_end.
  std::function<void(FrameOutcomeOf<Result>)> on_result = {};
  // At most once: the server is about to end. It answers the frames that it has.
  std::function<void()> on_going_away = {};
  // Exactly once, last. OK after CloseSends and all answers; CANCELLED after Cancel; UNAVAILABLE with reason DRAINING
  // from a server that ended; INTERNAL with MALFORMED_RESPONSE for answers to what was not asked; else as Infer.
  std::function<void(absl::Status)> on_end = {};
};

using FrameOutcome = FrameOutcomeOf<Segmentation>;
using StreamCallbacks = StreamCallbacksOf<Segmentation>;
using DetectionFrameOutcome = FrameOutcomeOf<Detections>;
using DetectionStreamCallbacks = StreamCallbacksOf<Detections>;

class StreamCall;

// Thread-safe. Made by Client::OpenStream and OpenDetectionStream.
class Stream {
 public:
  // Cancels, and waits until on_end has returned, so it may not run in a callback.
  ~Stream();

  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Never blocks; encodes the frame (one copy). OK: on_result will tell. Errors, after which on_result will not:
  // RESOURCE_EXHAUSTED with MESSAGE_TOO_LARGE, or with TOO_MANY_UNSENT (QUEUE alone); INVALID_ARGUMENT with
  // DUPLICATE_FRAME while a frame of this id waits for its answer, or for a frame without the pose that sweeps need;
  // FAILED_PRECONDITION with STREAM_ENDED after CloseSends or the end; UNAVAILABLE with DRAINING after on_going_away.
  absl::Status Send(uint64_t frame_id, const PointCloud& cloud, const FrameOptions& options = {});

  // No more frames: the server answers those that it gets, then ends the stream.
  void CloseSends();

  // Ends the stream now.
  void Cancel();

 private:
  friend class Client;
  explicit Stream(std::unique_ptr<StreamCall> call);

  const std::unique_ptr<StreamCall> call_;
};

}  // namespace voxserve::client
