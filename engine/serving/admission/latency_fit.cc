#include "engine/serving/admission/latency_fit.h"

#include <algorithm>
#include <bit>

namespace voxserve {
namespace {

// A bucket starts anew if its last batch was more than this many batches ago.
constexpr int64_t kLong = 256;

}  // namespace

size_t LatencyFit::IndexOf(const BatchSize& size) {
  const int64_t points = std::max<int64_t>(size.points, 0) / std::max<int64_t>(size.batches, 1);
  return static_cast<size_t>(std::bit_width(static_cast<uint64_t>(points)));
}

bool LatencyFit::IsFresh(const Bucket& bucket) const {
  return bucket.line != nullptr && num_batches_ - bucket.last_batch <= kLong;
}

const LineFit& LatencyFit::LineOf(const BatchSize& size) const {
  const Bucket& bucket = buckets_[IndexOf(size)];
  return IsFresh(bucket) && bucket.line->Knows(size) ? *bucket.line : all_;
}

void LatencyFit::Observe(const BatchSize& size, absl::Duration device_time, LineFit::Voxels voxels) {
  absl::MutexLock lock(&mutex_);
  if (all_.Observe(size, device_time, voxels)) {
    for (Bucket& bucket : buckets_) bucket.line.reset();
  }
  ++num_batches_;
  Bucket& bucket = buckets_[IndexOf(size)];
  if (IsFresh(bucket)) {
    bucket.line->Observe(size, device_time, voxels);
  } else {
    bucket.line = std::make_unique<LineFit>();
    bucket.line->StartAs(all_);
  }
  bucket.last_batch = num_batches_;
}

absl::Duration LatencyFit::Expected(const BatchSize& size) const {
  absl::ReaderMutexLock lock(&mutex_);
  return LineOf(size).Expected(size);
}

absl::Duration LatencyFit::Bound(const BatchSize& size) const {
  absl::ReaderMutexLock lock(&mutex_);
  return LineOf(size).Bound(size);
}

void LatencyFit::StartAs(const LatencyFit& other) {
  if (&other == this) return;
  absl::MutexLock lock(&mutex_);
  all_.StartAs(other.all_);
  for (Bucket& bucket : buckets_) bucket.line.reset();
}

}  // namespace voxserve
