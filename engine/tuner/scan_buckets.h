#pragma once

// A bucket holds the scans whose numbers of voxels lie in one range. The search finds one plan for each bucket
// (plan_search.h).

#include <cstdint>
#include <vector>

#include "engine/compiler/plan_table.h"
#include "engine/tensor/infer_task.h"
#include "engine/tuner/plan_candidates.h"

namespace voxserve {

// A scan, and the sizes that a run on the device found. The scan itself must outlive this struct.
struct SizedScan {
  const InferTask* input = nullptr;
  int64_t num_voxels = 0;
  RulebookSizes sizes;
};

struct ScanBucket {
  int64_t min_voxels = 0;
  int64_t max_voxels = PlanTable::kNoLimit;
  std::vector<SizedScan> scans;  // by ascending voxels
};

// Cuts scans into buckets by their numbers of voxels, at powers of two from 16,384 to 1,048,576. A range without scans
// is joined to the nearest bucket with scans; if two are equally near, to the one for more voxels. Buckets are
// ascending and together cover every number of voxels; none is empty.
std::vector<ScanBucket> CutIntoBuckets(std::vector<SizedScan> scans);

}  // namespace voxserve
