#include <cassert>

#include "kernels/core/gemm.h"
#include "kernels/rows/linear.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kBlockRows = 1024;

}  // namespace

void Linear(const LinearParams& params, ThreadPool& pool) {
  assert(params.in.dtype == DType::kFloat32 && params.out.dtype == DType::kFloat32);
  const auto* weights = static_cast<const float*>(params.weights);
  pool.ParallelFor(params.out.capacity, kBlockRows, [&](int64_t begin, int64_t end) {
    StartRows(params.epilogue, params.out, begin, end);
    Gemm({.m = end - begin,
          .n = params.out.channels,
          .k = params.in.channels,
          .a = params.in.floats(begin),
          .a_pitch = params.in.pitch,
          .b = weights,
          .b_pitch = params.out.channels,
          .c = params.out.floats(begin),
          .c_pitch = params.out.pitch,
          .accumulate = true});
    FinishRows(params.epilogue, params.out, begin, end);
  });
}

}  // namespace voxserve::kernels::cpu
