#pragma once

// Stream sends one vehicle's frames and receives their answers.
//
//   auto stream = client->OpenStream({.model = "minkunet"}, {
//       .on_result = [](FrameOutcome frame) { if (frame.result.ok()) Use(frame.frame_id, *frame.result); },
//       .on_going_away = [] { ... },                   // connect to another server
//       .on_end = [](absl::Status status) { ... }});
//   (*stream)->Send(frame_id, std::move(cloud));       // at 10 Hz, say
//
// Frames may come faster than the link or the server takes them. Under LATEST a newer frame then supersedes an older
// one, in the client as in the server, so that answers are for the newest scan and no lag builds up. Under QUEUE all
// frames are answered, in order, and Send refuses frames beyond its limit. See StreamConfig in
// proto/voxserve/v1/inference.proto.
//
// With reopen_for a stream outlives its server: when the connection breaks or the server goes away, it is opened again,
// and frames without a result are sent again. Each frame still gets exactly one result.

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

// Options for a model that takes several sweeps at once: the client sends single sweeps, and the server keeps the last
// ones and runs them together. Each frame must have a pose, and its cloud a stamp. Under LATEST, a frame that is
// superseded before it is sent is missing from the accumulated sweeps.
struct SweepOptions {
  int num_sweeps = 1;                          // the newest included, 1 to 64
  std::string age_feature = {};                // the model's feature for a point's age in s; "" if it has none
  std::optional<absl::Duration> max_age = {};  // up to 60 s; older sweeps are dropped; absent: 2 s
};

struct StreamOptions {
  std::string model = {};      // required
  int64_t version = 0;         // 0: the newest that is ready
  bool return_scores = false;  // also logits per point and class; not for boxes
  uint32_t priority = 0;       // 0 is the most urgent
  StreamPolicy policy = StreamPolicy::kLatest;
  std::optional<absl::Duration> frame_timeout = {};   // from a frame's arrival at the server; absent: the model's
  int max_queued_frames = 0;                          // for QUEUE: limit at the server, 1 to 64; 0: its default
  int max_unsent_frames = 8;                          // for QUEUE: limit in the client; LATEST keeps one
  std::optional<SweepOptions> sweeps = {};            // absent: each frame is a whole scan
  std::optional<FarthestPoints> sample = {};          // a sample of every frame's points; not together with sweeps
  WantedTensors tensors = {};                         // for every frame; returned in Answer::tensors
  absl::Duration timeout = absl::InfiniteDuration();  // for the whole stream
  // For so long a stream whose server is UNAVAILABLE looks for one that takes it; 0: it ends. The next server gets the
  // config and the frames without a result: under QUEUE all, under LATEST the newest, and the others are superseded.
  // Sweeps begin anew (num_sweeps). A frame that three broken connections had under way gets their error.
  absl::Duration reopen_for = absl::ZeroDuration();

  // Returns INVALID_ARGUMENT, naming the option.
  absl::Status Validate() const;
};

// The pose of the cloud's coordinates in a fixed frame: p_world = rotation * p_cloud + (x, y, z).
struct Pose {
  double x = 0, y = 0, z = 0;             // metres
  double qw = 1, qx = 0, qy = 0, qz = 0;  // a quaternion; the server normalises it
};

struct FrameOptions {
  std::optional<Pose> pose = {};  // required if sweeps accumulate
  bool reset_sweeps = false;      // forget the sweeps before this frame, after a jump of the pose, say
};

// Result: Segmentation, Detections or Answer.
template <typename Result>
struct FrameOutcomeOf {
  uint64_t frame_id = 0;
  // Errors are those of Infer and Detect, and ABORTED with reason SUPERSEDED. A frame that is unanswered when the
  // stream ends gets the stream's error. round_trip is counted from Send.
  absl::StatusOr<Result> result;
  int num_sweeps = 0;  // sweeps that were run together; 0 if none accumulate
};

// The callbacks are called one at a time, on gRPC threads, never within a call of Stream's. They must not block or
// destroy the stream; they may Send and Cancel. Empty ones are not called.
template <typename Result>
struct StreamCallbacksOf {
  // Called exactly once for each frame that Send accepted, before on_end.
  std::function<void(FrameOutcomeOf<Result>)> on_result = {};
  // Called at most once: the server is about to end. It answers the frames that it has. Not called with reopen_for.
  std::function<void()> on_going_away = {};
  // Called each time before the stream is opened again, with the reason why the call before ended.
  std::function<void(absl::Status)> on_reopen = {};
  // Called exactly once, last. OK after CloseSends and all answers; CANCELLED after Cancel; UNAVAILABLE with reason
  // DRAINING from a server that ended; INTERNAL with MALFORMED_RESPONSE for an answer to no request; else as for Infer.
  std::function<void(absl::Status)> on_end = {};
};

using FrameOutcome = FrameOutcomeOf<Segmentation>;
using StreamCallbacks = StreamCallbacksOf<Segmentation>;
using DetectionFrameOutcome = FrameOutcomeOf<Detections>;
using DetectionStreamCallbacks = StreamCallbacksOf<Detections>;

class ReopeningStream;

// Thread-safe. Made by Client::OpenStream and OpenDetectionStream.
class Stream {
 public:
  // Cancels the stream and waits until on_end has returned. So it must not run in a callback.
  ~Stream();

  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Sends a frame without blocking; encodes it, which copies it once. After OK, on_result is called for it. After an
  // error it is not: RESOURCE_EXHAUSTED with MESSAGE_TOO_LARGE, or with TOO_MANY_UNSENT (QUEUE only); INVALID_ARGUMENT
  // with DUPLICATE_FRAME while a frame with this id waits for its answer, or if the frame lacks the pose that sweeps
  // need; FAILED_PRECONDITION with STREAM_ENDED after CloseSends or the end; UNAVAILABLE with DRAINING after
  // on_going_away.
  absl::Status Send(uint64_t frame_id, const PointCloud& cloud, const FrameOptions& options = {});

  // Sends no more frames. The server answers those that it gets, then ends the stream.
  void CloseSends();

  // Ends the stream now.
  void Cancel();

 private:
  friend class Client;
  explicit Stream(std::unique_ptr<ReopeningStream> calls);

  const std::unique_ptr<ReopeningStream> calls_;
};

}  // namespace voxserve::client
