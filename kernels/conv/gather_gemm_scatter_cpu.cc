#include <algorithm>
#include <atomic>
#include <memory>

#include "kernels/conv/gather_gemm_scatter.h"
#include "kernels/core/gemm.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int32_t kDefaultBlockRows = 512;

// The output rows of tiles [tile_begin, tile_end), with a buffer of in and one of out channels for each of them.
void RunBlock(const GatherGemmScatterParams& params, int64_t tile_begin, int64_t tile_end, float* gathered,
              float* products) {
  const RulebookView& rulebook = params.rulebook;
  const int64_t row_begin = tile_begin * kRulebookTileRows;
  const int64_t row_end = std::min(tile_end * kRulebookTileRows, rulebook.num_out_rows);
  const Rows out{.data = params.out, .channels = params.out_channels, .pitch = params.out_pitch, .capacity = row_end};
  StartRows(params.epilogue, out, row_begin, row_end);
  for (int32_t k = 0; k < rulebook.num_offsets; ++k) {
    const int64_t first = rulebook.tile_begin[tile_begin * rulebook.num_offsets + k];
    const int64_t num_pairs = rulebook.tile_begin[tile_end * rulebook.num_offsets + k] - first;
    if (num_pairs == 0) continue;
    Gather({.rows = rulebook.in_rows + first,
            .num_rows = num_pairs,
            .from = params.in,
            .from_pitch = params.in_pitch,
            .channels = params.in_channels,
            .to = gathered});
    const float* const weights = params.weights + int64_t{k} * params.in_channels * params.out_channels;
    Gemm({.a = Rows::Packed(gathered, DType::kFloat32, num_pairs, params.in_channels),
          .b = ConstRows::Packed(weights, DType::kFloat32, params.in_channels, params.out_channels),
          .c = Rows::Packed(products, DType::kFloat32, num_pairs, params.out_channels)});
    ScatterAdd({.rows = rulebook.out_rows + first,
                .num_rows = num_pairs,
                .from = products,
                .channels = params.out_channels,
                .to = params.out,
                .to_pitch = params.out_pitch});
  }
  FinishRows(params.epilogue, out, row_begin, row_end);
}

}  // namespace

void GatherGemmScatter(const GatherGemmScatterParams& params, ThreadPool& pool) {
  const RulebookView& rulebook = params.rulebook;
  const int32_t block_rows = params.block_rows > 0 ? params.block_rows : kDefaultBlockRows;
  const int64_t tiles_per_block = std::max<int64_t>(1, block_rows / kRulebookTileRows);
  const int64_t num_blocks = (rulebook.num_tiles() + tiles_per_block - 1) / tiles_per_block;

  // Lanes, one a thread, take blocks as they come and keep their buffers from block to block.
  const int64_t num_lanes = std::min<int64_t>(pool.num_threads(), num_blocks);
  const int64_t buffer_rows = tiles_per_block * kRulebookTileRows;
  const int64_t floats_a_lane = buffer_rows * (params.in_channels + params.out_channels);
  const auto buffers = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(num_lanes * floats_a_lane));
  std::atomic<int64_t> next_block = 0;
  pool.ParallelFor(num_lanes, 1, [&](int64_t lane, int64_t) {
    float* const gathered = buffers.get() + lane * floats_a_lane;
    float* const products = gathered + buffer_rows * params.in_channels;
    for (;;) {
      const int64_t tile_begin = next_block.fetch_add(1, std::memory_order_relaxed) * tiles_per_block;
      if (tile_begin >= rulebook.num_tiles()) return;
      RunBlock(params, tile_begin, std::min(tile_begin + tiles_per_block, rulebook.num_tiles()), gathered, products);
    }
  });
}

}  // namespace voxserve::kernels::cpu
