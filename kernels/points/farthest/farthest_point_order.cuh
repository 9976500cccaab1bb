#pragma once

// OrderFarthestPoints prepares the points for SelectFarthestPointsKernel (farthest_point_select.cuh). It sorts every
// sample's valid points along a Morton curve, and makes a bounding box for every 32 sorted points. Only .cu files
// include this header.

#include <algorithm>
#include <cstdint>
#include <cub/device/device_radix_sort.cuh>

#include "kernels/core/launch.cuh"
#include "kernels/core/row_tiles.cuh"
#include "kernels/points/farthest/farthest_point_sample.h"

namespace voxserve::kernels::cuda {

// The bounds of a sample's valid points and its start. All bits are 1 if the sample has no valid point. Bounds have the
// form OrderedBits(coordinate), which are integers in the order of the floats; the highest is stored as its complement.
struct FarthestPointState {
  uint32_t lowest[3];
  uint32_t highest_complement[3];
  uint32_t start_offset;  // points from the requested start to the first valid point, wrapping at the sample's end
};

// The bounding box of 32 consecutive sorted points of a sample. The sample's last box may have fewer points.
struct alignas(16) FarthestPointBox {
  float lowest[3];
  float highest[3];
  uint32_t complement;  // ~(the lowest index of the box's points)
  uint32_t unused;
};

// The arrays in params.workspace. With a null workspace, only `bytes` is valid.
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
  uint64_t* keys[2];        // [num_points] sort keys: the sample, whether the point is invalid, the Morton code
  int32_t* order[2];        // [num_points] indices within the sample
  float4* points;           // [num_points] sorted: x, y, z, and the bits of ~index
  float* distances;         // [num_points] distances of the sorted points
  FarthestPointBox* boxes;  // a sample's boxes begin at FirstBox(params, sample)
  char* sort_scratch;
  size_t sort_bytes = 0;
  size_t bytes;  // size of the workspace
};

// Returns the index of a sample's first box. It depends only on point_begin, not on which points are valid.
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

// Returns an upper bound of the points of one sample.
inline int64_t MaxSamplePoints(const FarthestPointSampleParams& params) {
  return params.max_sample_points == 0 ? params.num_points : std::min(params.max_sample_points, params.num_points);
}

// Fills num_valid and the workspace's states, points, distances (+infinity) and boxes. params.num_samples > 0.
cudaError_t OrderFarthestPoints(const FarthestPointSampleParams& params, const FarthestPointWorkspace& workspace,
                                cudaStream_t stream);

}  // namespace voxserve::kernels::cuda
