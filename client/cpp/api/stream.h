#pragma once

// Stream sends one vehicle's frames (one point cloud each) to a model, and receives their answers.
//
//   auto stream = client->OpenStream({.model = "minkunet"}, {
//       .on_result = [](FrameOutcome frame) { if (frame.result.ok()) Use(frame.frame_id, *frame.result); },
//       .on_going_away = [] { ... },                   // connect to another server
//       .on_end = [](absl::Status status) { ... }});
//   (*stream)->Send(frame_id, std::move(cloud));       // at 10 Hz, say
//
// Frames may come faster than the link or the server takes them. Under the policy LATEST a newer frame then supersedes
// an older one that has not run, in the client and in the server. So answers are for the newest scan, and no lag builds
// up. Under QUEUE all frames are answered, in order, and Send refuses a frame if max_unsent_frames wait in the client.
// See StreamConfig in proto/voxserve/v1/inference.proto.
//
// A sensor that takes a scan bit by bit (a spinning LiDAR) can send it in parts, with SendPart. When the scan ends,
// only its last part is left to send.
//
// With StreamOptions::reopen_for, a stream outlives its server. When the connection breaks or the server goes away, the
// client opens the stream again, at any server of the address, and sends the frames without a result again. Each frame
// still gets exactly one result.

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
// ones and runs them together. Each frame must have a pose, and each cloud a stamp. Under LATEST, the sweeps lack every
// frame that was superseded before it was sent.
struct SweepOptions {
  int num_sweeps = 1;                          // run together, the newest included; 1 to 64
  std::string age_feature = {};                // the model's feature that gets a point's age in s; "": none
  std::optional<absl::Duration> max_age = {};  // older sweeps are dropped; up to 60 s; absent: 2 s
};

struct StreamOptions {
  std::string model = {};      // required
  int64_t version = 0;         // 0: the newest that is ready
  bool return_scores = false;  // also return logits per point and class; only for labels
  uint32_t priority = 0;       // 0 is the most urgent
  StreamPolicy policy = StreamPolicy::kLatest;
  std::optional<absl::Duration> frame_timeout = {};  // counted from arrival at the server; absent: the model's
  int max_queued_frames = 0;                         // for QUEUE: limit at the server, 1 to 64; 0: the server's default
  int max_unsent_frames = 8;                         // for QUEUE: limit in the client, 1 to 1024; LATEST keeps one
  std::optional<SweepOptions> sweeps = {};           // absent: each frame is a whole scan
  std::optional<FarthestPoints> sample = {};         // a sample of every frame's points; not together with sweeps
  WantedTensors tensors = {};                        // tensors to return for every frame, in Answer::tensors
  absl::Duration timeout = absl::InfiniteDuration();  // for the whole stream
  // How long the client looks for a server that accepts the stream, after its server was UNAVAILABLE; 0: the stream
  // ends instead. The next server gets the stream's options and frames without a result: under QUEUE all of them, under
  // LATEST the newest, which supersedes the others. It has none of the earlier sweeps, so FrameOutcomeOf::num_sweeps
  // begins at 1 again. A frame that was under way when a connection broke is sent again at most twice; the third time
  // it gets the error of the connection.
  absl::Duration reopen_for = absl::ZeroDuration();

  // Returns INVALID_ARGUMENT, which names the option, if an option is out of its range.
  absl::Status Validate() const;
};

// The pose of the cloud's coordinate frame in a fixed world frame: p_world = rotation * p_cloud + (x, y, z).
struct Pose {
  double x = 0, y = 0, z = 0;             // metres
  double qw = 1, qx = 0, qy = 0, qz = 0;  // a quaternion; the server normalises it
};

struct FrameOptions {
  std::optional<Pose> pose = {};  // required if StreamOptions::sweeps is set
  bool reset_sweeps = false;      // forget the sweeps before this frame, e.g. after a jump of the pose
};

// The outcome of one frame. Result: Segmentation, Detections or Answer.
template <typename Result>
struct FrameOutcomeOf {
  uint64_t frame_id = 0;
  // Errors are those of Client::Infer, and ABORTED with reason SUPERSEDED. A frame that is unanswered when the stream
  // ends gets the stream's error. Answer::round_trip is counted from Send.
  absl::StatusOr<Result> result;
  int num_sweeps = 0;  // sweeps that were run together; 0 without StreamOptions::sweeps
};

