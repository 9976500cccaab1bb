#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/coordinates/morton_key.h"
#include "kernels/core/radix_sort.h"
#include "kernels/points/farthest/farthest_point_sample.h"

// Farthest point sampling on a CPU (farthest_point_sample.h). This file is compiled without contraction into fused
// multiply-adds, which round once where the definition rounds twice.

namespace voxserve::kernels::cpu {
namespace {

constexpr int kMortonAxisBits = 10;
constexpr uint64_t kMaxCell = (uint64_t{1} << kMortonAxisBits) - 1;
constexpr int kInvalidBit = 3 * kMortonAxisBits;  // sorts a key after the valid points of its sample
constexpr int kSampleShift = kInvalidBit + 1;

constexpr int kLeafPoints = 32;
constexpr int kFanout = 8;
constexpr int kMaxLevels = 10;  // 8^10 leaves hold more than 2^31 points
constexpr int64_t kPointsAChunk = 4096;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNone = -1;  // less than any distance

// An item of the radix sort.
struct PointKey {
  uint64_t key;
  int64_t row;
};

// A bucket: points that are neighbours in Morton order, sorted by index.
struct alignas(64) Leaf {
  float x[kLeafPoints], y[kLeafPoints], z[kLeafPoints];
  float distance[kLeafPoints];  // kNone if there is no point
  int32_t index[kLeafPoints];
};

// The boxes and the farthest points of 8 leaves, or of 8 groups of the level below.
struct alignas(64) Group {
  float lowest[3][kFanout];
  float highest[3][kFanout];
  float distance[kFanout];  // kNone if there is no child
  int32_t index[kFanout];
};

struct Furthest {
  float distance = kNone;
  int32_t index = std::numeric_limits<int32_t>::max();
};

struct SampleBounds {
  float lowest[3];
  double cells_a_metre;
  int32_t start;  // the first valid point from the requested start on; if there is none, the first valid point
};

bool IsBefore(float distance, int32_t index, const Furthest& other) {
  return distance > other.distance || (distance == other.distance && index < other.index);
}

// Returns the squared length of a vector: to a point, the distance of the definition; to the nearest place in a box, a
// lower bound of the distances. Both are rounded in the same way.
float SquaredLength(float x, float y, float z) { return (x * x + y * y) + z * z; }

// There is at least one level of groups above the leaves. For L leaves, L / 7 groups and one more per level are enough.
constexpr int64_t kPointsAGroup = int64_t{kLeafPoints} * (kFanout - 1);

// The places of a sample's parts in the arrays depend only on the numbers of points of the samples.
class Workspace {
 public:
  Workspace(const FarthestPointSampleParams& params, void* base) : params_(params), base_(static_cast<char*>(base)) {
    const int64_t num_leaves = params.num_points / kLeafPoints + params.num_samples;
    const int64_t num_groups = params.num_points / kPointsAGroup + params.num_samples * (kMaxLevels + 1);
    leaves_ = Take<Leaf>(num_leaves);
    groups_ = Take<Group>(num_groups);
    for (PointKey*& buffer : keys) buffer = Take<PointKey>(params.num_points);
    bounds = Take<SampleBounds>(params.num_samples);
    leaf_sizes_ = Take<int32_t>(num_leaves);
    leaf_of = Take<int32_t>(params.num_points);
  }

  Leaf* leaves(int32_t sample) const { return leaves_ + FirstLeaf(sample); }
  int32_t* leaf_sizes(int32_t sample) const { return leaf_sizes_ + FirstLeaf(sample); }
  Group* groups(int32_t sample) const {
    return groups_ + params_.point_begin[sample] / kPointsAGroup + int64_t{sample} * (kMaxLevels + 1);
  }
  size_t bytes() const { return bytes_; }

  PointKey* keys[2];
  SampleBounds* bounds;  // [B]
  int32_t* leaf_of;      // [N] index of a point's leaf in its sample; kNothingSelected for an invalid point

 private:
  int64_t FirstLeaf(int32_t sample) const { return params_.point_begin[sample] / kLeafPoints + sample; }

