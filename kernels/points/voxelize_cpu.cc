#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/coordinates/compact_key.h"
#include "kernels/coordinates/coordinate_key.h"
#include "kernels/core/chunks.h"
#include "kernels/core/floats.h"
#include "kernels/core/radix_sort.h"
#include "kernels/points/voxelize.h"

namespace voxserve::kernels {
namespace {

// An item of the radix sort: a voxel's coordinates, packed into as few bits as this batch needs, and the point.
struct PointKey {
  uint64_t key;
  int64_t point;
};

constexpr int64_t kPointsAChunk = 4096;

int32_t* IndexArray(const VoxelizeParams& params) {
  return reinterpret_cast<int32_t*>(static_cast<char*>(params.workspace) +
                                    2 * static_cast<size_t>(params.num_points) * sizeof(PointKey));
}

}  // namespace

size_t VoxelizeWorkspaceBytes(const VoxelizeParams& params) {
  const auto num_points = static_cast<size_t>(params.num_points);
  return num_points * (2 * sizeof(PointKey) + static_cast<size_t>(params.dimension) * sizeof(int32_t));
}

int32_t VoxelIndexLimit(int32_t dimension, VoxelOrigin origin) {
  const int32_t limit = CoordinateKey(dimension).max_coordinate();
  return origin == VoxelOrigin::kMinimum ? limit / 2 : limit;
}

void GridShape(const VoxelizeParams& params, int64_t shape[kMaxDimension]) {
  for (int axis = 0; axis < kMaxDimension; ++axis) {
    shape[axis] = 1;
    if (axis >= params.dimension) continue;
    const double cells = (double{params.range_max[axis]} - double{params.range_min[axis]}) / params.voxel_size[axis];
    shape[axis] = static_cast<int64_t>(std::clamp(std::nearbyint(cells), 0.0, 9e15));
  }
}

Axes VoxelExtent(const VoxelizeParams& params) {
  Axes extent = {0, 0, 0, 0};
  int64_t shape[kMaxDimension];
  GridShape(params, shape);
  for (int axis = 0; axis < params.dimension; ++axis) {
    int64_t cells = 0;
    if (params.origin == VoxelOrigin::kRange) cells = shape[axis];
    if (params.origin == VoxelOrigin::kMinimum && params.axis_bits[axis] > 0) {
      cells = (int64_t{1} << params.axis_bits[axis]) - 1;  // the coordinates that FitsAxisBits allows
    }
    if (cells <= std::numeric_limits<int32_t>::max()) extent[axis] = static_cast<int32_t>(cells);
  }
  return extent;
}

namespace cpu {
namespace {

// A range of points of one sample.
struct PointRange {
  int32_t sample;
  int64_t begin;
  int64_t end;

  // These count only points with a voxel.
  int64_t num_valid = 0;
  Axes min = {};
  Axes max = {};
  int64_t num_invalid = 0;
  int64_t num_out_of_range = 0;
};

class PointIndexer {
 public:
  explicit PointIndexer(const VoxelizeParams& params) : params_(params) {
    int64_t shape[kMaxDimension];
    GridShape(params, shape);
    for (int axis = 0; axis < params.dimension; ++axis) {
      const int64_t limit = VoxelIndexLimit(params.dimension, params.origin);
      const bool is_grid = params.origin == VoxelOrigin::kRange;
      min_index_[axis] = static_cast<double>(is_grid ? 0 : -limit);
      max_index_[axis] = static_cast<double>(is_grid ? std::min(shape[axis] - 1, limit) : limit);
      shift_[axis] = is_grid ? params.range_min[axis] : 0.0F;
    }
  }

