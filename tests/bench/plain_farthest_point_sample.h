#pragma once

// Computes farthest point sampling as pointnet2's users do (OpenPCDet, torch_cluster and others), to be compared with
// kernels/points/farthest/farthest_point_sample.h. One block handles a cloud. Every iteration keeps all distances in
// global memory and finds the farthest point by a tree reduction in shared memory. Unlike pointnet2's kernel, it rounds
// and breaks ties as our kernel does, so that the results can be compared. Only benchmarks use it.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"

namespace voxserve::bench {

// All clouds have the same size, and all their points are finite.
struct PlainFarthestPointSampleParams {
  int32_t num_samples = 0;        // B
  int32_t num_points = 0;         // N, of each
  int32_t num_selected = 0;       // M, of each
  const float* points = nullptr;  // [B, N, 3]
  float* distances = nullptr;     // [B, N] scratch
  int32_t* selected = nullptr;    // [B, M]
};
static_assert(std::is_trivially_copyable_v<PlainFarthestPointSampleParams>);

// Writes the numbers of each cloud's farthest points to params.selected. Follows the contract of all launchers in
// kernels/core/cuda_stream.h: it launches on `stream`, never waits and never allocates.
cudaError_t PlainFarthestPointSample(const PlainFarthestPointSampleParams& params, cudaStream_t stream);

}  // namespace voxserve::bench
