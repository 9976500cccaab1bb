#include "engine/ops/rows/sample_rows.h"

#include "engine/ops/launch.h"
#include "kernels/rows/repeat_rows.h"

namespace voxserve {

absl::Status SampleRowsStep::Run(const StepContext& context) const {
  const kernels::Rows out = context.At(out_);
  const int64_t num_rows = (*context.buffers)[static_cast<size_t>(out_.buffer)].rows_per_sample;
  const kernels::RepeatRowsParams params{
      .rows = kernels::ConstRows::Packed(weight_.data(), out.dtype, num_rows, out.channels), .out = out};
  return LAUNCH(context, params, RepeatRows);
}

}  // namespace voxserve
