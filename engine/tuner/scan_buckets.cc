#include "engine/tuner/scan_buckets.h"

#include <algorithm>
#include <utility>

namespace voxserve {
namespace {

constexpr int64_t kLowestBoundary = int64_t{16} << 10;  // in voxels; each further boundary is twice the one before
constexpr int64_t kHighestBoundary = int64_t{1} << 20;

}  // namespace

std::vector<ScanBucket> CutIntoBuckets(std::vector<SizedScan> scans) {
  std::stable_sort(scans.begin(), scans.end(),
                   [](const SizedScan& a, const SizedScan& b) { return a.num_voxels < b.num_voxels; });
  std::vector<ScanBucket> parts(1);
  for (int64_t boundary = kLowestBoundary; boundary <= kHighestBoundary; boundary *= 2) {
    parts.back().max_voxels = boundary;
    parts.push_back({.min_voxels = boundary});
  }
  for (SizedScan& scan : scans) {
    const auto part =
        std::find_if(parts.begin(), parts.end(), [&](const ScanBucket& p) { return scan.num_voxels < p.max_voxels; });
    part->scans.push_back(std::move(scan));
  }
  std::vector<ScanBucket> buckets;
  size_t previous = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].scans.empty()) continue;
    if (buckets.empty()) {
      parts[i].min_voxels = 0;
    } else {
      const size_t first_of_this = previous + (i - previous - 1) / 2 + 1;
      buckets.back().max_voxels = parts[i].min_voxels = parts[first_of_this].min_voxels;
    }
    parts[i].max_voxels = PlanTable::kNoLimit;
    buckets.push_back(std::move(parts[i]));
    previous = i;
  }
  return buckets;
}

}  // namespace voxserve
