#pragma once

// How large a batch may be to fit a device's memory, learnt from what ran there. Of one model version on one device.
//
// What a batch takes. Some memory whatever its size; some for its points, since clouds, levels and maps are laid out
// before it is known how many voxels there are; some for its voxels; and of a network with dense results some for each
// of its samples, which the program knows (the results, and scratch of the steps that make them). What points and
// voxels take is taken as proportional, each with the largest ratio among the last 32 runs, of those that had at least
// half as many points (or voxels) as the largest of them: small runs take more for each, by all that is rounded up, and
// need no bound, because larger ones fit. So one large run corrects what small ones taught.
//
// What that does not tell, as memory that other processes took, shows in batches that have no room: they run in parts,
// and half as many points are the limit from then on, which grows again as batches that reach it fit.
//
// Thread-safe.

#include <cstdint>
#include <deque>
#include <limits>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/executor/executor.h"

namespace voxserve {

class MemoryModel {
 public:
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  // sample_bytes: of BatchBytes::features, what each sample takes (Program::sample_bytes).
  explicit MemoryModel(int64_t sample_bytes = 0) : sample_bytes_(sample_bytes) {}

  // What a run took. One that took nothing of the device, as all on the CPU, is passed over.
  void Observe(int64_t points, int64_t voxels, const BatchBytes& bytes, int64_t requests = 1);
  // Zeros before the first observation.
  BatchBytes Expected(int64_t points, int64_t voxels, int64_t requests = 1) const;

  // A batch of several requests had no room; or one did.
  void DidNotFit(int64_t points);
  // A batch of so many requests fitted. Where one more like its own would have been beyond the limit, that grows.
  void Fit(int64_t points, int64_t requests);

  // As another one is: of the version that this one's replaces.
  void StartAs(const MemoryModel& other);

  // The most requests of a batch, 1 to `wanted`: what they take whatever their size is at most half of limit_bytes,
  // which the batch may take.
  int64_t MaxRequests(int64_t limit_bytes, int64_t wanted) const;
  // The most points of a batch of so many requests, 1 or more. Single requests are not held to it.
  int64_t MaxPoints(int64_t limit_bytes, double voxels_per_point, int64_t requests = 1) const;

 private:
  struct Run {
    int64_t points = 0;
    int64_t voxels = 0;
    BatchBytes bytes;
  };

  const int64_t sample_bytes_;
  mutable absl::Mutex mutex_;
  std::deque<Run> runs_ ABSL_GUARDED_BY(mutex_);  // oldest first
  int64_t fixed_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  double bytes_per_point_ ABSL_GUARDED_BY(mutex_) = 0;
  double bytes_per_voxel_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t fitting_points_ ABSL_GUARDED_BY(mutex_) = kNoLimit;  // by those that did not
};

}  // namespace voxserve
