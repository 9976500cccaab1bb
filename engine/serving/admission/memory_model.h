#pragma once

// MemoryModel predicts whether a batch fits a device's memory; for the CPU, what the process's budget leaves of the
// host's. Each model version has one per device (ServedModel::memory), which learns from what ran there.
//
// - Bytes of a batch: some whatever its size; some per point, since clouds and levels, and maps where the host must
//   know their pairs, are laid out before the number of voxels is known; some per voxel; and for a network with dense
//   results some per sample, which the program knows (the results, and scratch of the steps that make them).
// - Learning: bytes are proportional to points and to voxels, each by the largest ratio among the last 32 runs. Only
//   the runs count that had at least half as many points (or voxels) as the largest of them: rounding makes small runs
//   take more per point, and they need no bound because larger ones fit. So one large run corrects what small ones
//   taught.
// - Unforeseen: memory that other processes took, say, shows when a batch does not fit and runs in parts. Half of its
//   points are the limit from then on; the limit grows again as batches that reach it fit.
// - Threads: thread-safe.

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/executor/executor.h"

namespace voxserve {

struct ServedModel;

// Returns the bytes of a device's memory that a batch may take there now.
using MaxBatchBytes = std::function<int64_t(size_t device)>;

// How large a batch may be.
struct BatchLimits {
  // Returns how many requests a full batch has, 1 or more, where `requests` have `points` in all.
  int64_t RequestsPerBatch(int64_t points, int64_t requests) const;

  int64_t max_points = 0;  // a request that runs alone is not held to it
  int64_t max_requests = 0;
};

class MemoryModel {
 public:
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  // Returns the limits of a model's batches on a device: those of its config, and those that keep a batch within
  // limit_bytes of the device's memory. Voxels are estimated from points, from above.
  static BatchLimits LimitsOf(const ServedModel& model, size_t device, int64_t limit_bytes);

  // sample_bytes: what each sample takes of BatchBytes::features (Program::sample_bytes).
  explicit MemoryModel(int64_t sample_bytes = 0) : sample_bytes_(sample_bytes) {}

  // Learns from what a run took: of a GPU's memory, or of the host's where it ran on the CPU. Passes over a run that
  // took nothing.
  void Observe(int64_t points, int64_t voxels, const BatchBytes& bytes, int64_t requests = 1);
  // Returns what a batch is expected to take; zeros before the first observation.
  BatchBytes Expected(int64_t points, int64_t voxels, int64_t requests = 1) const;

  // A batch of several requests did not fit.
  void DidNotFit(int64_t points);
  // A batch of so many requests fitted. The limit grows where one more request like its own would have been beyond it.
  void Fit(int64_t points, int64_t requests);

  // Copies what the model of the version that this one's version replaces has learnt.
  void StartAs(const MemoryModel& other);

  // Returns the most requests of a batch, 1 to `wanted`: those whose samples take at most half of limit_bytes.
  int64_t MaxRequests(int64_t limit_bytes, int64_t wanted) const;
  // Returns the most points of a batch of so many requests, 1 or more.
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

inline int64_t NoLimitOfBytes(size_t /*device*/) { return MemoryModel::kNoLimit; }

}  // namespace voxserve