  template <typename T>
  T* Take(int64_t count) {
    constexpr size_t kAlignment = 64;
    T* const array = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += (static_cast<size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return array;
  }

  const FarthestPointSampleParams& params_;
  char* base_;
  size_t bytes_ = 0;
  Leaf* leaves_;
  Group* groups_;
  int32_t* leaf_sizes_;
};

bool IsValidPoint(const FarthestPointSampleParams& params, int64_t row) {
  const float* const point = params.points.floats(row);
  return std::isfinite(point[0]) && std::isfinite(point[1]) && std::isfinite(point[2]) &&
         (params.is_valid == nullptr || params.is_valid[row] != 0);
}

// Fills bounds and num_valid of a sample.
void FindBounds(const FarthestPointSampleParams& params, int32_t sample, SampleBounds& bounds) {
  const int64_t begin = params.point_begin[sample], end = params.point_begin[sample + 1];
  const int64_t start = params.starts == nullptr ? 0 : params.starts[sample];
  float lowest[3] = {kInfinity, kInfinity, kInfinity}, highest[3] = {-kInfinity, -kInfinity, -kInfinity};
  int64_t num_valid = 0, first = -1, first_from_start = -1;
  for (int64_t row = begin; row < end; ++row) {
    if (!IsValidPoint(params, row)) continue;
    ++num_valid;
    if (first < 0) first = row - begin;
    if (first_from_start < 0 && row - begin >= start) first_from_start = row - begin;
    for (int axis = 0; axis < 3; ++axis) {
      const float value = params.points.floats(row)[axis];
      lowest[axis] = std::min(lowest[axis], value);
      highest[axis] = std::max(highest[axis], value);
    }
  }
  params.num_valid[sample] = num_valid;
  bounds.start = static_cast<int32_t>(first_from_start < 0 ? first : first_from_start);
  double extent = 0;
  for (int axis = 0; axis < 3; ++axis) {
    bounds.lowest[axis] = lowest[axis];
    extent = std::max(extent, static_cast<double>(highest[axis]) - static_cast<double>(lowest[axis]));
  }
  // Cells are cubes, so that buckets are compact.
  bounds.cells_a_metre = num_valid > 0 && extent > 0 ? static_cast<double>(kMaxCell) / extent : 0;
}

uint64_t KeyOf(const FarthestPointSampleParams& params, int32_t sample, int64_t row, const SampleBounds& bounds) {
  uint64_t code = uint64_t{1} << kInvalidBit;
  if (IsValidPoint(params, row)) {
    const float* const point = params.points.floats(row);
    code = 0;
    for (int axis = 0; axis < 3; ++axis) {
      const double cell = (static_cast<double>(point[axis]) - bounds.lowest[axis]) * bounds.cells_a_metre;
      code |= MortonKey<3>::Spread(std::min(static_cast<uint64_t>(cell), kMaxCell)) << axis;
    }
  }
  return static_cast<uint64_t>(sample) << kSampleShift | code;
}

// Returns the rows of all samples: first a sample's valid points in Morton order, then its other points.
const PointKey* SortPoints(const FarthestPointSampleParams& params, const Workspace& workspace, ThreadPool& pool) {
  const int64_t* const point_begin = params.point_begin;
  pool.ParallelFor(params.num_points, kPointsAChunk, [&](int64_t begin, int64_t end) {
    auto sample = static_cast<int32_t>(std::upper_bound(point_begin, point_begin + params.num_samples + 1, begin) -
                                       point_begin - 1);
    for (int64_t row = begin; row < end; ++row) {
      while (row >= point_begin[sample + 1]) ++sample;
      workspace.keys[0][row] = {KeyOf(params, sample, row, workspace.bounds[sample]), row};
    }
  });
  const int num_bits = kSampleShift + static_cast<int>(std::bit_width(static_cast<uint32_t>(params.num_samples - 1)));
  return RadixSort(workspace.keys[0], workspace.keys[1], params.num_points, num_bits, pool,
                   [](const PointKey& item) { return item.key; });
}

// The tree of buckets of one sample.
class BucketTree {
 public:
  // sorted: the sample's rows in the order of SortPoints. The sample must have a valid point.
  BucketTree(const FarthestPointSampleParams& params, int32_t sample, const PointKey* sorted,
             const Workspace& workspace)
      : leaves_(workspace.leaves(sample)) {
    FillLeaves(params, sample, sorted, workspace);
    const int64_t num_leaves = (params.num_valid[sample] + kLeafPoints - 1) / kLeafPoints;
    Group* groups = workspace.groups(sample);
    int64_t num_children = num_leaves;
    for (num_levels_ = 0; num_levels_ == 0 || num_children > 1; ++num_levels_) {
      levels_[num_levels_] = groups;
      const int64_t num_groups = (num_children + kFanout - 1) / kFanout;
      for (int64_t child = 0; child < num_groups * kFanout; ++child) {
        Group& group = groups[child / kFanout];
        const auto c = static_cast<int>(child % kFanout);
        group.distance[c] = kNone;
        group.index[c] = Furthest().index;
        for (int axis = 0; axis < 3; ++axis) group.lowest[axis][c] = group.highest[axis][c] = 0;
        if (child >= num_children) continue;
        if (num_levels_ == 0) {
          Enclose(leaves_[child], group, c);
        } else {
          Enclose(levels_[num_levels_ - 1][child], group, c);
        }
      }
      groups += num_groups;
      num_children = num_groups;
    }
  }

