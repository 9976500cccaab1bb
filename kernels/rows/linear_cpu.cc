#include <cassert>

#include "kernels/core/gemm.h"
#include "kernels/rows/linear.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kLinearBlockRows = 1024;

}  // namespace

void Linear(const LinearParams& params, ThreadPool& pool) {
  assert(params.in.dtype == DType::kFloat32 && params.out.dtype == DType::kFloat32);
  const ConstRows weights = ConstRows::Packed(params.weights, DType::kFloat32, params.in.channels, params.out.channels);
  pool.ParallelFor(params.out.capacity, kLinearBlockRows, [&](int64_t begin, int64_t end) {
    StartRows(params.epilogue, params.out, begin, end);
    Gemm({.a = params.in.RowRange(begin, end), .b = weights, .c = params.out.RowRange(begin, end), .accumulate = true});
    FinishRows(params.epilogue, params.out, begin, end);
  });
}

}  // namespace voxserve::kernels::cpu
