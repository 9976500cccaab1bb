#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "engine/base/quoted.h"
#include "engine/model/checks/checks.h"
#include "kernels/coordinates/coordinate_key.h"
#include "kernels/points/decode_points.h"
#include "kernels/points/voxel_features.h"
#include "kernels/points/voxelize.h"

namespace voxserve {
namespace {

// A GPU decodes at most kMaxPointColumns columns of a point, its axes included.
constexpr int kMaxFeatures = kernels::kMaxPointColumns - kernels::kMaxDimension;

using model::v1::Voxelize;

class VoxelizeReader {
 public:
  VoxelizeReader(const Voxelize& proto, int dimension, const ProblemsAt& at)
      : proto_(proto), dimension_(dimension), at_(at) {}

  std::optional<VoxelizeOp> Read() {
    ReadEnums();
    ReadVoxelSize();
    ReadRange();
    ReadFeatures();
    ReadAxes();
    if (proto_.max_points_per_voxel() != 0 && op_.reduce == kernels::VoxelReduce::kFirst) {
      Report("max_points_per_voxel is ", proto_.max_points_per_voxel(), "; it belongs to REDUCE_MEAN alone");
    }
    op_.max_points_per_voxel = proto_.max_points_per_voxel();
    if (proto_.spatial_shape_size() > 0 && proto_.origin() != Voxelize::ORIGIN_RANGE) {
      Report("spatial_shape belongs to ORIGIN_RANGE alone");
    }
    if (is_ok_ && op_.origin == kernels::VoxelOrigin::kRange) ReadGridShape();
    if (op_.grid_shape) ReadSpatialShape();
    if (!is_ok_) return std::nullopt;
    return std::move(op_);
  }

 private:
  template <typename... Args>
  void Report(const Args&... what) {
    at_.Add(what...);
    is_ok_ = false;
  }

  void ReadEnums() {
    switch (proto_.rounding()) {
      case Voxelize::ROUNDING_HALF_EVEN:
        op_.rounding = kernels::VoxelRounding::kHalfEven;
        break;
      case Voxelize::ROUNDING_FLOOR:
        op_.rounding = kernels::VoxelRounding::kFloor;
        break;
      default:
        Report("rounding must be ROUNDING_HALF_EVEN or ROUNDING_FLOOR");
    }
    switch (proto_.origin()) {
      case Voxelize::ORIGIN_MINIMUM:
        op_.origin = kernels::VoxelOrigin::kMinimum;
        break;
      case Voxelize::ORIGIN_RANGE:
        op_.origin = kernels::VoxelOrigin::kRange;
        break;
      case Voxelize::ORIGIN_ZERO:
        op_.origin = kernels::VoxelOrigin::kZero;
        break;
      default:
        Report("origin must be ORIGIN_MINIMUM, ORIGIN_RANGE or ORIGIN_ZERO");
    }
    switch (proto_.reduce()) {
      case Voxelize::REDUCE_FIRST:
        op_.reduce = kernels::VoxelReduce::kFirst;
        break;
      case Voxelize::REDUCE_MEAN:
        op_.reduce = kernels::VoxelReduce::kMean;
        break;
      default:
        Report("reduce must be REDUCE_FIRST or REDUCE_MEAN");
    }
  }

  bool HasOnePerAxis(const char* name, int size) {
    if (size == dimension_) return true;
    Report(name, " has ", size, " values; the network has ", dimension_, " axes");
    return false;
  }

  void ReadVoxelSize() {
    if (!HasOnePerAxis("voxel_size", proto_.voxel_size_size())) return;
    for (int axis = 0; axis < dimension_; ++axis) {
      op_.voxel_size[axis] = proto_.voxel_size(axis);
      if (!std::isfinite(proto_.voxel_size(axis)) || proto_.voxel_size(axis) <= 0) {
        Report("voxel_size[", axis, "] is ", proto_.voxel_size(axis), "; it must be finite and above 0");
      }
    }
  }

  void ReadRange() {
    op_.has_range = proto_.range_min_size() > 0 || proto_.range_max_size() > 0;
    if (!op_.has_range) {
      if (proto_.origin() == Voxelize::ORIGIN_RANGE) Report("ORIGIN_RANGE needs range_min and range_max");
      return;
    }
    const bool has_minimum = HasOnePerAxis("range_min", proto_.range_min_size());
    const bool has_maximum = HasOnePerAxis("range_max", proto_.range_max_size());
    if (!has_minimum || !has_maximum) return;
    for (int axis = 0; axis < dimension_; ++axis) {
      const float low = op_.range_min[axis] = proto_.range_min(axis);
      const float high = op_.range_max[axis] = proto_.range_max(axis);
      if (!std::isfinite(low) || !std::isfinite(high) || low >= high) {
        Report("axis ", axis, " has the range ", low, " to ", high, "; it must be finite and not empty");
      }
    }
  }

  void ReadGridShape() {
    kernels::VoxelizeParams params;
    params.dimension = dimension_;
    std::copy(op_.voxel_size.begin(), op_.voxel_size.end(), params.voxel_size);
    std::copy(op_.range_min.begin(), op_.range_min.end(), params.range_min);
    std::copy(op_.range_max.begin(), op_.range_max.end(), params.range_max);
    int64_t cells[kernels::kMaxDimension];
    kernels::GridShape(params, cells);
    const int64_t most = MostCells();
    kernels::Axes shape = {1, 1, 1, 1};
    for (int axis = 0; axis < dimension_; ++axis) {
      if (cells[axis] < 1 || cells[axis] > most) {
        Report("axis ", axis, " has ", cells[axis], " voxels in its range; 1 to ", most, " are possible in ",
               dimension_, " dimensions");
        continue;
      }
      shape[axis] = static_cast<int32_t>(cells[axis]);
    }
    op_.grid_shape = shape;
  }

