#pragma once

// Computes farthest point sampling as pointnet2's users do (OpenPCDet, torch_cluster and others), to be compared with
// kernels/points/farthest/farthest_point_sample.h. One block handles a cloud; every iteration has all distances in
// global memory and finds the farthest point by halving through shared memory. Unlike theirs, it rounds and breaks ties
// as ours does, so that the results can be compared. Only benchmarks use it.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"

namespace voxserve::bench {

// Clouds of the same size whose points are all finite.
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
