#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/gather_scatter.h"
#include "kernels/gemm.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int32_t kDefaultBlockRows = 512;

}  // namespace

void Gather(const GatherParams& params) {
  const size_t row_bytes = sizeof(float) * static_cast<size_t>(params.channels);
  for (int64_t i = 0; i < params.num_rows; ++i) {
    std::memcpy(params.to + i * params.channels, params.from + params.rows[i] * params.from_pitch, row_bytes);
  }
}

void ScatterAdd(const ScatterAddParams& params) {
  for (int64_t i = 0; i < params.num_rows; ++i) {
    const float* from = params.from + i * params.channels;
    float* to = params.to + params.rows[i] * params.to_pitch;
    for (int32_t c = 0; c < params.channels; ++c) to[c] += from[c];
  }
}

void GatherGemmScatter(const GatherGemmScatterParams& params, ThreadPool& pool) {
  const RulebookView& rulebook = params.rulebook;
  const int32_t block_rows = params.block_rows > 0 ? params.block_rows : kDefaultBlockRows;
  const int64_t tiles_per_block = std::max<int64_t>(1, block_rows / kRulebookTileRows);
  const size_t buffer_rows = static_cast<size_t>(tiles_per_block * kRulebookTileRows);

  pool.ParallelFor(rulebook.num_tiles(), tiles_per_block, [&](int64_t tile_begin, int64_t tile_end) {
    std::vector<float> gathered(buffer_rows * static_cast<size_t>(params.in_channels));
    std::vector<float> products(buffer_rows * static_cast<size_t>(params.out_channels));
    const int64_t row_begin = tile_begin * kRulebookTileRows;
    const int64_t row_end = std::min(tile_end * kRulebookTileRows, rulebook.num_out_rows);
    StartRows(params.epilogue, params.out, params.out_pitch, params.out_channels, row_begin, row_end);
    for (int32_t k = 0; k < rulebook.num_offsets; ++k) {
      const int64_t first = rulebook.tile_begin[tile_begin * rulebook.num_offsets + k];
      const int64_t num_pairs = rulebook.tile_begin[tile_end * rulebook.num_offsets + k] - first;
      if (num_pairs == 0) continue;
      Gather({.rows = rulebook.in_rows + first,
              .num_rows = num_pairs,
              .from = params.in,
              .from_pitch = params.in_pitch,
              .channels = params.in_channels,
              .to = gathered.data()});
      Gemm({.m = num_pairs,
            .n = params.out_channels,
            .k = params.in_channels,
            .a = gathered.data(),
            .a_pitch = params.in_channels,
            .b = params.weights + int64_t{k} * params.in_channels * params.out_channels,
            .b_pitch = params.out_channels,
            .c = products.data(),
            .c_pitch = params.out_channels});
      ScatterAdd({.rows = rulebook.out_rows + first,
                  .num_rows = num_pairs,
                  .from = products.data(),
                  .channels = params.out_channels,
                  .to = params.out,
                  .to_pitch = params.out_pitch});
    }
    FinishRows(params.epilogue, params.out, params.out_pitch, params.out_channels, row_begin, row_end);
  });
}

}  // namespace voxserve::kernels::cpu
