#include <cassert>
#include <numeric>
#include <vector>

#include "kernels/conv/fetch_on_demand_dispatch.h"
#include "kernels/rows/linear.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kLinearBlockRows = 1024;

// Adds products of rows and weights to the rows of `out` by the tiles of convolutions. Every sum takes its products in
// the order of the input channels, so the bits of a row do not depend on where it lies and what is beside it. Those of
// oneDNN's sgemm do (gemm.h).
class TiledProduct {
 public:
  TiledProduct(const float* weights, int32_t in_channels, int32_t out_channels)
      : isa_(*SupportedIsas().front()),
        weights_(PackWeights(isa_, weights, /*num_offsets=*/1, in_channels, out_channels)),
        rows_(kLinearBlockRows) {
    std::iota(rows_.begin(), rows_.end(), 0);
  }

  // in, out: at most kLinearBlockRows rows.
  void AddTo(const ConstRows& in, const Rows& out) const {
    isa_.accumulate({.num_pairs = out.capacity,
                     .in_rows = rows_.data(),
                     .out_rows = rows_.data(),
                     .in = in.floats(),
                     .in_pitch = in.pitch,
                     .in_channels = in.channels,
                     .weights = weights_.data(),
                     .out = out.floats(),
                     .out_pitch = out.pitch,
                     .out_channels = out.channels});
  }

 private:
  const Isa& isa_;
  std::vector<float> weights_;
  std::vector<int32_t> rows_;  // 0, 1, 2, ...
};

}  // namespace

void Linear(const LinearParams& params, ThreadPool& pool) {
  assert(params.in.dtype == DType::kFloat32 && params.out.dtype == DType::kFloat32);
  const TiledProduct product(static_cast<const float*>(params.weights), params.in.channels, params.out.channels);
  pool.ParallelFor(params.out.capacity, kLinearBlockRows, [&](int64_t begin, int64_t end) {
    StartRows(params.epilogue, params.out, begin, end);
    product.AddTo(params.in.RowRange(begin, end), params.out.RowRange(begin, end));
    FinishRows(params.epilogue, params.out, begin, end);
  });
}

}  // namespace voxserve::kernels::cpu
