#include "engine/ops/boxes/gather.h"

#include "engine/ops/launch.h"

namespace voxserve {

absl::Status GatherStep::Run(const StepContext& context) const {
  const kernels::Rows selection = context.At(options_.selection);
  const kernels::GatherQueriesParams params{.of = options_.of,
                                            .k = static_cast<int32_t>(selection.capacity / context.num_samples()),
                                            .selection = selection.floats(),
                                            .cells = context.At(options_.image),
                                            .num_rows = options_.num_rows,
                                            .num_columns = options_.num_columns,
                                            .out = context.At(options_.out)};
  return LAUNCH(context, params, GatherQueries);
}

}  // namespace voxserve
