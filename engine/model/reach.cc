#include "engine/model/reach.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

namespace voxserve {
namespace {

using kernels::ConvGeometry;
using kernels::CoordinateRule;
using kernels::kMaxDimension;

constexpr double kInfinite = std::numeric_limits<double>::infinity();
// Stands for the unit of a level whose unit is not known. From kFarthest on, an extent counts as infinite.
constexpr double kUnknownUnit = 1e100;
constexpr double kFarthest = 1e15;

template <typename Op, typename... Ops>
concept OneOf = (std::is_same_v<Op, Ops> || ...);

// Positions relative to another one, from `low` to `high`, in voxels.
struct Offsets {
  double low = 0;
  double high = 0;
};
using OffsetsByAxis = std::array<Offsets, kMaxDimension>;

// The voxels that can change a row at position x: those from x - before to x + after, on each axis. Minus infinity:
// none can, as for learned rows.
struct Extent {
  std::array<double, kMaxDimension> before = {0, 0, 0, 0};
  std::array<double, kMaxDimension> after = {0, 0, 0, 0};

  static Extent Filled(double value) {
    Extent extent;
    extent.before.fill(value);
    extent.after.fill(value);
    return extent;
  }
  static Extent None() { return Filled(-kInfinite); }
  static Extent All() { return Filled(kInfinite); }

  bool IsNone() const { return before[0] == -kInfinite; }

  void Include(const Extent& other) {
    for (size_t axis = 0; axis < kMaxDimension; ++axis) {
      before[axis] = std::max(before[axis], other.before[axis]);
      after[axis] = std::max(after[axis], other.after[axis]);
    }
  }
  // Returns the extent of a row that reads rows with this extent at these offsets.
  Extent At(const OffsetsByAxis& offsets) const {
    Extent moved = *this;
    for (size_t axis = 0; axis < kMaxDimension; ++axis) {
      moved.before[axis] -= offsets[axis].low;
      moved.after[axis] += offsets[axis].high;
    }
    return moved;
  }
};

// Where the cells of a grid lie: cell c of grid axis i is at position c * unit[i] of the cloud's axis axes[i].
struct GridPlace {
  std::array<size_t, kMaxDimension> axes = {0, 1, 2, 3};
  std::array<double, kMaxDimension> unit = {1, 1, 1, 1};  // voxels

  bool operator==(const GridPlace&) const = default;
};

// RowsKnown says which voxels can change a node's rows, and where its cells lie. Learned rows have no place.
struct RowsKnown {
  Extent extent;
  std::optional<GridPlace> place = std::nullopt;
};

class ReachFinder {
 public:
  explicit ReachFinder(const Graph& graph) : graph_(graph), levels_(graph.levels.levels().size()) {}

  Reach Find() {
    for (size_t index = 0; index < graph_.nodes.size(); ++index) {
      index_ = index;
      RowsKnown rows = std::visit([this](const auto& op) { return Follow(op); }, node().op);
      if (node().level >= 0) rows.extent.Include(OfLevel(node().level));
      if (unbounded_by_.empty() && IsUnbounded(rows.extent)) unbounded_by_ = node().name;
      rows_.push_back(rows);
    }
    Reach reach;
    Extent all = Extent::None();
    for (const int output : graph_.OutputNodes()) all.Include(rows_[static_cast<size_t>(output)].extent);
    for (size_t axis = 0; axis < static_cast<size_t>(graph_.dimension); ++axis) {
      // Two points of voxels that are n apart are less than n + 1 voxels apart.
      const double voxels = std::max({all.before[axis], all.after[axis], 0.0}) + 1;
      const double metres = voxels * double{graph_.voxelize_op().voxel_size[axis]};
      reach.distance.push_back(static_cast<float>(voxels < kFarthest ? metres : kInfinite));
    }
    if (IsUnbounded(all)) reach.unbounded_by = unbounded_by_;
    reach.minimum_period = MinimumPeriod();
    return reach;
  }

