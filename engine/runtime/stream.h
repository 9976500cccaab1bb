#pragma once

// Stream and Event own a CUDA stream and a CUDA event. They can be moved, but not copied. Every function that works on
// a stream takes a StreamView. Errors are those of CudaStatus (cuda_status.h). Destructors log errors and never throw.

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/core/cuda_stream.h"

struct CUevent_st;

namespace voxserve {

// Refers to a stream without owning it. Valid while its Stream exists.
class StreamView {
 public:
  StreamView() = default;
  explicit StreamView(cudaStream_t stream) : stream_(stream) {}
  cudaStream_t get() const { return stream_; }

  // Blocks until all queued work has ended, and returns the errors of that work.
  absl::Status Synchronize() const;
  // Returns true while the stream's work is being captured into a CUDA graph.
  absl::StatusOr<bool> IsCaptured() const;

 private:
  cudaStream_t stream_ = nullptr;
};

// kNormal is the highest priority that the device has: its work precedes that of kLow where both wait for the GPU.
enum class StreamPriority { kNormal, kLow };

class Stream {
 public:
  // Creates a stream on a device (CUDA's ordinal), which becomes current for the calling thread. The stream does not
  // wait for the legacy default stream.
  static absl::StatusOr<Stream> CreateOn(int device, StreamPriority priority = StreamPriority::kNormal);
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~Stream();

  StreamView view() const { return StreamView(stream_); }

 private:
  explicit Stream(cudaStream_t stream) : stream_(stream) {}
  cudaStream_t stream_ = nullptr;
};

// An Event marks a point in a stream's work, and records when the stream reaches that point.
class Event {
 public:
  Event() = default;  // empty: assign another event to it before use
  static absl::StatusOr<Event> Create();
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event();

  // If the stream is being captured, the event is recorded whenever the captured work runs.
  absl::Status Record(StreamView stream);
  // Makes work that is queued on the stream from now on wait for the work before the last Record.
  absl::Status MakeStreamWait(StreamView stream) const;
  // Blocks until the work before the last Record has ended.
  absl::Status Synchronize() const;
  // Returns the time from `start` to this event; both have completed.
  absl::StatusOr<absl::Duration> Since(const Event& start) const;

 private:
  explicit Event(CUevent_st* event) : event_(event) {}
  CUevent_st* event_ = nullptr;
};

}  // namespace voxserve
