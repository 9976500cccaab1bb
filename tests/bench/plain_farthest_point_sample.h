#pragma once

// Computes farthest point sampling as pointnet2's CUDA kernel does, which OpenPCDet, torch_cluster and others use. Only
// a benchmark uses this kernel, to compare it with kernels/points/farthest/farthest_point_sample.h. One block handles a
// cloud. Distances stay in global memory, and each iteration finds the farthest point by a tree reduction in shared
// memory. Unlike pointnet2's kernel, this one rounds distances and breaks ties as ours does, so that the results of
// both can be compared.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"

namespace voxserve::bench {

// All clouds have the same size, and all their points are finite.
struct PlainFarthestPointSampleParams {
  int32_t num_samples = 0;        // B
  int32_t num_points = 0;         // N, of each cloud
  int32_t num_selected = 0;       // M, of each cloud
  const float* points = nullptr;  // [B, N, 3]
  float* distances = nullptr;     // [B, N] scratch
  int32_t* selected = nullptr;    // [B, M]
};
static_assert(std::is_trivially_copyable_v<PlainFarthestPointSampleParams>);

// Writes the numbers of each cloud's farthest points to params.selected. Follows the contract of all launchers in
// kernels/core/cuda_stream.h: it launches on `stream`, never waits and never allocates.
cudaError_t PlainFarthestPointSample(const PlainFarthestPointSampleParams& params, cudaStream_t stream);

}  // namespace voxserve::bench
