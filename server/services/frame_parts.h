#pragma once

// FrameParts puts the parts of one frame of an InferStream (FramePart in inference.proto) into one cloud. Each part's
// points are copied to their place when the part comes, so that little is left to do when the last one has come. A part
// that comes before one of its predecessors waits as it is.
//
// - Memory: the frame holds its bytes with Options::hold before it allocates them: the place of all points, and the
//   parts that wait. The place grows by doubling, or to what it needs where the double does not fit. While it grows,
//   the old place and the new one are both held.
// - Errors leave the frame in an undefined state: the caller answers it with the error and destroys it.
// - Threads: not thread-safe. Nothing waits.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/runtime/host_buffer.h"
#include "engine/tensor/point_cloud.h"
#include "engine/tensor/sweep.h"
#include "server/calls/byte_limits.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve {

class FrameParts {
 public:
  static constexpr uint32_t kMaxParts = 4096;

  struct Options {
    uint64_t max_points = 0;  // of all parts; at most 2^62
    std::string model;        // named in the error about max_points
    int64_t max_bytes = 0;    // of the points of all parts
    // The bytes that the frame is likely to have, such as those of the stream's last frame; 0: not known. The place of
    // the points is made this large at first.
    int64_t expected_bytes = 0;
    std::function<absl::StatusOr<HostBuffer>(int64_t bytes)> allocate;  // Engine::AllocateCloud
    std::function<absl::StatusOr<HeldBytes>(int64_t bytes)> hold;       // ByteLimits::Hold
  };

  FrameParts(uint64_t frame_id, Options options) : frame_id_(frame_id), options_(std::move(options)) {}

  uint64_t frame_id() const { return frame_id_; }

  // Adds a part. message: the part without its cloud's data and the names of its fields, which `cloud` has. held: the
  // bytes that the part holds; released when its points have been copied. After an error reset_sweeps() has the part's
  // value too. Errors:
  // - INVALID_ARGUMENT: BAD_PART, BAD_LAYOUT or TOO_MANY_POINTS, as inference.proto says;
  // - RESOURCE_EXHAUSTED: FRAME_TOO_LARGE, or an error of Options::hold or allocate.
  absl::Status Add(const v1::FramePart& message, PointCloud cloud, HeldBytes held);

  bool is_complete() const { return last_.has_value() && next_ > *last_; }
  // Returns an error with this code and the reason FRAME_INCOMPLETE, which says what happened, and which parts lack.
  absl::Status Incomplete(absl::StatusCode code, std::string_view what_happened) const;

  bool reset_sweeps() const { return reset_sweeps_; }
  const std::optional<Pose>& pose() const { return pose_.value; }
  // Returns num_points, stamp and frame_id of the whole cloud.
  v1::PointCloud Description() const;
  int64_t num_bytes() const { return num_bytes_; }

  // Returns the cloud of a complete frame, one row of points. The errors are those of PointCloud::Create.
  absl::StatusOr<PointCloud> TakeCloud();
  // Returns the hold on the cloud's bytes.
  HeldBytes TakeHeld() { return std::move(held_); }

 private:
  // A value that several parts may have: that of the highest index counts.
  template <typename T>
  struct Newest {
    std::optional<T> value;
    uint32_t index = 0;

    void Offer(uint32_t part, T offered) {
      if (value.has_value() && part < index) return;
      value = std::move(offered);
      index = part;
    }
  };
  struct Waiting {
    PointCloud cloud;
    HeldBytes held;
  };

  absl::Status CheckIndex(uint32_t index, bool is_last) const;
  // Compares the layout with that of the parts before, or takes it over.
  absl::Status CheckLayout(const PointCloudLayout& layout);
  absl::Status CheckSize(const PointCloud& cloud);
  // Copies the points of the next part in order to their place.
  absl::Status Append(const PointCloud& cloud);
  absl::Status Grow(int64_t bytes);

  const uint64_t frame_id_;
  const Options options_;
  std::optional<uint32_t> last_;          // index of the last part, if it has come
  uint32_t next_ = 0;                     // all parts before this one have been copied
  std::map<uint32_t, Waiting> waiting_;   // parts behind a part that lacks, by index
  std::optional<PointCloudLayout> step_;  // point_step and is_bigendian, of the first part with points or fields
  std::vector<PointField> fields_;        // of the first part with fields
  uint64_t num_points_ = 0;               // of all parts that have come
  int64_t num_bytes_ = 0;                 // of their points
  HostBuffer buffer_;
  int64_t used_ = 0;  // bytes of buffer_ that have points
  HeldBytes held_;    // for buffer_
  Newest<Pose> pose_;
  Newest<google::protobuf::Timestamp> stamp_;
  Newest<std::string> sensor_frame_;
  bool reset_sweeps_ = false;
};

}  // namespace voxserve
