#include <algorithm>
#include <array>
#include <cassert>
#include <numeric>

#include "kernels/conv/fetch_on_demand_dispatch.h"
#include "kernels/rows/linear.h"

namespace voxserve::kernels::cpu {
namespace {

// A thread takes so many rows at a time, fewer if there are not enough for all threads.
constexpr int64_t kLinearBlockRows = 1024;
constexpr int64_t kLeastLinearBlockRows = 64;

// Adds the products of rows and weights to the rows of `out`, at most kLinearBlockRows, by the tiles of convolutions.
// Every sum takes its products in the order of the input channels, so the bits of a row do not depend on where it lies
// and what is beside it. Those of oneDNN's sgemm do (gemm.h).
void AddProducts(const ConstRows& in, const void* weights, const Rows& out) {
  static const std::array<int32_t, kLinearBlockRows> kRows = [] {
    std::array<int32_t, kLinearBlockRows> rows;
    std::iota(rows.begin(), rows.end(), 0);
    return rows;
  }();
  SupportedIsas().front()->accumulate({.num_pairs = out.capacity,
                                       .in_rows = kRows.data(),
                                       .out_rows = kRows.data(),
                                       .in = in.floats(),
                                       .in_pitch = in.pitch,
                                       .in_channels = in.channels,
                                       .weights = static_cast<const float*>(weights),
                                       .out = out.floats(),
                                       .out_pitch = out.pitch,
                                       .out_channels = out.channels});
}

}  // namespace

void Linear(const LinearParams& params, ThreadPool& pool) {
  assert(params.in.dtype == DType::kFloat32 && params.out.dtype == DType::kFloat32);
  const int64_t rows_of_a_thread = params.out.capacity / pool.num_threads() + 1;
  const int64_t block_rows = std::clamp(rows_of_a_thread, kLeastLinearBlockRows, kLinearBlockRows);
  pool.ParallelFor(params.out.capacity, block_rows, [&](int64_t begin, int64_t end) {
    StartRows(params.epilogue, params.out, begin, end);
    AddProducts(params.in.RowRange(begin, end), params.weights, params.out.RowRange(begin, end));
    FinishRows(params.epilogue, params.out, begin, end);
  });
}

}  // namespace voxserve::kernels::cpu
