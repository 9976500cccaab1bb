#pragma once

// The result of a search for one model on one kind of device, and the key for which it is valid.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "engine/compiler/plan_table.h"

namespace voxserve {

// The conditions for which a plan is valid. It is used only if all of them are equal.
struct PlanKey {
  std::string model_digest;        // covers graph and weights
  std::string device;              // "NVIDIA H200", or the CPU's model name
  std::string compute_capability;  // "9.0"; on a CPU its vector instruction set, "avx2"
  std::string cuda_version;        // "13.0"; empty on a CPU
  std::string engine_version;      // "0.1.0"
  std::string dtype;               // "float32", "tf32", "float16", "bfloat16"

  bool operator==(const PlanKey&) const = default;
};

// A range of input sizes, its plan, and the times measured in it.
struct TunedBucket {
  PlanTable::Bucket bucket;
  int num_scans = 0;            // scans of the search
  absl::Duration default_time;  // points to labels, median over the scans, with the default plan
  absl::Duration tuned_time;    // the same with this plan
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
