#include "engine/ops/rows/group_attention.h"

#include "engine/ops/launch.h"

namespace voxserve {

absl::Status GroupAttentionStep::Run(const StepContext& context) const {
  const bool is_spread = options_.tail == kernels::GroupTail::kSpread;
  const SpreadGroups spread = is_spread ? context.SpreadGroupsOf(options_.order) : SpreadGroups();
  const kernels::GroupAttentionParams params{.groups = {.row_of_place = context.RowOfPlace(options_.order),
                                                        .sample_begin = context.SampleBegin(options_.queries),
                                                        .num_samples = context.num_samples(),
                                                        .size = options_.size,
                                                        .tail = options_.tail,
                                                        .spread_groups = spread.groups,
                                                        .num_spread_groups = spread.count,
                                                        .max_spread_groups = spread.max_count},
                                             .num_heads = options_.num_heads,
                                             .scale = options_.scale,
                                             .queries = context.At(options_.queries),
                                             .keys = context.At(options_.keys),
                                             .values = context.At(options_.values),
                                             .out = context.At(options_.out)};
  return LAUNCH(context, params, GroupAttention);
}

}  // namespace voxserve
