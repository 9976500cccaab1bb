#include "engine/executor/capacity_cache.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "engine/runtime/aligned_bytes.h"

namespace voxserve {
namespace {

constexpr size_t kMostKinds = 256;  // a further kind drops all, since programs come and go
constexpr int kCoarseSteps = 8;
constexpr int64_t kSmallestCoarseStep = 256;
// Kept capacities must be at least this share of the wanted ones. The wanted ones have an eighth more than the expected
// sites, and kept ones may lack about half of that eighth.
constexpr double kLeastSites = 15.0 / 16;
// A kept capacity is replaced if it is more than this many times the wanted one: its memory, and thread blocks without
// work, then cost more than a new capture. Two batches of a kind differ by less, so that they cannot replace each
// other's points in turns.
constexpr double kMost = 1.75;
constexpr int64_t kMostRows = std::numeric_limits<int32_t>::max();  // points and sites are numbered by 31 bits

int64_t RoundUpCoarsely(int64_t count) {
  const auto octave = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(count, 1))));
  const int64_t step = std::max(kSmallestCoarseStep, octave / kCoarseSteps);
  return std::max(step, (count + step - 1) / step * step);
}

// Returns `kept` if it holds `least` of the wanted count and is not far larger, else new_capacity.
int64_t KeptOrNew(int64_t kept, int64_t wanted, double least, int64_t new_capacity) {
  const auto count = static_cast<double>(kept);
  const bool serves = count >= least * static_cast<double>(wanted) &&
                      count <= std::max(kMost * static_cast<double>(wanted), double{2 * kSmallestCoarseStep});
  return serves ? kept : new_capacity;
}

int64_t CapacityFor(int64_t rows) { return std::max(rows, std::min(kMostRows, RoundUpCoarsely(rows))); }

// 0 bits are as many as a key has. A kept number with one bit too many stays: each number has captures of its own.
int32_t KeptOrNewBits(int32_t kept, int32_t wanted) {
  const bool serves = wanted > 0 && (kept == wanted || kept == wanted + 1);
  return serves ? kept : wanted;
}

}  // namespace

BatchCapacities CapacityCache::Fit(uint64_t program, int64_t num_samples, const BatchCapacities& wanted) {
  const double octaves = std::log2(static_cast<double>(std::max<int64_t>(wanted.points, 1)));
  const Kind kind{.program = program, .num_samples = num_samples, .half_octave = static_cast<int32_t>(2 * octaves)};
  if (kept_.size() >= kMostKinds && !kept_.contains(kind)) kept_.clear();
  BatchCapacities& kept = kept_[kind];
  // Points and uploads must fit completely.
  kept.points = KeptOrNew(kept.points, wanted.points, 1, CapacityFor(wanted.points));
  kept.upload_bytes = KeptOrNew(kept.upload_bytes, wanted.upload_bytes, 1,
                                AlignedBytes(RoundUpCoarsely(wanted.upload_bytes + wanted.upload_bytes / 8)));
  kept.sites.resize(wanted.sites.size());
  for (size_t i = 0; i < wanted.sites.size(); ++i) {
    const int64_t sites = wanted.sites[i];
    kept.sites[i] = KeptOrNew(kept.sites[i], sites, kLeastSites, CapacityFor(sites));
  }
  for (size_t axis = 0; axis < wanted.axis_bits.size(); ++axis) {
    kept.axis_bits[axis] = KeptOrNewBits(kept.axis_bits[axis], wanted.axis_bits[axis]);
  }
  return kept;
}

}  // namespace voxserve
