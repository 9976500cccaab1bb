#pragma once

// MemoryModel predicts whether a batch fits a device's memory. For the CPU, that is the part of the host's memory that
// the process's budget has left. Each model version has a MemoryModel for each device (ServedModel::OnDevice), which
// learns from the version's batches.
//
// - Bytes: the bytes of a batch are the sum of four parts:
//     a fixed part;
//     a part for each point: clouds, coordinate levels, and the kernel maps that are laid out before the number of
//     voxels is known;
//     a part for each voxel: other kernel maps, features, scratch;
//     a part for each sample, if the network has dense results: the results, and the scratch of the steps that make
//     them. The compiled program knows this part (sample_bytes).
// - Learning: the bytes for each point and for each voxel are the largest ratios among the last 32 runs. Only runs with
//   at least half as many points (or voxels) as the largest of these runs count. Rounding makes small runs take more
//   for each point, and small runs fit wherever larger ones do. So one large run corrects what small runs taught.
// - Surprises: memory may be short for another reason (another process took it, say). Then a batch does not fit and
//   runs in parts, and half of its points become the limit. The limit grows again when batches that reach it fit.
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

// Returns the bytes of the device's memory that one batch may take now. device: index in the engine's list of devices.
using MaxBatchBytes = std::function<int64_t(size_t device)>;

// How large a batch may be.
struct BatchLimits {
  // Returns how many requests a full batch has, 1 or more, if `requests` requests have `points` points in all.
  int64_t RequestsPerBatch(int64_t points, int64_t requests) const;

  int64_t max_points = 0;  // does not apply to a request that runs alone
  int64_t max_requests = 0;
};

class MemoryModel {
 public:
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  // Returns the limits of a model's batches on a device. Each is the smaller of the limit in the model's config and the
  // limit that keeps a batch within limit_bytes of the device's memory, by an upper estimate of the voxels.
  static BatchLimits LimitsOf(const ServedModel& model, size_t device, int64_t limit_bytes);

  // sample_bytes: the part of BatchBytes::features that each sample takes (Program::sample_bytes).
  explicit MemoryModel(int64_t sample_bytes = 0) : sample_bytes_(sample_bytes) {}

  // Learns from the bytes that a run took: bytes of the GPU's memory, or of the host's if the run was on the CPU.
  // Ignores a run that took no bytes.
  void Observe(int64_t points, int64_t voxels, const BatchBytes& bytes, int64_t requests = 1);
  // Returns the bytes that a batch is expected to take; zeros before the first observation.
  BatchBytes Expected(int64_t points, int64_t voxels, int64_t requests = 1) const;

  // Records that a batch of several requests with this many points did not fit.
  void DidNotFit(int64_t points);
  // Records that a batch fitted. The limit of points grows if one more such request would have exceeded it.
  void Fit(int64_t points, int64_t requests);

  // Copies what `other` has learned. It belongs to the version that this version replaces.
  void StartAs(const MemoryModel& other);

  // Returns the most requests of a batch, 1 to `wanted`: as many as take at most half of limit_bytes by sample_bytes.
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

inline int64_t UnlimitedBytes(size_t /*device*/) { return MemoryModel::kNoLimit; }

}  // namespace voxserve
