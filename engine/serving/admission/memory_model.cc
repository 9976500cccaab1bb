#include "engine/serving/admission/memory_model.h"

#include <algorithm>
#include <cmath>

#include "engine/serving/admission/served_model.h"
#include "kernels/coordinates/coordinate_key.h"

namespace voxserve {
namespace {

constexpr size_t kMaxRuns = 32;
// The safety factor of the predicted bytes. One half of the added quarter covers DeviceArena, which allocates an eighth
// more than is needed. The other half covers differences that the numbers of points and voxels do not predict.
constexpr double kMargin = 1.25;
// When a batch near the limit that DidNotFit has set fits, the limit grows by 1 / kGrowth.
constexpr int64_t kGrowth = 16;

// Returns the largest ratio of bytes to size among the runs whose size is at least half of the largest size.
template <typename Runs, typename SizeOf, typename BytesOf>
double LargestRatio(const Runs& runs, SizeOf size_of, BytesOf bytes_of) {
  int64_t largest = 0;
  for (const auto& run : runs) largest = std::max(largest, size_of(run));
  double ratio = 0;
  for (const auto& run : runs) {
    const int64_t size = size_of(run);
    if (size > 0 && size >= largest / 2) {
      ratio = std::max(ratio, static_cast<double>(bytes_of(run)) / static_cast<double>(size));
    }
  }
  return ratio;
}

}  // namespace

int64_t BatchLimits::RequestsPerBatch(int64_t points, int64_t requests) const {
  const int64_t mean = std::max<int64_t>(1, points / requests);
  return std::clamp<int64_t>(max_points / mean, 1, max_requests);
}

BatchLimits MemoryModel::LimitsOf(const ServedModel& model, size_t device, int64_t limit_bytes) {
  const ModelConfig::Batching& batching = model.batching;
  const double voxels_per_point = model.on_device[device].latency->voxels_per_point();
  const MemoryModel& memory = *model.on_device[device].memory;
  const int64_t wanted = std::clamp(batching.max_batch_requests, 1, static_cast<int>(kernels::kMaxSamples));
  BatchLimits limits;
  limits.max_requests = memory.MaxRequests(limit_bytes, wanted);
  limits.max_points =
      std::min(batching.max_batch_points, memory.MaxPoints(limit_bytes, voxels_per_point, limits.max_requests));
  if (batching.max_batch_voxels > 0 && voxels_per_point > 0) {
    const double points = static_cast<double>(batching.max_batch_voxels) / voxels_per_point;
    if (points < static_cast<double>(limits.max_points)) limits.max_points = static_cast<int64_t>(points);
  }
  return limits;
}

void MemoryModel::Observe(int64_t points, int64_t voxels, const BatchBytes& bytes, int64_t requests) {
  if (bytes.total() == 0) return;
  absl::MutexLock lock(&mutex_);
  runs_.push_back({.points = points, .voxels = voxels, .bytes = bytes});
  int64_t& features = runs_.back().bytes.features;
  features = std::max<int64_t>(0, features - requests * sample_bytes_);
  if (runs_.size() > kMaxRuns) runs_.pop_front();
  fixed_bytes_ = 0;
  for (const Run& run : runs_) fixed_bytes_ = std::max(fixed_bytes_, run.bytes.fixed);
  bytes_per_point_ = LargestRatio(
      runs_, [](const Run& run) { return run.points; }, [](const Run& run) { return run.bytes.points; });
  bytes_per_voxel_ = LargestRatio(
      runs_, [](const Run& run) { return run.voxels; }, [](const Run& run) { return run.bytes.features; });
}

BatchBytes MemoryModel::Expected(int64_t points, int64_t voxels, int64_t requests) const {
  absl::MutexLock lock(&mutex_);
  if (runs_.empty()) return {};
  return {.fixed = fixed_bytes_,
          .points = static_cast<int64_t>(std::ceil(bytes_per_point_ * static_cast<double>(points))),
          .features = requests * sample_bytes_ +
                      static_cast<int64_t>(std::ceil(bytes_per_voxel_ * static_cast<double>(voxels)))};
}

void MemoryModel::DidNotFit(int64_t points) {
  absl::MutexLock lock(&mutex_);
  fitting_points_ = std::max<int64_t>(points / 2, 1);
}

void MemoryModel::Fit(int64_t points, int64_t requests) {
  absl::MutexLock lock(&mutex_);
  if (fitting_points_ == kNoLimit) return;
  const int64_t step = std::max<int64_t>(1, fitting_points_ / kGrowth);
  if (points + std::max(step, points / std::max<int64_t>(1, requests)) > fitting_points_) fitting_points_ += step;
}

void MemoryModel::StartAs(const MemoryModel& other) {
  if (&other == this) return;
  absl::MutexLock lock(&mutex_);
  absl::ReaderMutexLock other_lock(&other.mutex_);
  if (other.runs_.empty()) return;
  runs_ = other.runs_;
  fixed_bytes_ = other.fixed_bytes_;
  bytes_per_point_ = other.bytes_per_point_;
  bytes_per_voxel_ = other.bytes_per_voxel_;
  fitting_points_ = other.fitting_points_;
}

int64_t MemoryModel::MaxRequests(int64_t limit_bytes, int64_t wanted) const {
  if (sample_bytes_ == 0 || limit_bytes == kNoLimit) return wanted;
  return std::clamp<int64_t>(limit_bytes / 2 / sample_bytes_, 1, wanted);
}

int64_t MemoryModel::MaxPoints(int64_t limit_bytes, double voxels_per_point, int64_t requests) const {
  absl::MutexLock lock(&mutex_);
  const double bytes = kMargin * (bytes_per_point_ + bytes_per_voxel_ * voxels_per_point);
  if (bytes <= 0 || limit_bytes == kNoLimit) return fitting_points_;
  const int64_t taken = fixed_bytes_ + requests * sample_bytes_;
  const double points = static_cast<double>(std::max<int64_t>(0, limit_bytes - taken)) / bytes;
  if (points >= static_cast<double>(fitting_points_)) return fitting_points_;
  return std::max<int64_t>(1, static_cast<int64_t>(points));
}

}  // namespace voxserve
