#include "engine/ops/int8/int8_conv.h"

#include "engine/base/status_macros.h"

namespace voxserve {

absl::Status Int8ConvStep::Run(const StepContext& context) const {
  const kernels::RulebookView rulebook = context.geometry->rulebook(options_.conv.rulebook);
  const kernels::Int8ConvParams params{.rulebook = rulebook,
                                       .in = context.At(options_.in),
                                       .weights = options_.weights.data(),
                                       .out = context.At(options_.out),
                                       .epilogue = options_.epilogue.In(context),
                                       .block_rows = (*context.plans)[static_cast<size_t>(options_.index)].block.rows};
  RETURN_IF_ERROR(CheckRows(name, rulebook, params.in.capacity, params.out.capacity));
  kernels::cpu::Int8Conv(params, *context.execution->pool, context.execution->memory.get());
  return absl::OkStatus();
}

}  // namespace voxserve
