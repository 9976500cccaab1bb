#include "kernels/coordinates/coordinate_table.cuh"
#include "kernels/coordinates/morton_key.h"
#include "kernels/core/epilogue.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_tiles.cuh"
#include "kernels/core/visit_dimension.cuh"
#include "kernels/points/interpolation_place.h"
#include "kernels/points/interpolation_weights.h"

namespace voxserve::kernels::cuda {
namespace {

CoordinateTableBuildParams TableOf(const InterpolationWeightsParams& params) {
  return {.keys = params.keys,
          .capacity = params.num_sites,
          .num_keys = params.device_num_sites,
          .memory = params.workspace};
}

// A thread handles one position.
template <int kDimension>
__global__ void __launch_bounds__(kBlockThreads)
    InterpolationWeightsKernel(const __grid_constant__ InterpolationWeightsParams params, const CoordinateTable level) {
  using Key = MortonKey<kDimension>;
  constexpr int kNeighbours = 1 << kDimension;
  constexpr CoordinateKey kLimits(kDimension);
  const int64_t position = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (position >= NumRows(params.num_positions, params.device_num_positions)) return;
  const bool is_point = params.point_to_voxel != nullptr;
  const int64_t row = is_point ? params.point_to_voxel[position] : position;

  Pack<float, kNeighbours> weights{};
  uint64_t keys[kNeighbours];
#pragma unroll
  for (int n = 0; n < kNeighbours; ++n) keys[n] = kNoKey;
  if (row >= 0) {
    const uint64_t key = params.position_keys[row];
    const float* const axes = is_point ? FloatsOf(params.axes, position) : nullptr;
    AxisPosition places[kDimension];
#pragma unroll
    for (int axis = 0; axis < kDimension; ++axis) {
      places[axis] = PlaceOnAxis(params, axis, Key::Coordinate(key, axis), axes);
    }
#pragma unroll
    for (int n = 0; n < kNeighbours; ++n) {
      float weight = 1;
      bool is_within = true;
      Axes coordinate = {0, 0, 0, 0};
#pragma unroll
      for (int axis = 0; axis < kDimension; ++axis) {
        const bool is_higher = IsHigher(kDimension, n, axis);
        weight *= is_higher ? places[axis].fraction : 1 - places[axis].fraction;
        const int64_t site = places[axis].site + (is_higher ? 1 : 0);
        is_within = is_within && site >= kLimits.min_coordinate() && site <= kLimits.max_coordinate();
        coordinate[axis] = static_cast<int32_t>(site);
      }
      weights.values[n] = weight;
      if (is_within && weight != 0) keys[n] = Key::Pack(Key::Sample(key), coordinate);
    }
  }

  int32_t found[kNeighbours];
  // A look-up of kNoKey finds an empty slot, whose row is -1.
  HashTable(level).Find(keys, kNeighbours, found);
  Pack<int32_t, kNeighbours> neighbours;
  float sum = 0;
#pragma unroll
  for (int n = 0; n < kNeighbours; ++n) {
    neighbours.values[n] = found[n];
    if (found[n] < 0) weights.values[n] = 0;
    sum += weights.values[n];
  }
#pragma unroll
  for (int n = 0; n < kNeighbours; ++n) weights.values[n] /= sum + kWeightEpsilon;
  *reinterpret_cast<Pack<int32_t, kNeighbours>*>(params.neighbours + position * params.pitch) = neighbours;
  *reinterpret_cast<Pack<float, kNeighbours>*>(params.weights + position * params.pitch) = weights;
}

}  // namespace

size_t InterpolationWeightsWorkspaceBytes(const InterpolationWeightsParams& params) {
  return CoordinateTableBytes(TableOf(params));
}

cudaError_t InterpolationWeights(const InterpolationWeightsParams& params, cudaStream_t stream) {
  if (params.num_positions == 0) return cudaSuccess;
  const NvtxRange range("InterpolationWeights");
  CoordinateTable table;
  VOXSERVE_RETURN_IF_CUDA(BuildCoordinateTable(TableOf(params), &table, stream));
  return VisitDimension(params.dimension, [&](auto dimension) {
    InterpolationWeightsKernel<dimension()>
        <<<NumBlocks(params.num_positions), kBlockThreads, 0, stream>>>(params, table);
    return LaunchStatus(stream);
  });
}

}  // namespace voxserve::kernels::cuda
