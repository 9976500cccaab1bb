#include <algorithm>
#include <array>

#include "kernels/rows/pool.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kBlockTiles = 8;

void AddRow(PoolReduce reduce, bool is_first, const float* in, int32_t channels, float* out) {
  if (is_first) {
    std::copy_n(in, channels, out);
  } else if (reduce == PoolReduce::kMax) {
    for (int32_t c = 0; c < channels; ++c) out[c] = LargerOrNan(out[c], in[c]);
  } else {
    for (int32_t c = 0; c < channels; ++c) out[c] += in[c];
  }
}

void PoolTile(const PoolParams& params, int64_t tile) {
  const RulebookView& rulebook = params.rulebook;
  const int64_t row_begin = tile * kRulebookTileRows;
  const int64_t row_end = std::min(row_begin + kRulebookTileRows, rulebook.num_out_rows);
  std::array<int32_t, kRulebookTileRows> num_pairs{};
  for (int32_t k = 0; k < rulebook.num_offsets; ++k) {
    const int64_t last = rulebook.tile_begin[(tile + 1) * rulebook.num_offsets + k];
    for (int64_t pair = rulebook.tile_begin[tile * rulebook.num_offsets + k]; pair < last; ++pair) {
      const int64_t row = rulebook.out_rows[pair];
      AddRow(params.reduce, num_pairs[static_cast<size_t>(row - row_begin)]++ == 0,
             params.in.floats(rulebook.in_rows[pair]), params.out.channels, params.out.floats(row));
    }
  }
  const float* const scale = params.scale;
  const bool is_plain = scale == nullptr && params.epilogue.IsEmpty();
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int32_t count = num_pairs[static_cast<size_t>(row - row_begin)];
    float* const out = params.out.floats(row);
    if (count == 0) {
      std::fill_n(out, params.out.channels, 0.0f);
    } else if (params.reduce == PoolReduce::kAverage) {
      for (int32_t c = 0; c < params.out.channels; ++c) out[c] /= static_cast<float>(count);
    }
    if (is_plain) continue;
    WriteRow(params.epilogue, params.out, row,
             [=](int32_t c) { return scale == nullptr ? out[c] : out[c] * scale[c]; });
  }
}

}  // namespace

void Pool(const PoolParams& params, ThreadPool& pool) {
  pool.ParallelFor(params.rulebook.num_tiles(), kBlockTiles, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) PoolTile(params, tile);
  });
}

}  // namespace voxserve::kernels::cpu