  // Fills index[0, dimension); returns 0 or the code of a point without a voxel.
  int32_t Index(int64_t point, int32_t* index) const {
    const float* x = params_.axes.floats(point);
    if (params_.is_valid != nullptr && params_.is_valid[point] == 0) return kInvalidPoint;
    for (int axis = 0; axis < params_.dimension; ++axis) {
      if (!(std::fabs(x[axis]) <= std::numeric_limits<float>::max())) return kInvalidPoint;
    }
    for (int axis = 0; axis < params_.dimension; ++axis) {
      if (params_.has_range && !(x[axis] >= params_.range_min[axis] && x[axis] < params_.range_max[axis])) {
        return kOutOfRangePoint;
      }
      const float cells = (x[axis] - shift_[axis]) / params_.voxel_size[axis];
      const float rounded = params_.rounding == VoxelRounding::kHalfEven ? RoundHalfEven(cells) : Floor(cells);
      if (!(rounded >= min_index_[axis] && rounded <= max_index_[axis])) return kOutOfRangePoint;
      index[axis] = static_cast<int32_t>(rounded);
    }
    return 0;
  }

 private:
  const VoxelizeParams& params_;
  double min_index_[kMaxDimension] = {};
  double max_index_[kMaxDimension] = {};
  float shift_[kMaxDimension] = {};
};

std::vector<PointRange> CutIntoRanges(const VoxelizeParams& params) {
  std::vector<PointRange> ranges;
  for (int32_t sample = 0; sample < params.num_samples; ++sample) {
    const int64_t end = params.point_begin[sample + 1];
    for (int64_t begin = params.point_begin[sample]; begin < end; begin += kPointsAChunk) {
      ranges.push_back({.sample = sample, .begin = begin, .end = std::min(end, begin + kPointsAChunk)});
    }
  }
  return ranges;
}

void IndexPoints(const VoxelizeParams& params, PointRange& range) {
  const PointIndexer indexer(params);
  int32_t* indices = IndexArray(params);
  range.min.fill(std::numeric_limits<int32_t>::max());
  range.max.fill(std::numeric_limits<int32_t>::min());
  for (int64_t point = range.begin; point < range.end; ++point) {
    int32_t* index = indices + point * params.dimension;
    const int32_t code = indexer.Index(point, index);
    params.point_to_voxel[point] = code;
    range.num_invalid += code == kInvalidPoint;
    range.num_out_of_range += code == kOutOfRangePoint;
    if (code != 0) continue;
    ++range.num_valid;
    for (int axis = 0; axis < params.dimension; ++axis) {
      range.min[axis] = std::min(range.min[axis], index[axis]);
      range.max[axis] = std::max(range.max[axis], index[axis]);
    }
  }
}

// Sets each sample's counts, and the index that becomes coordinate 0. Returns the CompactKey for all coordinates.
CompactKey PlaceOrigins(const VoxelizeParams& params, const std::vector<PointRange>& ranges) {
  const auto num_samples = static_cast<size_t>(params.num_samples);
  std::fill_n(params.num_invalid, num_samples, 0);
  std::fill_n(params.num_out_of_range, num_samples, 0);
  std::vector<PointRange> samples(num_samples);
  for (const PointRange& range : ranges) {
    PointRange& sample = samples[static_cast<size_t>(range.sample)];
    params.num_invalid[range.sample] += range.num_invalid;
    params.num_out_of_range[range.sample] += range.num_out_of_range;
    if (range.num_valid == 0) continue;
    for (int axis = 0; axis < params.dimension; ++axis) {
      sample.min[axis] = sample.num_valid == 0 ? range.min[axis] : std::min(sample.min[axis], range.min[axis]);
      sample.max[axis] = sample.num_valid == 0 ? range.max[axis] : std::max(sample.max[axis], range.max[axis]);
    }
    sample.num_valid += range.num_valid;
  }

  Axes min = {}, max = {};
  bool is_first = true;
  for (size_t s = 0; s < num_samples; ++s) {
    const bool is_moved = params.origin == VoxelOrigin::kMinimum && samples[s].num_valid > 0;
    params.sample_origin[s] = is_moved ? samples[s].min : Axes{};
    if (samples[s].num_valid == 0) continue;
    for (int axis = 0; axis < params.dimension; ++axis) {
      const int32_t lowest = samples[s].min[axis] - params.sample_origin[s][axis];
      const int32_t highest = samples[s].max[axis] - params.sample_origin[s][axis];
      min[axis] = is_first ? lowest : std::min(min[axis], lowest);
      max[axis] = is_first ? highest : std::max(max[axis], highest);
    }
    is_first = false;
  }
  return CompactKey(CoordinateKey(params.dimension), min, max, params.num_samples);
}

void MakePointKeys(const VoxelizeParams& params, const CompactKey& compact, const PointRange& range, PointKey* out) {
  const int32_t* indices = IndexArray(params);
  const Axes& origin = params.sample_origin[range.sample];
  const uint64_t sample_bits = compact.PackSample(range.sample);
  for (int64_t point = range.begin; point < range.end; ++point) {
    if (params.point_to_voxel[point] != 0) continue;
    const int32_t* index = indices + point * params.dimension;
    uint64_t key = sample_bits;
    for (int axis = 0; axis < params.dimension; ++axis) {
      key |= compact.PackAxis(axis, int64_t{index[axis]} - origin[axis]);
    }
    *out++ = {key, point};
  }
}

// Makes one voxel of each run of sorted points with equal keys. Returns the number of voxels.
int64_t NumberVoxels(const VoxelizeParams& params, const CompactKey& compact, const PointKey* sorted, int64_t num_valid,
                     ThreadPool& pool) {
  const auto is_head = [&](int64_t i) { return i == 0 || sorted[i].key != sorted[i - 1].key; };
  const Chunks chunks(num_valid, kPointsAChunk, pool);
  std::vector<int64_t> first_voxel(static_cast<size_t>(chunks.num_chunks()));
  chunks.ForEach(pool, [&](int64_t chunk, int64_t begin, int64_t end) {
    int64_t heads = 0;
    for (int64_t i = begin; i < end; ++i) heads += is_head(i);
    first_voxel[static_cast<size_t>(chunk)] = heads;
  });
  const int64_t num_voxels = ExclusivePrefixSum(first_voxel);
  chunks.ForEach(pool, [&](int64_t chunk, int64_t begin, int64_t end) {
    int64_t voxel = first_voxel[static_cast<size_t>(chunk)] - 1;
    for (int64_t i = begin; i < end; ++i) {
      if (is_head(i)) {
        ++voxel;
        params.keys[voxel] = compact.Unpack(sorted[i].key);
        params.voxel_begin[voxel] = i;
      }
      params.point_to_voxel[sorted[i].point] = static_cast<int32_t>(voxel);
      params.sorted_points[i] = static_cast<int32_t>(sorted[i].point);
    }
  });
  params.voxel_begin[num_voxels] = num_valid;
  return num_voxels;
}

}  // namespace

void Voxelize(const VoxelizeParams& params, ThreadPool& pool) {
  std::vector<PointRange> ranges = CutIntoRanges(params);
  pool.ParallelFor(static_cast<int64_t>(ranges.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) IndexPoints(params, ranges[static_cast<size_t>(i)]);
  });
  const CompactKey compact = PlaceOrigins(params, ranges);

  auto* items = static_cast<PointKey*>(params.workspace);
  std::vector<int64_t> first_item(ranges.size());
  std::transform(ranges.begin(), ranges.end(), first_item.begin(), [](const PointRange& r) { return r.num_valid; });
  const int64_t num_valid = ExclusivePrefixSum(first_item);
  pool.ParallelFor(static_cast<int64_t>(ranges.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto r = static_cast<size_t>(i);
      MakePointKeys(params, compact, ranges[r], items + first_item[r]);
    }
  });
  const PointKey* sorted = RadixSort(items, items + params.num_points, num_valid, compact.num_bits(), pool,
                                     [](const PointKey& item) { return item.key; });

  const int64_t num_voxels = NumberVoxels(params, compact, sorted, num_valid, pool);
  const CoordinateKey layout(params.dimension);
  for (int32_t sample = 0; sample < params.num_samples; ++sample) {
    params.sample_begin[sample] =
        std::lower_bound(params.keys, params.keys + num_voxels, layout.SampleFloor(sample)) - params.keys;
  }
  params.sample_begin[params.num_samples] = num_voxels;
}

}  // namespace cpu
}  // namespace voxserve::kernels