// The callbacks of a stream. They are called one at a time, on gRPC's threads or the stream's own, never within a call
// of a method of Stream. They must not block or destroy the stream; they may call Send and Cancel. Empty callbacks are
// not called.
template <typename Result>
struct StreamCallbacksOf {
  // Called exactly once for each frame that Send accepted, before on_end.
  std::function<void(FrameOutcomeOf<Result>)> on_result = {};
  // Called at most once, when the server says that it is about to end. It still answers the frames that it has. Not
  // called with reopen_for.
  std::function<void()> on_going_away = {};
  // Called each time before the stream is opened again, with the error that ended its previous connection.
  std::function<void(absl::Status)> on_reopen = {};
  // Called exactly once, as the last callback. The status is OK after CloseSends and all answers; CANCELLED after
  // Cancel; UNAVAILABLE with reason DRAINING if the server ended; INTERNAL with MALFORMED_RESPONSE if the server
  // answered a frame that waits for no answer; otherwise an error of Client::Infer.
  std::function<void(absl::Status)> on_end = {};
};

using FrameOutcome = FrameOutcomeOf<Segmentation>;
using StreamCallbacks = StreamCallbacksOf<Segmentation>;
using DetectionFrameOutcome = FrameOutcomeOf<Detections>;
using DetectionStreamCallbacks = StreamCallbacksOf<Detections>;

class ReopeningStream;

// Thread-safe. Client::OpenStream, OpenDetectionStream and OpenTensorStream make streams.
class Stream {
 public:
  // Cancels the stream and waits until on_end has returned. So the destructor must not run in a callback.
  ~Stream();

  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Sends a frame without blocking. Encoding copies the cloud once. If Send returns OK, on_result is called for the
  // frame; if it returns an error, on_result is not called. Errors:
  // - RESOURCE_EXHAUSTED with MESSAGE_TOO_LARGE, or (QUEUE only) with TOO_MANY_UNSENT.
  // - INVALID_ARGUMENT with DUPLICATE_FRAME while a frame with this id waits for its answer; without a reason if the
  //   frame lacks the pose or the stamp that sweeps need.
  // - FAILED_PRECONDITION with STREAM_ENDED after CloseSends or the end.
  // - UNAVAILABLE with DRAINING after on_going_away.
  absl::Status Send(uint64_t frame_id, const PointCloud& cloud, const FrameOptions& options = {});

  // Sends the next part of a frame, in the order of the points; see FramePart in proto/voxserve/v1/inference.proto. The
  // first call with a frame_id begins the frame, and is_last completes it. The answer has a label for each point of all
  // parts, and is that of Send with all points. Each part's cloud has the same fields; the last may have no points.
  // Pose, stamp and reset_sweeps may come with any part; the last pose and stamp count.
  // - A frame that is not complete when the next one begins, or at CloseSends, gets INVALID_ARGUMENT with
  //   FRAME_INCOMPLETE. Under LATEST, one of which no part has been sent yet gets SUPERSEDED.
  // - The errors are those of Send. If the first part of a frame gets an error, on_result is not called for the frame;
  //   if a later one does, the frame still gets its result. Parts of a frame that has its result are dropped.
  // - Answer::round_trip is counted from the last part. on_going_away leaves the frame that has begun to be completed.
  // - No frame in parts may have the id of one of the 64 before it: INVALID_ARGUMENT with DUPLICATE_FRAME.
  absl::Status SendPart(uint64_t frame_id, const PointCloud& cloud, bool is_last, const FrameOptions& options = {});

  // Accepts no more frames. The client sends the frames that wait; the server answers all frames that it gets, then
  // ends the stream.
  void CloseSends();

  // Ends the stream now. Frames without a result get CANCELLED.
  void Cancel();

 private:
  friend class Client;
  explicit Stream(std::unique_ptr<ReopeningStream> calls);

  const std::unique_ptr<ReopeningStream> calls_;
};

}  // namespace voxserve::client
