#include <bit>

#include "kernels/coordinates/morton_key.h"
#include "kernels/core/floats.h"
#include "kernels/points/farthest/farthest_point_order.cuh"

namespace voxserve::kernels::cuda {
namespace {

constexpr int kMortonAxisBits = 10;
constexpr uint32_t kMaxCell = (1u << kMortonAxisBits) - 1;
constexpr int kInvalidBit = 3 * kMortonAxisBits;  // sorts a key after the valid points of its sample
constexpr int kSampleShift = kInvalidBit + 1;

constexpr int kChunkPoints = 2048;  // points of a block in the passes over all points
constexpr int kMaxChunks = 256;     // the most blocks of a sample in these passes

// Returns bits that, as unsigned integers, have the same order as the floats.
__device__ uint32_t OrderedBits(float value) {
  const uint32_t bits = __float_as_uint(value);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ float FromOrderedBits(uint32_t bits) {
  return __uint_as_float((bits >> 31) != 0 ? bits & 0x7fffffffu : ~bits);
}

__device__ bool IsValidPoint(const FarthestPointSampleParams& params, int64_t row, const float* point) {
  return IsFinite(point[0]) && IsFinite(point[1]) && IsFinite(point[2]) &&
         (params.is_valid == nullptr || params.is_valid[row] != 0);
}

// ---- Kernels -----------------------------------------------------------------------------------------------------

// Calls body(sample, index within the sample, whether this point exists) for all points of a sample, with whole warps.
// The grid must have num_chunks blocks of kBlockThreads threads per sample.
template <typename Body>
__device__ void ForEachPoint(const FarthestPointSampleParams& params, int num_chunks, const Body& body) {
  const int sample = static_cast<int>(blockIdx.x) / num_chunks;
  const int64_t chunk = static_cast<int>(blockIdx.x) % num_chunks;
  const int64_t num_points = params.point_begin[sample + 1] - params.point_begin[sample];
  for (int64_t first = chunk * kBlockThreads; first < num_points; first += int64_t{num_chunks} * kBlockThreads) {
    const int64_t index = first + threadIdx.x;
    body(sample, index, index < num_points);
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    BoundsKernel(const __grid_constant__ FarthestPointSampleParams params, FarthestPointState* states, int num_chunks) {
  FarthestPointState found;
  uint32_t* const words = reinterpret_cast<uint32_t*>(&found);
  constexpr int kWords = sizeof(FarthestPointState) / sizeof(uint32_t);
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = ~0u;
  int64_t num_valid = 0;
  ForEachPoint(params, num_chunks, [&](int sample, int64_t index, bool is_there) {
    if (!is_there) return;
    const int64_t begin = params.point_begin[sample];
    const float* const point = FloatsOf(params.points, begin + index);
    if (!IsValidPoint(params, begin + index, point)) return;
    ++num_valid;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      found.lowest[axis] = min(found.lowest[axis], OrderedBits(point[axis]));
      found.highest_complement[axis] = min(found.highest_complement[axis], ~OrderedBits(point[axis]));
    }
    const int64_t num_points = params.point_begin[sample + 1] - begin;
    const int64_t start = params.starts == nullptr ? 0 : params.starts[sample];
    if (start < 0 || start >= num_points) return;
    const int64_t offset = index >= start ? index - start : index - start + num_points;
    found.start_offset = min(found.start_offset, static_cast<uint32_t>(offset));
  });
  const int sample = static_cast<int>(blockIdx.x) / num_chunks;
  uint32_t* const all = reinterpret_cast<uint32_t*>(states + sample);
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    words[i] = ~WarpMax(~words[i]);
    if (threadIdx.x % kWarpThreads == 0 && words[i] != ~0u) atomicMin(all + i, words[i]);
  }
  num_valid = BlockSum(num_valid);
  if (threadIdx.x == 0 && num_valid != 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(params.num_valid + sample),
              static_cast<unsigned long long>(num_valid));
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    KeysKernel(const __grid_constant__ FarthestPointSampleParams params,
               const __grid_constant__ FarthestPointWorkspace workspace, int num_chunks) {
  ForEachPoint(params, num_chunks, [&](int sample, int64_t index, bool is_there) {
    if (!is_there) return;
    const int64_t row = params.point_begin[sample] + index;
    const float* const point = FloatsOf(params.points, row);
    uint64_t code = uint64_t{1} << kInvalidBit;
    if (IsValidPoint(params, row, point)) {
      const FarthestPointState& state = workspace.states[sample];
      float lowest[3], extent = 0;
#pragma unroll
      for (int axis = 0; axis < 3; ++axis) {
        lowest[axis] = FromOrderedBits(state.lowest[axis]);
        extent = fmaxf(extent, FromOrderedBits(~state.highest_complement[axis]) - lowest[axis]);
      }
      // Cells are cubes, so that buckets are compact. The result does not depend on the cells. If the product below is
      // NaN (the extent is 0 or beyond float's range), the last cell is taken.
      const float cells_a_metre = static_cast<float>(kMaxCell) / extent;
      code = 0;
#pragma unroll
      for (int axis = 0; axis < 3; ++axis) {
        const float cell = fminf((point[axis] - lowest[axis]) * cells_a_metre, static_cast<float>(kMaxCell));
        code |= MortonKey<3>::Spread(static_cast<uint64_t>(cell)) << axis;
      }
    }
    workspace.keys[0][row] = static_cast<uint64_t>(sample) << kSampleShift | code;
    workspace.order[0][row] = static_cast<int32_t>(index);
  });
}

// Writes the sorted points, their first distances, and the boxes of buckets. Each warp handles one bucket of 32 points.
__global__ void __launch_bounds__(kBlockThreads)
    GatherKernel(const __grid_constant__ FarthestPointSampleParams params,
                 const __grid_constant__ FarthestPointWorkspace workspace, const int32_t* order, int num_chunks) {
  ForEachPoint(params, num_chunks, [&](int sample, int64_t position, bool) {
    const int64_t num_valid = params.num_valid[sample];
    if (position / kWarpThreads * kWarpThreads >= num_valid) return;
    const int64_t begin = params.point_begin[sample];
    uint32_t lowest[3] = {~0u, ~0u, ~0u}, highest_complement[3] = {~0u, ~0u, ~0u}, complement = 0;
    if (position < num_valid) {
      const int32_t index = order[begin + position];
      const float* const point = FloatsOf(params.points, begin + index);
      complement = ~static_cast<uint32_t>(index);
      workspace.points[begin + position] = {point[0], point[1], point[2], __uint_as_float(complement)};
      workspace.distances[begin + position] = __uint_as_float(0x7f800000u);
#pragma unroll
      for (int axis = 0; axis < 3; ++axis) {
        lowest[axis] = OrderedBits(point[axis]);
        highest_complement[axis] = ~lowest[axis];
      }
    }
    FarthestPointBox box;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      box.lowest[axis] = FromOrderedBits(~WarpMax(~lowest[axis]));
      box.highest[axis] = FromOrderedBits(WarpMax(~highest_complement[axis]));
    }
    box.complement = WarpMax(complement);
    box.unused = 0;
    if (position % kWarpThreads == 0) workspace.boxes[FirstBox(params, sample) + position / kWarpThreads] = box;
  });
}

}  // namespace

// ---- Launchers ---------------------------------------------------------------------------------------------------

cudaError_t OrderFarthestPoints(const FarthestPointSampleParams& params, const FarthestPointWorkspace& workspace,
                                cudaStream_t stream) {
  const auto num_samples = static_cast<size_t>(params.num_samples);
  VOXSERVE_RETURN_IF_CUDA(cudaMemsetAsync(params.num_valid, 0, num_samples * sizeof(*params.num_valid), stream));
  if (params.num_points == 0) return cudaSuccess;
  VOXSERVE_RETURN_IF_CUDA(cudaMemsetAsync(workspace.states, 0xff, num_samples * sizeof(FarthestPointState), stream));
  const auto num_chunks =
      static_cast<int>(std::clamp<int64_t>((MaxSamplePoints(params) + kChunkPoints - 1) / kChunkPoints, 1, kMaxChunks));
  const auto num_blocks = static_cast<unsigned>(params.num_samples * num_chunks);
  BoundsKernel<<<num_blocks, kBlockThreads, 0, stream>>>(params, workspace.states, num_chunks);
  VOXSERVE_RETURN_IF_CUDA(LaunchStatus(stream));
  KeysKernel<<<num_blocks, kBlockThreads, 0, stream>>>(params, workspace, num_chunks);
  VOXSERVE_RETURN_IF_CUDA(LaunchStatus(stream));
  cub::DoubleBuffer<uint64_t> keys(workspace.keys[0], workspace.keys[1]);
  cub::DoubleBuffer<int32_t> order(workspace.order[0], workspace.order[1]);
  const int num_bits = kSampleShift + static_cast<int>(std::bit_width(static_cast<uint32_t>(params.num_samples - 1)));
  size_t sort_bytes = workspace.sort_bytes;
  VOXSERVE_RETURN_IF_CUDA(cub::DeviceRadixSort::SortPairs(workspace.sort_scratch, sort_bytes, keys, order,
                                                          static_cast<int>(params.num_points), 0, num_bits, stream));
  GatherKernel<<<num_blocks, kBlockThreads, 0, stream>>>(params, workspace, order.Current(), num_chunks);
  return LaunchStatus(stream);
}

}  // namespace voxserve::kernels::cuda
