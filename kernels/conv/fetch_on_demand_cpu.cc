#include <algorithm>

#include "kernels/conv/fetch_on_demand.h"
#include "kernels/conv/fetch_on_demand_dispatch.h"

namespace voxserve::kernels::cpu {
namespace {

// The part of a core's L2 cache that outputs and weights may fill together.
constexpr int64_t kBlockBytes = 256 << 10;
constexpr int32_t kMinBlockRows = 128;
constexpr int32_t kMaxBlockRows = 1024;

const Isa& WidestIsa() { return *SupportedIsas().front(); }

int64_t PaddedChannels(const Isa& isa, int32_t channels) {
  const int32_t width = isa.vector_floats;
  return int64_t{(channels + width - 1) / width} * width;
}

int32_t BlockRows(const Isa& isa, int32_t in_channels, int32_t out_channels) {
  const int64_t weight_bytes = PaddedChannels(isa, out_channels) * in_channels * int64_t{sizeof(float)};
  const int64_t row_bytes = int64_t{out_channels} * int64_t{sizeof(float)};
  const int64_t rows = std::max<int64_t>(0, kBlockBytes - weight_bytes) / std::max<int64_t>(1, row_bytes);
  return std::clamp(static_cast<int32_t>(rows / kRulebookTileRows * kRulebookTileRows), kMinBlockRows, kMaxBlockRows);
}

}  // namespace

const std::vector<const Isa*>& SupportedIsas() {
  static const std::vector<const Isa*> kSupported = [] {
    std::vector<const Isa*> isas;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) isas.push_back(&avx512::kIsa);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) isas.push_back(&avx2::kIsa);
#elif defined(__aarch64__)
    isas.push_back(&neon::kIsa);
#endif
    isas.push_back(&baseline::kIsa);
    return isas;
  }();
  return kSupported;
}

const char* VectorInstructionSet() { return WidestIsa().name; }

std::vector<float> PackWeights(const float* weights, int32_t num_offsets, int32_t in_channels, int32_t out_channels) {
  return PackWeights(WidestIsa(), weights, num_offsets, in_channels, out_channels);
}

void FetchOnDemand(const FetchOnDemandParams& params, ThreadPool& pool) { FetchOnDemand(WidestIsa(), params, pool); }

std::vector<float> PackWeights(const Isa& isa, const float* weights, int32_t num_offsets, int32_t in_channels,
                               int32_t out_channels) {
  const int64_t width = isa.vector_floats;
  const int64_t padded = PaddedChannels(isa, out_channels);
  std::vector<float> packed(static_cast<size_t>(num_offsets * padded * in_channels), 0.0f);
  float* to = packed.data();
  for (int32_t k = 0; k < num_offsets; ++k) {
    for (int64_t column = 0; column < padded;) {
      const int64_t left = out_channels - column;
      const int64_t panel = left < width ? width : width * isa.panel_vectors(static_cast<int32_t>(left / width));
      const int64_t filled = std::min(panel, left);
      for (int32_t i = 0; i < in_channels; ++i, to += panel) {
        std::copy_n(weights + (int64_t{k} * in_channels + i) * out_channels + column, filled, to);
      }
      column += panel;
    }
  }
  return packed;
}

void FetchOnDemand(const Isa& isa, const FetchOnDemandParams& params, ThreadPool& pool) {
  const RulebookView& rulebook = params.rulebook;
  const ConstRows& in = params.operands.in;
  const Rows& out = params.operands.out;
  const Epilogue& epilogue = params.operands.epilogue;
  const auto* const weights = static_cast<const float*>(params.operands.weights);
  const int32_t block_rows = params.block_rows > 0 ? params.block_rows : BlockRows(isa, in.channels, out.channels);
  const int64_t tiles_per_block = std::max<int64_t>(1, block_rows / kRulebookTileRows);
  const int64_t weights_per_offset = PaddedChannels(isa, out.channels) * in.channels;

  pool.ParallelFor(rulebook.num_tiles(), tiles_per_block, [&](int64_t tile_begin, int64_t tile_end) {
    const int64_t row_begin = tile_begin * kRulebookTileRows;
    const int64_t row_end = std::min(tile_end * kRulebookTileRows, rulebook.num_out_rows);
    StartRows(epilogue, out, row_begin, row_end);
    const int64_t* first = rulebook.tile_begin + tile_begin * rulebook.num_offsets;
    const int64_t* last = rulebook.tile_begin + tile_end * rulebook.num_offsets;
    for (int32_t k = 0; k < rulebook.num_offsets; ++k) {
      if (first[k] == last[k]) continue;
      isa.accumulate({.num_pairs = last[k] - first[k],
                      .in_rows = rulebook.in_rows + first[k],
                      .out_rows = rulebook.out_rows + first[k],
                      .in = in.floats(),
                      .in_pitch = in.pitch,
                      .in_channels = in.channels,
                      .weights = weights + k * weights_per_offset,
                      .out = out.floats(),
                      .out_pitch = out.pitch,
                      .out_channels = out.channels});
    }
    FinishRows(epilogue, out, row_begin, row_end);
  });
}

}  // namespace voxserve::kernels::cpu
