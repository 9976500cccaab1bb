#include <algorithm>

#include "kernels/coordinates/coordinate_table.h"
#include "kernels/points/interpolation_place.h"
#include "kernels/points/interpolation_weights.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kBlockPositions = 4096;

class WeightMaker {
 public:
  WeightMaker(const InterpolationWeightsParams& params, const CoordinateTable& table)
      : params_(params), table_(table), layout_(params.dimension) {}

  void Make(int64_t position) const {
    const int32_t num_neighbours = 1 << params_.dimension;
    int32_t* const neighbours = params_.neighbours + position * params_.pitch;
    float* const weights = params_.weights + position * params_.pitch;
    std::fill_n(neighbours, num_neighbours, -1);
    std::fill_n(weights, num_neighbours, 0.0F);
    int64_t row = position;
    const float* axes = nullptr;
    if (params_.point_to_voxel != nullptr) {
      row = params_.point_to_voxel[position];
      axes = params_.axes.floats(position);
      if (row < 0) return;
    }
    const uint64_t key = params_.position_keys[row];
    AxisPosition places[kMaxDimension];
    for (int axis = 0; axis < params_.dimension; ++axis) {
      places[axis] = PlaceOnAxis(params_, axis, layout_.Coordinate(key, axis), axes);
    }
    float sum = 0;
    for (int32_t n = 0; n < num_neighbours; ++n) {
      const float weight = Weight(places, n);
      if (weight == 0) continue;
      neighbours[n] = Find(layout_.Sample(key), places, n);
      if (neighbours[n] < 0) continue;
      weights[n] = weight;
      sum += weight;
    }
    for (int32_t n = 0; n < num_neighbours; ++n) weights[n] /= sum + kWeightEpsilon;
  }

 private:
  float Weight(const AxisPosition* places, int32_t neighbour) const {
    float weight = 1;
    for (int axis = 0; axis < params_.dimension; ++axis) {
      const float fraction = places[axis].fraction;
      weight *= IsHigher(params_.dimension, neighbour, axis) ? fraction : 1 - fraction;
    }
    return weight;
  }

  int32_t Find(int32_t sample, const AxisPosition* places, int32_t neighbour) const {
    Axes coordinate = {0, 0, 0, 0};
    for (int axis = 0; axis < params_.dimension; ++axis) {
      const int64_t site = places[axis].site + (IsHigher(params_.dimension, neighbour, axis) ? 1 : 0);
      if (site < layout_.min_coordinate() || site > layout_.max_coordinate()) return -1;
      coordinate[axis] = static_cast<int32_t>(site);
    }
    return table_.Find(layout_.Pack(sample, coordinate));
  }

  const InterpolationWeightsParams& params_;
  const CoordinateTable& table_;
  const CoordinateKey layout_;
};

}  // namespace

void InterpolationWeights(const InterpolationWeightsParams& params, ThreadPool& pool,
                          std::pmr::memory_resource* memory) {
  if (params.num_positions == 0) return;
  CoordinateTable table(memory);
  table.Build({.dimension = params.dimension, .keys = params.keys, .num_keys = params.num_sites}, pool);
  const WeightMaker maker(params, table);
  pool.ParallelFor(params.num_positions, kBlockPositions, [&](int64_t begin, int64_t end) {
    for (int64_t position = begin; position < end; ++position) maker.Make(position);
  });
}

}  // namespace voxserve::kernels::cpu
