#include "engine/executor/geometry_pass.h"

#include <algorithm>

#include "engine/base/status_macros.h"

namespace voxserve {
namespace {

kernels::OutputCoordinatesParams LevelParams(const CoordinateLevel& level) {
  const SiteRule& rule = level.from;
  kernels::OutputCoordinatesParams params{.rule = rule.rule, .geometry = rule.geometry};
  if (level.spatial_shape) params.out_shape = *level.spatial_shape;
  params.has_lower = rule.lower_bound.has_value();
  params.has_upper = rule.upper_bound.has_value();
  if (params.has_lower) params.lower = *rule.lower_bound;
  if (params.has_upper) params.upper = *rule.upper_bound;
  return params;
}

kernels::SiteFilterParams FilterParams(const Program& program, int level, const StepContext* context) {
  const SiteFilter& filter = *program.levels[static_cast<size_t>(level)].filter;
  kernels::SiteFilterParams params{.lower = filter.lower, .upper = filter.upper, .threshold = filter.threshold};
  if (filter.score_node < 0) return params;
  params.scores = context->At(program.scores[static_cast<size_t>(level)]);
  return params;
}

absl::Status MakeLevel(const Program& program, int index, const StepContext* context, GeometryMaker& maker) {
  const CoordinateLevel& level = program.levels[static_cast<size_t>(index)];
  if (level.united_with >= 0) return maker.UniteLevels(index, level.parent, level.united_with);
  if (level.filter) return maker.FilterLevel(index, level.parent, FilterParams(program, index, context));
  return maker.MakeLevel(index, level.parent, LevelParams(level));
}

absl::Status MakeRulebook(const Program& program, int index, const MapOptions& options, GeometryMaker& maker) {
  const ProgramRulebook& rulebook = program.rulebooks[static_cast<size_t>(index)];
  if (rulebook.swap_of >= 0) return maker.SwapRulebook(index, rulebook.swap_of);
  const std::vector<ConvPlan>& plans = options.plans->ForVoxels(options.num_voxels);
  // A rulebook that no convolution reads is searched by the default plan.
  const ConvPlan plan = rulebook.first_conv < 0 ? ConvPlan() : plans[static_cast<size_t>(rulebook.first_conv)];
  return maker.MakeRulebook(index, {.in_level = rulebook.spec.in_level,
                                    .out_level = rulebook.spec.out_level,
                                    .geometry = rulebook.spec.geometry,
                                    .forms = options.plans->forms()[static_cast<size_t>(index)],
                                    .search = plan.map_search,
                                    .max_grid_bytes = options.max_grid_bytes});
}

}  // namespace

kernels::VoxelizeParams FixedVoxelizeParams(const Program& program, const std::vector<int64_t>& point_begin) {
  const VoxelizeOp& op = program.voxelize;
  kernels::VoxelizeParams params{.dimension = program.dimension,
                                 .rounding = op.rounding,
                                 .origin = op.origin,
                                 .has_range = op.has_range,
                                 .num_points = point_begin.back(),
                                 .num_samples = static_cast<int32_t>(point_begin.size() - 1)};
  std::copy(op.voxel_size.begin(), op.voxel_size.end(), params.voxel_size);
  std::copy(op.range_min.begin(), op.range_min.end(), params.range_min);
  std::copy(op.range_max.begin(), op.range_max.end(), params.range_max);
  return params;
}

kernels::VoxelOrder VoxelOrderOf(const RunLimits& limits) {
  return limits.voxel_overflow == ModelConfig::VoxelOverflow::kNearestFirst ? kernels::VoxelOrder::kNearest
                                                                            : kernels::VoxelOrder::kFirstSeen;
}

absl::Status MakeMaps(const Program& program, const ProgramSegment& segment, const StepContext* context,
                      const MapOptions& options, GeometryMaker& maker) {
  for (const int level : segment.levels) RETURN_IF_ERROR(MakeLevel(program, level, context, maker));
  for (const int rulebook : segment.rulebooks) RETURN_IF_ERROR(MakeRulebook(program, rulebook, options, maker));
  RETURN_IF_ERROR(maker.Finish());
  RETURN_IF_ERROR(maker.MakeSampleBegins(segment.sample_levels));
  if (segment.orders.empty()) return absl::OkStatus();
  std::vector<OrderRequest> orders;
  for (const int order : segment.orders) {
    orders.push_back({.index = order, .spec = program.orders[static_cast<size_t>(order)]});
  }
  return maker.MakeOrders(orders);
}

}  // namespace voxserve
