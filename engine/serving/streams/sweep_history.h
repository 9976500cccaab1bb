#pragma once

// SweepHistory keeps the last sweeps of one stream, and returns the sweeps that run together with a new one. A sweep is
// the cloud of one frame, with the sensor's pose and the time when the sensor took it. The history holds the clouds
// unchanged, in host memory; copies of them on a GPU are a cache (engine/runtime/device_copies.h).
//
// - Threads: not thread-safe. Each StreamSession owns one, and calls it under a lock, in the order in which frames
//   arrive.
// - Ownership: sweeps that Add has returned stay valid whatever happens to the history.

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/tensor/point_cloud.h"
#include "engine/tensor/sweep.h"

namespace voxserve {

class SweepHistory {
 public:
  struct Options {
    int num_sweeps = 1;                         // limit of the sweeps kept, the newest included; 1 or more
    absl::Duration max_age = absl::Seconds(2);  // sweeps that are older than the newest by more than this are forgotten
    int64_t max_bytes = int64_t{256} << 20;  // limit of the clouds' bytes; the oldest sweeps are forgotten first, the
                                             // newest never
  };

  explicit SweepHistory(const Options& options) : options_(options) {}

  // Adds the newest sweep and returns the sweeps to run together: the new sweep first, then the older ones, each with
  // the transform from its pose to the new one and its age in seconds. reservation: memory that is held while the sweep
  // is kept. Returns INVALID_ARGUMENT for a bad pose (BAD_POSE, CheckPose), and for a stamp that is infinite or before
  // the last sweep's (BAD_STAMP; an equal stamp is fine). An error changes nothing.
  absl::StatusOr<std::vector<PlacedSweep>> Add(PointCloud cloud, const Pose& pose, absl::Time stamp,
                                               std::shared_ptr<const void> reservation = nullptr);

  // Forgets all sweeps.
  void Reset();

  int num_sweeps() const { return static_cast<int>(sweeps_.size()); }
  int64_t num_bytes() const { return num_bytes_; }

 private:
  void ForgetOldest();

  const Options options_;
  std::deque<std::shared_ptr<const Sweep>> sweeps_;  // newest first
  int64_t num_bytes_ = 0;                            // of the sweeps' clouds
};

}  // namespace voxserve