 private:
  const GraphNode& node() const { return graph_.nodes[index_]; }
  const GraphNode& NodeOf(int index) const { return graph_.nodes[static_cast<size_t>(index)]; }
  const RowsKnown& Input(size_t number) const { return rows_[static_cast<size_t>(node().inputs[number])]; }

  bool IsUnbounded(const Extent& extent) const {
    const auto is_infinite = [&](const std::array<double, kMaxDimension>& values) {
      return std::any_of(values.begin(), values.begin() + graph_.dimension, [](double v) { return v >= kFarthest; });
    };
    return is_infinite(extent.before) || is_infinite(extent.after);
  }

  std::array<double, kMaxDimension> UnitOf(int level) const {
    const SiteUnit& unit = graph_.levels.levels()[static_cast<size_t>(level)].unit;
    std::array<double, kMaxDimension> voxels = {1, 1, 1, 1};
    for (size_t axis = 0; axis < kMaxDimension; ++axis) {
      const bool is_known = unit.voxels[axis] > 0 && unit.parts[axis] > 0;
      voxels[axis] =
          is_known ? static_cast<double>(unit.voxels[axis]) / static_cast<double>(unit.parts[axis]) : kUnknownUnit;
    }
    return voxels;
  }

  // Returns where a row of a convolution reads, relative to its own position. fine: the unit of the finer side.
  OffsetsByAxis Cells(const ConvGeometry& geometry, const std::array<double, kMaxDimension>& fine,
                      bool is_swapped) const {
    OffsetsByAxis offsets;
    for (size_t axis = 0; axis < static_cast<size_t>(geometry.dimension); ++axis) {
      int32_t low = std::numeric_limits<int32_t>::max(), high = std::numeric_limits<int32_t>::min();
      for (int32_t cell = 0; cell < geometry.NumOffsets(); ++cell) {
        const int32_t delta = geometry.Delta(cell)[axis];
        low = std::min(low, delta);
        high = std::max(high, delta);
      }
      if (is_swapped) std::tie(low, high) = std::pair(-high, -low);
      offsets[axis] = {.low = low * fine[axis], .high = high * fine[axis]};
    }
    return offsets;
  }

  // Returns the voxels that decide if a site of the level exists.
  const Extent& OfLevel(int id) {
    std::optional<Extent>& known = levels_[static_cast<size_t>(id)];
    if (known) return *known;
    const CoordinateLevel& level = graph_.levels.levels()[static_cast<size_t>(id)];
    Extent extent = {};
    if (level.parent < 0) {
      if (graph_.voxelize_op().sample) extent = Extent::All();
    } else if (level.united_with >= 0) {
      extent = OfLevel(level.parent);
      extent.Include(OfLevel(level.united_with));
    } else if (level.filter) {
      extent = OfLevel(level.parent);
      if (level.filter->score_node >= 0) extent.Include(rows_[static_cast<size_t>(level.filter->score_node)].extent);
    } else if (level.from.rule == CoordinateRule::kFloor) {
      OffsetsByAxis covered;
      const std::array<double, kMaxDimension> unit = UnitOf(id), fine = UnitOf(level.parent);
      for (size_t axis = 0; axis < kMaxDimension; ++axis) covered[axis].high = unit[axis] - fine[axis];
      extent = OfLevel(level.parent).At(covered);
    } else {
      const bool is_finer = kernels::MakesFinerSites(level.from.rule);
      extent = OfLevel(level.parent).At(Cells(level.from.geometry, UnitOf(is_finer ? id : level.parent), is_finer));
    }
    known = extent;
    return *known;
  }

  Extent HullOfInputs() const {
    Extent hull = Extent::None();
    for (size_t i = 0; i < node().inputs.size(); ++i) hull.Include(Input(i).extent);
    return hull;
  }

  // ---- Operators. Each returns the rows of the current node; Find() adds its level's extent.