  // Enlarges the grid's shape; the voxels of points do not change.
  void ReadSpatialShape() {
    if (proto_.spatial_shape_size() == 0 || !HasOnePerAxis("spatial_shape", proto_.spatial_shape_size())) return;
    kernels::Axes& shape = *op_.grid_shape;
    for (int axis = 0; axis < dimension_; ++axis) {
      const int64_t cells = proto_.spatial_shape(axis);
      if (cells < shape[axis] || cells > MostCells()) {
        Report("spatial_shape[", axis, "] is ", cells, "; the range has ", shape[axis], " voxels there, and at most ",
               MostCells(), " are possible in ", dimension_, " dimensions");
        continue;
      }
      shape[axis] = static_cast<int32_t>(cells);
    }
  }

  int64_t MostCells() const { return int64_t{kernels::CoordinateKey(dimension_).max_coordinate()} + 1; }

  void ReadFeatures() {
    if (proto_.features_size() == 0) Report("has no features");
    if (proto_.features_size() > kMaxFeatures) {
      Report("has ", proto_.features_size(), " features; at most ", kMaxFeatures, " are possible");
      return;
    }
    std::set<std::string> names;
    for (const model::v1::Feature& feature : proto_.features()) {
      const std::string name = Quoted(feature.name());
      if (feature.name().empty()) Report("feature number ", op_.features.size(), " has no name");
      if (!names.insert(feature.name()).second) Report("feature ", name, " appears twice");
      InputFeature column = {.name = feature.name(), .unit = feature.unit(), .shift = feature.shift()};
      if (feature.has_scale()) column.scale = feature.scale();
      if (feature.has_default_value()) column.default_value = feature.default_value();
      if (!std::isfinite(column.scale) || column.scale == 0) {
        Report("feature ", name, " has scale ", column.scale, "; it must be finite and not 0");
      }
      if (!std::isfinite(column.shift)) Report("feature ", name, " has shift ", column.shift, "; it must be finite");
      if (column.default_value && !std::isfinite(*column.default_value)) {
        Report("feature ", name, " has default_value ", *column.default_value, "; it must be finite");
      }
      if (feature.has_range()) {
        column.range = {.low = feature.range().low(), .high = feature.range().high()};
        if (!std::isfinite(column.range->low) || !std::isfinite(column.range->high) ||
            column.range->low >= column.range->high) {
          Report("feature ", name, " has the range ", column.range->low, " to ", column.range->high,
                 "; low must be less than high, and both finite");
        }
      }
      op_.features.push_back(std::move(column));
    }
  }

  void ReadAxes() {
    op_.axes.assign(proto_.axes().begin(), proto_.axes().end());
    if (op_.axes.empty()) {
      constexpr const char* kNames[] = {"x", "y", "z", "t"};
      op_.axes.assign(kNames, kNames + dimension_);
      return;
    }
    HasOnePerAxis("axes", proto_.axes_size());
    std::set<std::string> names;
    for (const std::string& name : op_.axes) {
      if (name.empty()) Report("an axis has no name");
      if (!names.insert(name).second) Report("axis ", Quoted(name), " appears twice");
    }
  }

  const Voxelize& proto_;
  const int dimension_;
  const ProblemsAt& at_;
  VoxelizeOp op_;
  bool is_ok_ = true;
};

std::optional<FarthestPointSampleOp> ReadFarthestPointSample(const model::v1::FarthestPointSampling& proto,
                                                             const ProblemsAt& at) {
  constexpr uint32_t kMost = std::numeric_limits<int32_t>::max();
  if (proto.num_points() < 1 || proto.num_points() > kMost) {
    at.Add("num_points is ", proto.num_points(), "; it must be 1 to ", kMost);
    return std::nullopt;
  }
  FarthestPointSampleOp op;
  op.points = {.num_points = proto.num_points(), .start_index = proto.start_index(), .restricts_network = true};
  if (proto.has_seed()) op.points.seed = proto.seed();
  return op;
}

}  // namespace

void CheckVoxelize(NodeContext& context) {
  const Voxelize& proto = context.proto.voxelize();
  Graph& graph = context.graph;
  std::optional<VoxelizeOp> op = VoxelizeReader(proto, graph.dimension, context.at).Read();
  if (context.voxelize.is_there) {
    context.at.Add("is the second voxelize; node ", Quoted(graph.nodes[graph.voxelize].name), " is the first");
    context.node.op = VoxelizeOp();
    return;
  }
  const GraphNode* const input = context.node.inputs.empty() ? nullptr : context.Known(0);
  if (op && input != nullptr) {
    const auto* const sample = std::get_if<FarthestPointSampleOp>(&input->op);
    if (sample == nullptr) {
      context.at.Add("its input ", Quoted(input->name), " is not a farthest_point_sample");
    } else if (!BeginsWithSpatialAxes(*op)) {
      context.at.Add("its input ", Quoted(input->name), " needs axes that begin with x, y and z; they are ",
                     absl::StrJoin(op->axes, ", "));
    } else {
      op->sample = sample->points;
    }
  }
  context.voxelize = {.is_there = true, .is_broken = !op};
  graph.voxelize = static_cast<int>(graph.nodes.size());
  graph.levels = LevelTable(op ? op->grid_shape : std::nullopt);
  context.node.channels = std::min(proto.features_size(), kMaxChannels);
  context.node.op = op ? *std::move(op) : VoxelizeOp();
}

void CheckFarthestPointSample(NodeContext& context) {
  context.node.op =
      ReadFarthestPointSample(context.proto.farthest_point_sample(), context.at).value_or(FarthestPointSampleOp());
  context.node.level = kPointLevel;
  context.node.channels = 1;
}

}  // namespace voxserve
