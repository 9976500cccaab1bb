#include "engine/ops/int8/int8_conversion.h"

#include "kernels/int8/int8_rows.h"

namespace voxserve {

absl::Status Int8ConversionStep::Run(const StepContext& context) const {
  kernels::cpu::ConvertInt8Rows({.in = context.At(options_.in),
                                 .in_scale = options_.in_scale.data(),
                                 .out = context.At(options_.out),
                                 .inverse_scale = options_.inverse_scale.data()},
                                *context.execution->pool);
  return absl::OkStatus();
}

}  // namespace voxserve
