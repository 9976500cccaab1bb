#pragma once

// A bucket holds the scans of one range of sizes. The search finds one plan for it (plan_search.h).

#include <cstdint>
#include <vector>

#include "engine/compiler/plan_table.h"
#include "engine/tensor/infer_task.h"
#include "engine/tuner/plan_candidates.h"

namespace voxserve {

// A scan and its sizes on the device. The scan itself must outlive this.
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

// Cuts scans into buckets by their voxels, at powers of two from 16,384 to 1,048,576. A range without scans is joined
// to the nearest bucket with scans, or to the larger one of two equally near. Buckets are ascending and together cover
// every size; none is empty.
std::vector<ScanBucket> CutIntoBuckets(std::vector<SizedScan> scans);

}  // namespace voxserve
