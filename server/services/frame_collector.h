#pragma once

// FrameCollector keeps the frame that a stream collects from its parts (FrameParts), and the ids of the frames in parts
// that began before it.
//
// - The thread that handles a part takes the frame out for it (Resume, or Begin for a new frame) and brings it back
//   (GiveBack). Other threads end the frame: they take it out for good, or leave their error for GiveBack while it is
//   out.
// - Threads: not thread-safe; the stream's mutex guards it. Nothing waits.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/services/frame_parts.h"

namespace voxserve {

class FrameCollector {
 public:
  // So many ids are remembered (inference.proto names the number).
  static constexpr size_t kMaxRecent = 64;

  // Takes the frame with this id out for its next part. Returns null if no frame with this id is being collected.
  std::unique_ptr<FrameParts> Resume(uint64_t frame_id);
  // Returns true if the frame is one of the last frames in parts. If it is not being collected, it has its result.
  bool IsRecent(uint64_t frame_id) const;
  // Begins a frame, which the caller has, while none is being collected. expiry: when all parts must have come. end:
  // the error that the frame gets after its first part, if any. If there is no memory, throws std::bad_alloc and
  // changes nothing.
  void Begin(uint64_t frame_id, absl::Time expiry, std::optional<absl::Status> end);
  // Takes the frame back, and leaves *parts null, if it goes on: `status` is OK, the frame is not complete, and nobody
  // has ended it meanwhile. Else returns the error that the frame gets, or OK if it is complete.
  absl::Status GiveBack(std::unique_ptr<FrameParts>* parts, absl::Status status);

  // Takes the frame out for good. Returns null if there is none, or if a thread has it for a part.
  std::unique_ptr<FrameParts> Take() { return std::move(parts_); }
  // Does the same if the time for its parts is over.
  std::unique_ptr<FrameParts> TakeExpired(absl::Time now);
  // Does the same as Take. If a thread has the frame for a part, GiveBack returns `why`, or the earlier error.
  std::unique_ptr<FrameParts> TakeOrEnd(const absl::Status& why);

  // Returns when TakeExpired will return the frame; InfiniteFuture: it is not here.
  absl::Time NextExpiry() const { return parts_ == nullptr ? absl::InfiniteFuture() : expiry_; }
  // Lets the frame expire at this time, unless it expires earlier.
  void ExpireBy(absl::Time time);

 private:
  std::unique_ptr<FrameParts> parts_;  // null: no frame is being collected, or a thread has it for a part
  bool is_out_ = false;                // a thread has the frame for a part
  std::optional<absl::Status> end_;    // the error for a frame that is out
  absl::Time expiry_;
  std::deque<uint64_t> recent_;
};

}  // namespace voxserve