  // Lowers each point's distance to its distance from a new selected point, if that is smaller. Returns the point that
  // is then the farthest.
  Furthest Update(float x, float y, float z) { return UpdateGroup(num_levels_ - 1, 0, x, y, z); }

 private:
  void FillLeaves(const FarthestPointSampleParams& params, int32_t sample, const PointKey* sorted,
                  const Workspace& workspace) {
    const int64_t begin = params.point_begin[sample], end = params.point_begin[sample + 1];
    const int64_t num_valid = params.num_valid[sample];
    int32_t* const sizes = workspace.leaf_sizes(sample);
    for (int64_t i = 0; i < end - begin; ++i) {
      workspace.leaf_of[sorted[i].row] = i < num_valid ? static_cast<int32_t>(i / kLeafPoints) : kNothingSelected;
    }
    std::fill(sizes, sizes + (num_valid + kLeafPoints - 1) / kLeafPoints, 0);
    for (int64_t row = begin; row < end; ++row) {
      const int32_t of = workspace.leaf_of[row];
      if (of == kNothingSelected) continue;
      const float* const point = params.points.floats(row);
      const int32_t i = sizes[of]++;
      Leaf& leaf = leaves_[of];
      leaf.x[i] = point[0], leaf.y[i] = point[1], leaf.z[i] = point[2];
      leaf.distance[i] = kInfinity;
      leaf.index[i] = static_cast<int32_t>(row - begin);
    }
    if (num_valid % kLeafPoints == 0) return;
    Leaf& last = leaves_[num_valid / kLeafPoints];
    for (auto i = static_cast<int>(num_valid % kLeafPoints); i < kLeafPoints; ++i) {
      last.x[i] = last.x[0], last.y[i] = last.y[0], last.z[i] = last.z[0];  // so that the box contains only the points
      last.distance[i] = kNone;
      last.index[i] = Furthest().index;
    }
  }

  static void Enclose(const Leaf& leaf, Group& group, int c) {
    const float* const axes[3] = {leaf.x, leaf.y, leaf.z};
    for (int axis = 0; axis < 3; ++axis) {
      group.lowest[axis][c] = *std::min_element(axes[axis], axes[axis] + kLeafPoints);
      group.highest[axis][c] = *std::max_element(axes[axis], axes[axis] + kLeafPoints);
    }
    group.distance[c] = leaf.distance[0];
    group.index[c] = leaf.index[0];
  }

  static void Enclose(const Group& below, Group& group, int c) {
    for (int axis = 0; axis < 3; ++axis) {
      float lowest = below.lowest[axis][0], highest = below.highest[axis][0];
      for (int i = 1; i < kFanout && below.distance[i] != kNone; ++i) {
        lowest = std::min(lowest, below.lowest[axis][i]);
        highest = std::max(highest, below.highest[axis][i]);
      }
      group.lowest[axis][c] = lowest;
      group.highest[axis][c] = highest;
    }
    const Furthest furthest = FurthestOf(below);
    group.distance[c] = furthest.distance;
    group.index[c] = furthest.index;
  }

  static Furthest FurthestOf(const Group& group) {
    Furthest furthest;
    for (int c = 0; c < kFanout; ++c) {
      if (IsBefore(group.distance[c], group.index[c], furthest)) furthest = {group.distance[c], group.index[c]};
    }
    return furthest;
  }

