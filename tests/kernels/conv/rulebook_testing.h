#pragma once

// Makes random rulebooks, and computes a sparse convolution by naive loops. A rulebook lists for each kernel offset the
// pairs (input row, output row) that the offset connects (kernels/conv/rulebook.h). The tests of every dataflow (way to
// multiply) compare their results with the loops.

#include <cstdint>
#include <vector>

#include "kernels/conv/rulebook_search.h"
#include "tests/kernels/core/feature_testing.h"

namespace voxserve::kernels {

// Returns a random rulebook. Within each offset, input and output rows both ascend, as they do for sorted coordinates.
// `density` is the probability that an output row has a pair at an offset, as long as input rows are left.
inline Rulebook RandomRulebook(int32_t num_offsets, int64_t num_in, int64_t num_out, double density, Random& random) {
  Rulebook rulebook{.num_out_rows = num_out, .num_in_rows = num_in};
  const int64_t num_tiles = (num_out + kRulebookTileRows - 1) / kRulebookTileRows;
  rulebook.tile_begin.resize(static_cast<size_t>((num_tiles + 1) * num_offsets));
  rulebook.offset_begin.push_back(0);
  for (int32_t k = 0; k < num_offsets; ++k) {
    int64_t in = 0;
    for (int64_t out = 0; out <= num_out; ++out) {
      if (out % kRulebookTileRows == 0 || out == num_out) {
        const int64_t tile = (out + kRulebookTileRows - 1) / kRulebookTileRows;
        rulebook.tile_begin[static_cast<size_t>(tile * num_offsets + k)] =
            static_cast<int64_t>(rulebook.out_rows.size());
      }
      if (out == num_out) break;
      while (in < num_in && random.Chance(0.3)) ++in;
      if (in < num_in && random.Chance(density)) {
        rulebook.in_rows.push_back(static_cast<int32_t>(in++));
        rulebook.out_rows.push_back(static_cast<int32_t>(out));
      }
    }
    rulebook.offset_begin.push_back(static_cast<int64_t>(rulebook.in_rows.size()));
  }
  return rulebook;
}

// Returns a convolution in double. in: [input rows, in channels]; weights: [K, in channels, out channels]; bias:
// [out channels] or null; residual: [output rows, out channels] or null, added before the ReLU.
inline Expected NaiveConvolution(const RulebookView& rulebook, const Matrix& in, const std::vector<float>& weights,
                                 int64_t out_channels, const std::vector<float>* bias, const Matrix* residual,
                                 bool relu) {
  Expected out(rulebook.num_out_rows, out_channels);
  for (int32_t k = 0; k < rulebook.num_offsets; ++k) {
    for (int64_t p = rulebook.offset_begin[k]; p < rulebook.offset_begin[k + 1]; ++p) {
      for (int64_t i = 0; i < in.channels; ++i) {
        const double value = in.at(rulebook.in_rows[p], i);
        const float* const row = weights.data() + (k * in.channels + i) * out_channels;
        for (int64_t o = 0; o < out_channels; ++o) out.Add(rulebook.out_rows[p], o, value * row[o]);
      }
    }
  }
  out.Finish(bias, residual, relu);
  return out;
}

}  // namespace voxserve::kernels
