#pragma once

// Farthest point sampling as pointnet2's users have it (OpenPCDet, torch_cluster and others): a block a cloud, every
// distance in global memory in every iteration, the furthest point by halving through shared memory. What
// kernels/points/farthest/farthest_point_sample.h is compared with. It rounds and breaks ties as ours does, which those
// do not, so that the results can be compared. Lives in benchmarks alone.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"

namespace voxserve::bench {

// Clouds of one size, all of whose points are finite.
struct PlainFarthestPointSampleParams {
  int32_t num_samples = 0;        // B
  int32_t num_points = 0;         // N, of each
  int32_t num_selected = 0;       // M, of each
  const float* points = nullptr;  // [B, N, 3]
  float* distances = nullptr;     // [B, N] scratch
  int32_t* selected = nullptr;    // [B, M]
};
static_assert(std::is_trivially_copyable_v<PlainFarthestPointSampleParams>);

// Keeps the promises of kernels/core/cuda_stream.h.
cudaError_t PlainFarthestPointSample(const PlainFarthestPointSampleParams& params, cudaStream_t stream);

}  // namespace voxserve::bench