  Furthest UpdateGroup(int level, int64_t at, float x, float y, float z) {
    Group& group = levels_[level][at];
    float bound[kFanout];
    for (int c = 0; c < kFanout; ++c) {
      const float dx = Outside(x, group.lowest[0][c], group.highest[0][c]);
      const float dy = Outside(y, group.lowest[1][c], group.highest[1][c]);
      const float dz = Outside(z, group.lowest[2][c], group.highest[2][c]);
      bound[c] = SquaredLength(dx, dy, dz);
    }
    for (int c = 0; c < kFanout; ++c) {
      if (!(bound[c] < group.distance[c])) continue;
      const int64_t child = at * kFanout + c;
      const Furthest furthest =
          level == 0 ? UpdateLeaf(leaves_[child], x, y, z) : UpdateGroup(level - 1, child, x, y, z);
      group.distance[c] = furthest.distance;
      group.index[c] = furthest.index;
    }
    return FurthestOf(group);
  }

  // Returns the distance of a coordinate from an interval; 0 inside.
  static float Outside(float value, float lowest, float highest) {
    const float below = lowest - value, above = value - highest;
    const float outside = below > above ? below : above;
    return outside > 0 ? outside : 0;
  }

  static Furthest UpdateLeaf(Leaf& leaf, float x, float y, float z) {
    for (int i = 0; i < kLeafPoints; ++i) {
      const float distance = SquaredLength(leaf.x[i] - x, leaf.y[i] - y, leaf.z[i] - z);
      leaf.distance[i] = distance < leaf.distance[i] ? distance : leaf.distance[i];
    }
    // A leaf's points are sorted by index. So among equal distances, the first one belongs to the lowest index.
    constexpr int kLanes = 8;
    float most[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) most[lane] = leaf.distance[lane];
    for (int first = kLanes; first < kLeafPoints; first += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const float distance = leaf.distance[first + lane];
        most[lane] = distance > most[lane] ? distance : most[lane];
      }
    }
    const float furthest = *std::max_element(most, most + kLanes);
    int i = 0;
    while (leaf.distance[i] != furthest) ++i;
    return {furthest, leaf.index[i]};
  }

  Leaf* leaves_;
  Group* levels_[kMaxLevels];  // from the leaves up
  int num_levels_ = 0;
};

void SelectOf(const FarthestPointSampleParams& params, int32_t sample, const PointKey* sorted,
              const Workspace& workspace) {
  const int64_t begin = params.point_begin[sample];
  const int64_t num_all = params.point_begin[sample + 1] - begin;
  const int64_t first = params.selected_begin[sample];
  const int64_t num_selected = params.selected_begin[sample + 1] - first;
  const int64_t start = params.starts == nullptr ? 0 : params.starts[sample];
  int32_t* const selected = params.selected + first;
  float* const distances = params.distances == nullptr ? nullptr : params.distances + first;
  if (num_selected == 0) return;
  if (num_selected > params.num_valid[sample] || start < 0 || start >= num_all) {
    std::fill(selected, selected + num_selected, kNothingSelected);
    if (distances != nullptr) std::fill(distances, distances + num_selected, kNone);
    return;
  }
  BucketTree tree(params, sample, sorted + begin, workspace);
  Furthest next{.distance = kInfinity, .index = workspace.bounds[sample].start};
  for (int64_t i = 0;; ++i) {
    selected[i] = next.index;
    if (distances != nullptr) distances[i] = next.distance;
    if (i + 1 == num_selected) return;
    const float* const point = params.points.floats(begin + next.index);
    next = tree.Update(point[0], point[1], point[2]);
  }
}

}  // namespace

size_t FarthestPointSampleWorkspaceBytes(const FarthestPointSampleParams& params) {
  return Workspace(params, nullptr).bytes();
}

void FarthestPointSample(const FarthestPointSampleParams& params, ThreadPool& pool) {
  if (params.num_samples == 0) return;
  const Workspace workspace(params, params.workspace);
  pool.ParallelFor(params.num_samples, 1, [&](int64_t begin, int64_t end) {
    for (auto sample = static_cast<int32_t>(begin); sample < end; ++sample) {
      FindBounds(params, sample, workspace.bounds[sample]);
    }
  });
  const PointKey* const sorted = SortPoints(params, workspace, pool);
  pool.ParallelFor(params.num_samples, 1, [&](int64_t begin, int64_t end) {
    for (auto sample = static_cast<int32_t>(begin); sample < end; ++sample) {
      SelectOf(params, sample, sorted, workspace);
    }
  });
}

}  // namespace voxserve::kernels::cpu
