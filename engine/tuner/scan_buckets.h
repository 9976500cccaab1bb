#pragma once

// ScanBucket holds the scans of one range of sizes, for which a search finds a plan of its own (plan_search.h).

#include <cstdint>
#include <vector>

#include "engine/compiler/plan_table.h"
#include "engine/tensor/infer_task.h"
#include "engine/tuner/plan_candidates.h"

namespace voxserve {

// A scan and its sizes on the device. The scan outlives it.
struct SizedScan {
  const InferTask* input = nullptr;
  int64_t num_voxels = 0;
  RulebookSizes sizes;
};

struct ScanBucket {
  int64_t min_voxels = 0;
  int64_t max_voxels = PlanTable::kNoLimit;
  std::vector<SizedScan> scans;  // by voxels
};

// Cuts scans into buckets by their voxels, at powers of two from 16,384 to 1,048,576. A part without scans goes to the
// nearest that has some; where two are equally near, to the larger one. Buckets are ascending and hold every size
// together; there are none without scans.
std::vector<ScanBucket> CutIntoBuckets(std::vector<SizedScan> scans);

}  // namespace voxserve
