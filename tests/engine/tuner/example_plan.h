#pragma once

// Makes a tuned plan and its key for tests of plan files. The values are invented.

#include <string>

#include "absl/time/time.h"
#include "engine/tuner/tuned_plan.h"
#include "kernels/conv/matmul_grouping.h"

namespace voxserve {

inline PlanKey ExampleKey() {
  return {.model_digest = "0123456789abcdef" + std::string(48, '7'),
          .device = "NVIDIA H200",
          .compute_capability = "9.0",
          .cuda_version = "13.0",
          .engine_version = "0.1.0",
          .dtype = "float16"};
}

// Returns a plan with two buckets (ranges of voxel numbers). The first bucket has convolutions of every dataflow,
// search and grouping. The second bucket has only the fallback plan.
inline TunedPlan ExamplePlan() {
  using kernels::Grouping;
  using kernels::MapSearch;
  TunedPlan plan{.key = ExampleKey(), .buckets = {}};
  TunedBucket first;
  first.bucket = {.min_voxels = 0, .max_voxels = 65536, .plan = {.fallback = kDefaultCudaConvPlan, .by_node = {}}};
  first.bucket.plan.by_node = {
      {"stem.0",
       {.map_search = MapSearch::kGrid, .dataflow = Dataflow::kFetchOnDemand, .block = {.rows = 64}, .grouping = {}}},
      {"tiles",
       {.map_search = MapSearch::kHash,
        .dataflow = Dataflow::kImplicitGemm,
        .block = {.rows = 128, .columns = 96, .split_k = 2, .uses_mma_sync = true},
        .grouping = {}}},
      {"stem.1",
       {.map_search = MapSearch::kHash,
        .dataflow = Dataflow::kGatherGemmScatter,
        .grouping = {.grouping = Grouping::kAdaptive, .epsilon = 0.1, .bmm_max_rows = 40000}}},
      {"down",
       {.map_search = MapSearch::kHash,
        .dataflow = Dataflow::kGatherGemmScatter,
        .grouping = {.grouping = Grouping::kSeparate}}},
      {"up",
       {.map_search = MapSearch::kMerge,
        .dataflow = Dataflow::kGatherGemmScatter,
        .grouping = {.grouping = Grouping::kSymmetric}}},
      {"last",
       {.map_search = MapSearch::kHash,
        .dataflow = Dataflow::kGatherGemmScatter,
        .grouping = {.grouping = Grouping::kFixed}}}};
  first.num_scans = 12;
  first.default_time = absl::Microseconds(4321);
  first.tuned_time = absl::Microseconds(3210);
  TunedBucket second;
  second.bucket = {.min_voxels = 65536, .max_voxels = PlanTable::kNoLimit, .plan = {}};
  second.bucket.plan.fallback = kDefaultCudaConvPlan;
  plan.buckets = {first, second};
  return plan;
}

inline bool IsEqual(const TunedPlan& a, const TunedPlan& b) {
  if (!(a.key == b.key) || a.buckets.size() != b.buckets.size()) return false;
  for (size_t i = 0; i < a.buckets.size(); ++i) {
    const TunedBucket &x = a.buckets[i], &y = b.buckets[i];
    if (x.num_scans != y.num_scans || x.default_time != y.default_time || x.tuned_time != y.tuned_time ||
        x.bucket.min_voxels != y.bucket.min_voxels || x.bucket.max_voxels != y.bucket.max_voxels ||
        !(x.bucket.plan.fallback == y.bucket.plan.fallback) || x.bucket.plan.by_node != y.bucket.plan.by_node) {
      return false;
    }
  }
  return true;
}

}  // namespace voxserve