  RowsKnown Follow(const FarthestPointSampleOp&) { return {.extent = Extent::All()}; }
  RowsKnown Follow(const OneOf<VoxelizeOp, PointFeaturesOp, PointOffsetsOp, SiteCoordinatesOp, SitePositionOp> auto&) {
    return {.extent = graph_.voxelize_op().sample ? Extent::All() : Extent()};
  }
  RowsKnown Follow(const SampleRowsOp&) { return {.extent = Extent::None()}; }

  // Row by row, or side by side on the same sites.
  RowsKnown Follow(const OneOf<BatchNormOp, LinearOp, ActivationOp, AddOp, ConcatOp, CropOp, PruneOp, VoxelToPointOp,
                               ArgmaxOp, BroadcastOp, ElementwiseOp, RowNormOp, PReluOp, EmbeddingOp, RotaryOp> auto&) {
    RowsKnown rows = {.extent = HullOfInputs()};
    for (size_t i = 0; i < node().inputs.size(); ++i) {
      const std::optional<GridPlace>& place = Input(i).place;
      if (!place || !node().grid) continue;
      if (rows.place && *rows.place != *place) return {.extent = Extent::All()};
      rows.place = place;
    }
    return rows;
  }

  RowsKnown Follow(const OneOf<SparseConvOp, PoolOp> auto& op) {
    const int input = NodeOf(node().inputs[0]).level;
    const std::array<double, kMaxDimension> fine = UnitOf(op.is_swapped() ? node().level : input);
    return {.extent = Input(0).extent.At(Cells(op.sites.geometry, fine, op.is_swapped()))};
  }

  // A site reads all points, or finer sites, in the square that it covers.
  RowsKnown Follow(const PointToVoxelOp&) {
    const int input = NodeOf(node().inputs[0]).level;
    const std::array<double, kMaxDimension> unit = UnitOf(node().level), fine = UnitOf(input < 0 ? 0 : input);
    OffsetsByAxis covered;
    for (size_t axis = 0; axis < kMaxDimension; ++axis) covered[axis].high = unit[axis] - fine[axis];
    return {.extent = HullOfInputs().At(covered)};
  }
  // A position reads the sites on both sides. A point's position is up to 1 voxel from its voxel's.
  RowsKnown Follow(const DevoxelizeOp&) {
    const std::array<double, kMaxDimension> unit = UnitOf(NodeOf(node().inputs[0]).level);
    const double more = node().level == kPointLevel ? 1 : 0;
    OffsetsByAxis around;
    for (size_t axis = 0; axis < kMaxDimension; ++axis) {
      around[axis] = {.low = -unit[axis] - more, .high = unit[axis] + more};
    }
    return {.extent = Input(0).extent.At(around)};
  }

  RowsKnown Follow(const ToDenseOp& op) {
    const int level = NodeOf(node().inputs[0]).level;
    RowsKnown rows = {.extent = Input(0).extent, .place = GridPlace{}};
    const std::array<double, kMaxDimension> unit = UnitOf(level);
    rows.place->unit = unit;
    if (!op.is_from_above) return rows;
    rows.place->axes = {1, 0, 2, 3};
    std::swap(rows.place->unit[0], rows.place->unit[1]);
    if (graph_.dimension == 3) {  // a cell of the image has the whole height
      const double height = (*graph_.levels.levels()[static_cast<size_t>(level)].spatial_shape)[2] * unit[2];
      rows.extent.before[2] = std::max(rows.extent.before[2], height);
      rows.extent.after[2] = std::max(rows.extent.after[2], height);
    }
    return rows;
  }
  RowsKnown Follow(const FromDenseOp&) {
    const RowsKnown& input = Input(0);
    if (input.extent.IsNone()) return {.extent = input.extent};
    const GridPlace sites = {.unit = UnitOf(node().level)};
    return {.extent = input.place == sites ? input.extent : Extent::All()};
  }
  RowsKnown Follow(const OneOf<Conv2dOp, MaxPool2dOp> auto& op) {
    RowsKnown rows = Input(0);
    if (rows.extent.IsNone()) return rows;
    if (!rows.place) return {.extent = Extent::All()};
    const kernels::Conv2dGeometry& geometry = op.geometry;
    OffsetsByAxis offsets;
    for (size_t i = 0; i < 2; ++i) {
      double& unit = rows.place->unit[i];
      const double fine = geometry.is_transposed ? unit / geometry.stride[i] : unit;
      const double low = -geometry.padding[i] * fine;
      const double high = low + geometry.dilation[i] * (geometry.kernel_size[i] - 1) * fine;
      offsets[rows.place->axes[i]] =
          geometry.is_transposed ? Offsets{.low = -high, .high = -low} : Offsets{.low = low, .high = high};
      unit = geometry.is_transposed ? fine : unit * geometry.stride[i];
    }
    rows.extent = rows.extent.At(offsets);
    return rows;
  }

