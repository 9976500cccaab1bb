#pragma once

// Stream sends one vehicle's frames, and Client::OpenStream makes it. Each frame that Send accepts gets one result.

#include <voxserve/export.h>
#include <voxserve/point_cloud.h>
#include <voxserve/status.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace voxserve::detail {
struct StreamData;
struct StreamEventsData;
}  // namespace voxserve::detail

namespace voxserve {
inline namespace abi0 {

// The pose of the cloud's coordinates in a fixed world frame: p_world = rotation * p_cloud + (x, y, z). Never changes.
struct Pose {
  double x = 0, y = 0, z = 0;             // metres
  double qw = 1, qx = 0, qy = 0, qz = 0;  // a quaternion; the server normalises it
};

// A result of a frame. Called once for every frame that Send accepted, with the errors of Client::Infer or ABORTED
// (SUPERSEDED). Callbacks of a stream come one at a time, on threads of the library and never within Send; they must
// not block or destroy the stream. They may call Send and Cancel.
template <typename T>
using OnResult = std::function<void(uint64_t frame_id, Result<T> result)>;

// Callbacks for all else that happens to a stream. Each may be left out.
class VOXSERVE_API StreamEvents {
 public:
  StreamEvents();
  ~StreamEvents();
  StreamEvents(const StreamEvents& other);
  StreamEvents& operator=(const StreamEvents& other);

  // The server is about to end. It still answers the frames that it has. Not called with StreamOptions::set_reopen_for.
  StreamEvents& set_on_going_away(std::function<void()> on_going_away);
  // The stream is about to be opened again, after its connection ended with this error.
  StreamEvents& set_on_reopen(std::function<void(Status)> on_reopen);
  // The last callback. OK after CloseSends and all answers; CANCELLED after Cancel; otherwise an error.
  StreamEvents& set_on_end(std::function<void(Status)> on_end);

  const detail::StreamEventsData& data() const noexcept { return *data_; }  // private to the library

 private:
  std::unique_ptr<detail::StreamEventsData> data_;
};

// Thread-safe but for moves.
class VOXSERVE_API Stream {
 public:
  explicit Stream(std::unique_ptr<detail::StreamData> data) noexcept;  // private to the library
  // Cancels the stream and waits until on_end has returned. Not within a callback.
  ~Stream();
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;

  // Sends a frame without blocking; copies the cloud once. If it returns an error, the frame gets no result:
  // RESOURCE_EXHAUSTED (MESSAGE_TOO_LARGE, TOO_MANY_UNSENT), INVALID_ARGUMENT (DUPLICATE_FRAME, or without a reason if
  // the pose or stamp that sweeps need is missing), FAILED_PRECONDITION (STREAM_ENDED), UNAVAILABLE (DRAINING).
  Status Send(uint64_t frame_id, const PointCloud& cloud);
  // reset_sweeps: the server forgets the sweeps before this frame, e.g. after a jump of the pose.
  Status Send(uint64_t frame_id, const PointCloud& cloud, const Pose& pose, bool reset_sweeps = false);
  // Sends the next part of a frame: a sensor that takes a scan bit by bit sends each part when it has it. The first
  // call with a frame_id begins the frame, and is_last completes it. The answer is that of Send with the points of all
  // parts, in the order of the calls. A frame that is not complete when the next one begins, or at CloseSends, gets
  // INVALID_ARGUMENT (FRAME_INCOMPLETE). The errors are those of Send: for the first part they mean that the frame gets
  // no result. DUPLICATE_FRAME also refuses an id of the last 64 frames in parts.
  Status SendPart(uint64_t frame_id, const PointCloud& cloud, bool is_last);
  // The last pose and stamp of a frame's parts count.
  Status SendPart(uint64_t frame_id, const PointCloud& cloud, bool is_last, const Pose& pose,
                  bool reset_sweeps = false);
  void CloseSends();  // no more frames; those sent are still answered
  void Cancel();      // ends the stream now; frames without a result get CANCELLED

 private:
  std::unique_ptr<detail::StreamData> data_;  // null after the stream was moved from
};

}  // namespace abi0
}  // namespace voxserve
