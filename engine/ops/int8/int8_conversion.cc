#include "engine/ops/int8/int8_conversion.h"

#include "engine/base/status_macros.h"
#include "engine/ops/launch.h"
#include "kernels/int8/int8_rows.h"

namespace voxserve {

absl::Status Int8ConversionStep::Run(const StepContext& context) const {
  const kernels::Int8RowsParams params{.in = context.At(options_.in),
                                       .in_scale = options_.in_scale.floats(),
                                       .out = context.At(options_.out),
                                       .inverse_scale = options_.inverse_scale.floats()};
  return LAUNCH(context, params, ConvertInt8Rows);
}

absl::Status Int8ConversionStep::Upload(WeightUploader& uploader) {
  RETURN_IF_ERROR(uploader.Upload(options_.in_scale, DType::kFloat32));
  return uploader.Upload(options_.inverse_scale, DType::kFloat32);
}

}  // namespace voxserve
