#include <cassert>

#include "kernels/core/gemm.h"
#include "kernels/rows/linear.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kBlockRows = 1024;

}  // namespace

void Linear(const LinearParams& params, ThreadPool& pool) {
  assert(params.dtype == DType::kFloat32 && params.out_dtype == DType::kFloat32);
  const auto* in = static_cast<const float*>(params.in);
  const auto* weights = static_cast<const float*>(params.weights);
  auto* out = static_cast<float*>(params.out);
  pool.ParallelFor(params.num_rows, kBlockRows, [&](int64_t begin, int64_t end) {
    StartRows(params.epilogue, out, params.out_pitch, params.out_channels, begin, end);
    Gemm({.m = end - begin,
          .n = params.out_channels,
          .k = params.in_channels,
          .a = in + begin * params.in_pitch,
          .a_pitch = params.in_pitch,
          .b = weights,
          .b_pitch = params.out_channels,
          .c = out + begin * params.out_pitch,
          .c_pitch = params.out_pitch,
          .accumulate = true});
    FinishRows(params.epilogue, out, params.out_pitch, params.out_channels, begin, end);
  });
}

}  // namespace voxserve::kernels::cpu
