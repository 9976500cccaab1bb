#include "kernels/rows/mlp/mlp.h"

#include <cstddef>

#include "kernels/rows/mlp/mlp_layout.h"

namespace voxserve::kernels {
namespace {

constexpr int32_t kPaddedChannels[] = {32, 64, 96, 128, 192, 256};

}  // namespace

MlpShape MlpShapeOf(int32_t in_channels, int32_t hidden_channels, int32_t out_channels) {
  if (in_channels < 1 || hidden_channels < 1 || hidden_channels > kMaxMlpHiddenChannels || out_channels < 1) return {};
  for (const int32_t padded_out : kPaddedChannels) {
    if (out_channels > padded_out) continue;
    // A kernel's input is as wide as its output, or 32 channels wide.
    const bool is_narrow = in_channels <= 32 && (padded_out == 128 || padded_out == 192);
    if (!is_narrow && in_channels > padded_out) continue;
    return {.padded_in = is_narrow ? 32 : padded_out,
            .padded_hidden = (hidden_channels + kMlpChunk - 1) / kMlpChunk * kMlpChunk,
            .padded_out = padded_out};
  }
  return {};
}

std::vector<float> PackMlpWeights(int32_t in_channels, int32_t hidden_channels, int32_t out_channels,
                                  const float* first, const float* second) {
  const MlpShape shape = MlpShapeOf(in_channels, hidden_channels, out_channels);
  const int32_t first_values = MlpFirstValues(shape.padded_in);
  const int32_t chunk_values = first_values + MlpSecondValues(shape.padded_out);
  std::vector<float> packed(static_cast<size_t>(shape.padded_hidden / kMlpChunk * chunk_values));
  for (int32_t hidden = 0; hidden < hidden_channels; ++hidden) {
    float* const chunk = packed.data() + hidden / kMlpChunk * chunk_values;
    const int32_t in_chunk = hidden % kMlpChunk;
    for (int32_t place = 0; place < shape.padded_in; ++place) {
      const int32_t channel = MlpChannelOf(place);
      if (channel >= in_channels) continue;
      chunk[MlpFirstPlace(shape.padded_in, place, in_chunk)] = first[channel * hidden_channels + hidden];
    }
    for (int32_t place = 0; place < shape.padded_out; ++place) {
      const int32_t channel = MlpChannelOf(place);
      if (channel >= out_channels) continue;
      chunk[first_values + MlpSecondPlace(in_chunk, place)] = second[hidden * out_channels + channel];
    }
  }
  return packed;
}

}  // namespace voxserve::kernels
