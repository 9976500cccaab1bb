#pragma once

// Puts the points of farthest_point_sample.h into the order in which its kernel takes them: every sample's valid points
// along a Morton curve, with a bounding box for every 32 of them. Only .cu files include this header.

#include <algorithm>
#include <cstdint>
#include <cub/device/device_radix_sort.cuh>

#include "kernels/core/launch.cuh"
#include "kernels/core/row_tiles.cuh"
#include "kernels/points/farthest/farthest_point_sample.h"

namespace voxserve::kernels::cuda {

// The state of a sample's valid points. All bits are 1 if there are none.
struct FarthestPointState {
  uint32_t lowest[3];  // of OrderedBits
  uint32_t highest_complement[3];
  uint32_t start_offset;  // places from the start that was asked for to the first valid point, in a cycle
};

// The bounding box of 32 of a sample's sorted points; the last one may have fewer.
struct alignas(16) FarthestPointBox {
  float lowest[3];
  float highest[3];
  uint32_t complement;  // of the lowest index
  uint32_t unused;
};

struct FarthestPointWorkspace {
  explicit FarthestPointWorkspace(const FarthestPointSampleParams& params) {
    cub::DoubleBuffer<uint64_t> no_keys;
    cub::DoubleBuffer<int32_t> no_order;
    // Asks for the memory to sort by all bits, since fewer bits need no more. An error comes up again when the sort
    // runs.
    static_cast<void>(
        cub::DeviceRadixSort::SortPairs(nullptr, sort_bytes, no_keys, no_order, static_cast<int>(params.num_points)));
    WorkspaceCutter cutter(params.workspace);
    states = cutter.Take<FarthestPointState>(params.num_samples);
    for (uint64_t*& buffer : keys) buffer = cutter.Take<uint64_t>(params.num_points);
    for (int32_t*& buffer : order) buffer = cutter.Take<int32_t>(params.num_points);
    points = cutter.Take<float4>(params.num_points);
    distances = cutter.Take<float>(params.num_points);
    boxes = cutter.Take<FarthestPointBox>(params.num_points / kWarpThreads + params.num_samples);
    sort_scratch = cutter.Take<char>(static_cast<int64_t>(sort_bytes));
    bytes = cutter.bytes();
  }

  FarthestPointState* states;
  uint64_t* keys[2];        // the sample, whether the point is invalid, the Morton code
  int32_t* order[2];        // indices within the sample
  float4* points;           // sorted: x, y, z, the complement of the index
  float* distances;         // of those
  FarthestPointBox* boxes;  // the boxes of 32 points each; a sample's begin at FirstBox(sample)
  char* sort_scratch;
  size_t sort_bytes = 0;
  size_t bytes;
};

// Returns where a sample's boxes begin. It does not depend on which points of other samples are valid.
__device__ inline int64_t FirstBox(const FarthestPointSampleParams& params, int sample) {
  return params.point_begin[sample] / kWarpThreads + sample;
}

__device__ inline uint32_t WarpMax(uint32_t value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_max_sync(~0u, value);
#else
#pragma unroll
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    value = max(value, __shfl_xor_sync(~0u, value, distance));
  }
  return value;
#endif
}

inline int64_t MaxSamplePoints(const FarthestPointSampleParams& params) {
  return params.max_sample_points == 0 ? params.num_points : std::min(params.max_sample_points, params.num_points);
}

// Fills num_valid and the workspace's states, points, distances (+infinity) and boxes. params.num_samples > 0.
cudaError_t OrderFarthestPoints(const FarthestPointSampleParams& params, const FarthestPointWorkspace& workspace,
                                cudaStream_t stream);

}  // namespace voxserve::kernels::cuda