  // Keys that are learned are the same for all; others are all sites of the sample, or of a group, whose sites follow
  // from the order of the whole sample.
  RowsKnown Follow(const AttentionOp& op) {
    const bool is_learned = Input(1).extent.IsNone() && Input(2).extent.IsNone();
    if (op.groups_of < 0 && is_learned) return Input(0);
    return {.extent = Extent::All()};
  }
  RowsKnown Follow(const GlobalPoolOp&) { return {.extent = OfAll(Input(0).extent)}; }
  RowsKnown Follow(const OneOf<SampleNormOp, GroupsOp> auto&) { return {.extent = Extent::All()}; }
  // Peaks and boxes are chosen among those of a sample.
  RowsKnown Follow(
      const OneOf<SelectOp, GatherOp, QueryDecodeOp, CenterHeadDecodeOp, AnchorHeadDecodeOp, NmsOp> auto&) {
    return {.extent = Extent::All()};
  }

  static Extent OfAll(const Extent& extent) { return extent.IsNone() ? extent : Extent::All(); }

  std::vector<int64_t> MinimumPeriod() const {
    std::vector<int64_t> period(static_cast<size_t>(graph_.dimension), 1);
    if (graph_.voxelize_op().origin != kernels::VoxelOrigin::kMinimum) return period;
    bool reads_minimum = std::any_of(graph_.nodes.begin(), graph_.nodes.end(), [](const GraphNode& node) {
      if (const auto* const position = std::get_if<SitePositionOp>(&node.op)) return position->is_from_minimum;
      return std::holds_alternative<SiteCoordinatesOp>(node.op) || std::holds_alternative<GroupsOp>(node.op) ||
             (std::holds_alternative<RotaryOp>(node.op) && node.inputs.size() == 1);
    });
    for (const CoordinateLevel& level : graph_.levels.levels()) {
      // EXPAND without a bound begins at the smallest site. Other bounds are coordinates that count from the minimum.
      const bool has_bounds =
          level.parent >= 0 && level.united_with < 0 &&
          (level.filter ? level.filter->lower != kernels::kLowestSite || level.filter->upper != kernels::kBeyondSites
                        : level.from.rule == CoordinateRule::kExpand);
      reads_minimum = reads_minimum || has_bounds;
    }
    if (reads_minimum) {
      std::fill(period.begin(), period.end(), 0);
      return period;
    }
    for (const CoordinateLevel& level : graph_.levels.levels()) {
      for (size_t axis = 0; axis < period.size(); ++axis) {
        const int64_t voxels = level.unit.voxels[axis];
        const bool is_known = voxels > 0 && voxels < (int64_t{1} << 20) && period[axis] < (int64_t{1} << 40);
        period[axis] = is_known && period[axis] > 0 ? std::lcm(period[axis], voxels) : 0;
      }
    }
    return period;
  }

  const Graph& graph_;
  size_t index_ = 0;                           // of the current node
  std::vector<RowsKnown> rows_;                // by node
  std::vector<std::optional<Extent>> levels_;  // by level
  std::string unbounded_by_;
};

}  // namespace

Reach ReachOf(const Graph& graph) { return ReachFinder(graph).Find(); }

}  // namespace voxserve
