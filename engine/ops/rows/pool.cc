#include "engine/ops/rows/pool.h"

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"

namespace voxserve {
namespace {

absl::Status CheckRows(int64_t in_rows, int64_t num_in_rows, int64_t out_rows, int64_t num_out_rows) {
  if (in_rows == num_in_rows && out_rows == num_out_rows) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("pooling of ", in_rows, " to ", out_rows, " rows got a rulebook of ",
                                          num_in_rows, " to ", num_out_rows));
}

}  // namespace

absl::Status PoolStep::Run(const StepContext& context) const {
  const kernels::Rows in = context.At(options_.in);
  const kernels::Rows out = context.At(options_.out);
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr) {
      const kernels::NeighboursView neighbours = context.device_geometry->neighbours(options_.rulebook);
      RETURN_IF_ERROR(CheckRows(in.capacity, neighbours.num_in_rows, out.capacity, neighbours.num_out_rows));
      RETURN_IF_CUDA_ERROR(kernels::cuda::Pool({.neighbours = neighbours,
                                                .reduce = options_.reduce,
                                                .in = in,
                                                .out = out,
                                                .scale = options_.scale.floats(),
                                                .epilogue = options_.epilogue.In(context)},
                                               context.stream()));
      return absl::OkStatus();
    }
  }
  const kernels::RulebookView rulebook = context.geometry->rulebook(options_.rulebook);
  RETURN_IF_ERROR(CheckRows(in.capacity, rulebook.num_in_rows, out.capacity, rulebook.num_out_rows));
  kernels::cpu::Pool({.rulebook = rulebook,
                      .reduce = options_.reduce,
                      .in = in,
                      .out = out,
                      .scale = options_.scale.floats(),
                      .epilogue = options_.epilogue.In(context)},
                     *context.execution->pool);
  return absl::OkStatus();
}

absl::Status PoolStep::Upload(WeightUploader& uploader) {
  RETURN_IF_ERROR(uploader.Upload(options_.scale, DType::kFloat32));
  return uploader.Upload(options_.epilogue.bias, DType::kFloat32);
}

}  // namespace voxserve
