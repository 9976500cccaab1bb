#pragma once

// These functions test the pairs (class, cell) of one sample (select_peaks.h). The CPU and the GPU share this code.
//
// load(image, row, channel) returns a value of an ImageChannels as float32.

#include <cstdint>

#include "kernels/boxes/select_peaks.h"

namespace voxserve::kernels {

enum class PairFate { kPeak, kNoPeak, kNotFinite };

constexpr int32_t NumCells(const SelectPeaksParams& params) { return params.num_rows * params.num_columns; }
constexpr int32_t NumPairs(const SelectPeaksParams& params) { return NumCells(params) * params.num_classes; }

// Says if a pair is a peak, and sets *logit to its logit.
template <typename Load>
constexpr PairFate TestPair(const SelectPeaksParams& params, int32_t sample, int32_t channel, int32_t cell,
                            const Load& load, float* logit) {
  const int64_t first_cell = int64_t{sample} * NumCells(params);
  *logit = load(params.scores, first_cell + cell, channel);
  if (!IsFinite(*logit)) return PairFate::kNotFinite;
  if (params.classes_without_test[static_cast<uint32_t>(channel)]) return PairFate::kPeak;
  const int32_t radius = params.peak_kernel / 2;
  const int32_t row = cell / params.num_columns, column = cell % params.num_columns;
  int32_t top = row - radius, bottom = row + radius, left = column - radius, right = column + radius;
  if (top < 0 || bottom >= params.num_rows || left < 0 || right >= params.num_columns) {
    if (params.border == PeakBorder::kDrop) return PairFate::kNoPeak;
    if (params.border == PeakBorder::kKeep) return PairFate::kPeak;
    top = top < 0 ? 0 : top;
    left = left < 0 ? 0 : left;
    bottom = bottom >= params.num_rows ? params.num_rows - 1 : bottom;
    right = right >= params.num_columns ? params.num_columns - 1 : right;
  }
  for (int32_t y = top; y <= bottom; ++y) {
    for (int32_t x = left; x <= right; ++x) {
      const float other = load(params.scores, first_cell + int64_t{y} * params.num_columns + x, channel);
      if (other > *logit && IsFinite(other)) return PairFate::kNoPeak;
    }
  }
  return PairFate::kPeak;
}

// Writes the row of the pair index = class * cells of an image + cell.
constexpr void WriteSelected(const SelectPeaksParams& params, uint32_t index, float score, float* row) {
  const auto num_cells = static_cast<uint32_t>(NumCells(params)),
             num_columns = static_cast<uint32_t>(params.num_columns);
  const uint32_t cell = index % num_cells;
  row[kSelectedRow] = static_cast<float>(cell / num_columns);
  row[kSelectedColumn] = static_cast<float>(cell % num_columns);
  row[kSelectedClass] = static_cast<float>(index / num_cells);
  row[kSelectedScore] = score;
}

}  // namespace voxserve::kernels
