#pragma once

// What a search found for one model on one kind of device, and what it is true for.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "engine/compiler/plan_table.h"

namespace voxserve {

// A plan serves where all of this is the same.
struct PlanKey {
  std::string model_digest;        // graph and weights
  std::string device;              // "NVIDIA H200", or the CPU's model name
  std::string compute_capability;  // "9.0"; of a CPU its vector instruction set, "avx2"
  std::string cuda_version;        // "13.0"; empty on a CPU
  std::string engine_version;      // "0.1.0"
  std::string dtype;               // "float32", "tf32", "float16", "bfloat16"

  bool operator==(const PlanKey&) const = default;
};

// A range of input sizes with what was measured in it.
struct TunedBucket {
  PlanTable::Bucket bucket;
  int num_scans = 0;            // that it was searched with
  absl::Duration default_time;  // points to labels, median over the scans, by the default plan
  absl::Duration tuned_time;    // and by this one
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
