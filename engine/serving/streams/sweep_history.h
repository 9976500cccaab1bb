#pragma once

// SweepHistory keeps the last sweeps of one stream, and returns those that run together with a new one. It holds the
// clouds unchanged in host memory; a GPU's copies of them are a cache (engine/runtime/device_copies.h).
//
// - Threads: not thread-safe. A stream has one and calls it in the order in which frames arrive.
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
    int num_sweeps = 1;                         // the newest included; 1 or more
    absl::Duration max_age = absl::Seconds(2);  // relative to the newest's stamp; older sweeps are forgotten
    int64_t max_bytes = int64_t{256} << 20;     // of clouds; the oldest are forgotten first, the newest never
  };

  explicit SweepHistory(const Options& options) : options_(options) {}

  // Adds the newest sweep and returns the sweeps to run with it, newest (this one) first. INVALID_ARGUMENT for a bad
  // pose (BAD_POSE, see CheckPose), and for a stamp that is infinite or before that of the last sweep (BAD_STAMP; an
  // equal stamp is fine); an error changes nothing.
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
