#pragma once

// MemoryModel predicts whether a batch fits a device's memory; on the CPU, the part of the host's memory that the
// process's budget has left. Each model version has one per device (ServedModel::memory), which learns from its
// batches.
//
// - Bytes of a batch are the sum of four parts: a fixed part; a part per point, for clouds, levels and those maps that
//   are laid out before the number of voxels is known; a part per voxel; and, for a network with dense results, a part
//   per sample for the results and the scratch of their steps, which the program knows.
// - Learning: bytes are proportional to points and to voxels, each by the largest ratio among the last 32 runs. Only
//   the runs with at least half as many points (or voxels) as the largest of them count: rounding makes small runs take
//   more per point, and they fit anyway where larger ones do. So one large run corrects what small ones taught.
// - Surprises: if memory is short for another reason (another process took it, say), a batch does not fit and runs in
//   parts. From then on half of its points are the limit, which grows again as batches that reach it fit.
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

  int64_t max_points = 0;  // does not apply to a request that runs alone
  int64_t max_requests = 0;
};

class MemoryModel {
 public:
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  // Returns the limits of a model's batches on a device: those of its config, and those that keep a batch within
  // limit_bytes of the device's memory. Uses an upper estimate of the voxels.
  static BatchLimits LimitsOf(const ServedModel& model, size_t device, int64_t limit_bytes);

  // sample_bytes: the part of BatchBytes::features that each sample takes (Program::sample_bytes).
  explicit MemoryModel(int64_t sample_bytes = 0) : sample_bytes_(sample_bytes) {}

  // Learns from the bytes that a run took: of a GPU's memory, or of the host's if it ran on the CPU. Ignores a run that
  // took none.
  void Observe(int64_t points, int64_t voxels, const BatchBytes& bytes, int64_t requests = 1);
  // Returns the bytes that a batch is expected to take; zeros before the first observation.
  BatchBytes Expected(int64_t points, int64_t voxels, int64_t requests = 1) const;

  // Tells that a batch of several requests did not fit.
  void DidNotFit(int64_t points);
  // Tells that a batch of this many requests fitted. The limit grows if one more such request would have exceeded it.
  void Fit(int64_t points, int64_t requests);

  // Copies what the version that this version replaces has learned.
  void StartAs(const MemoryModel& other);

  // Returns the most requests of a batch, 1 to `wanted`: as many as take at most half of limit_bytes for their samples.
  int64_t MaxRequests(int64_t limit_bytes, int64_t wanted) const;
  // Returns the most points of a batch of this many requests; at least 1.
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
  int64_t fitting_points_ ABSL_GUARDED_BY(mutex_) = kNoLimit;  // the limit that batches which did not fit have set
};

inline int64_t NoLimitOfBytes(size_t /*device*/) { return MemoryModel::kNoLimit; }

}  // namespace voxserve
