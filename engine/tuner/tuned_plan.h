#pragma once

// A TunedPlan is the result of a search (plan_search.h) for one model on one type of device, with the key for which it
// is valid.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "engine/compiler/plan_table.h"

namespace voxserve {

// The conditions for which a plan is valid. It is used only if all of them are equal.
struct PlanKey {
  std::string model_digest;        // Graph::digest
  std::string device;              // "NVIDIA H200", or the CPU's model name
  std::string compute_capability;  // "9.0"; on a CPU its vector instruction set, "avx2"
  std::string cuda_version;        // "13.0"; empty on a CPU
  std::string engine_version;      // "0.1.0"
  std::string dtype;               // "float32", "tf32", "float16", "bfloat16", "int8"

  bool operator==(const PlanKey&) const = default;
};

// A range of numbers of voxels, its plan, and the times measured in it. The times are those of the stages voxelize,
// geometry, features and head together, as the median over the scans. They are 0 if the scans were not measured.
struct TunedBucket {
  PlanTable::Bucket bucket;
  int num_scans = 0;            // the measured scans of this range
  absl::Duration default_time;  // with the default plan
  absl::Duration tuned_time;    // with this plan
};

struct TunedPlan {
  PlanKey key;
  std::vector<TunedBucket> buckets;  // ascending
};

inline std::vector<PlanTable::Bucket> BucketsOf(const TunedPlan& plan) {
  std::vector<PlanTable::Bucket> buckets;
  for (const TunedBucket& tuned : plan.buckets) buckets.push_back(tuned.bucket);
  return buckets;
}

}  // namespace voxserve
