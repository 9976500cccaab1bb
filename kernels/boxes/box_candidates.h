#pragma once

// This file has the code that anchor_head and center_head share: the order of candidates, the choice of the candidates
// that become rows, and the arithmetic that must be the same on both devices. A candidate is a class at a cell or an
// anchor whose score reaches the threshold.
//
// A score is the sigmoid of a logit. The code compares logits, not scores: the sigmoid rises with the logit, and
// comparing logits needs no rounding. So the order is exact and the same on every device, even if several logits are
// so large that their float32 sigmoids are all 1.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>

#include "kernels/boxes/box_rows.h"
#include "kernels/core/epilogue.h"
#include "kernels/core/floats.h"
#include "kernels/core/scratch.h"

namespace voxserve::kernels {

inline constexpr int32_t kMaxBoxes = 4096;        // per sample, that a head decodes or an nms reads
inline constexpr int32_t kMaxHeadClasses = 32;    // of one head
inline constexpr int32_t kMaxHeadAnchors = 32;    // of one cell
inline constexpr int32_t kMaxDirectionBins = 16;  // of one anchor

// A view of some channels of images (NHWC). The values of one cell lie side by side, at `data` plus pitch times the
// cell's number: (sample * rows + row) * columns + column.
struct ImageChannels {
  const void* data = nullptr;
  int64_t pitch = 0;  // values from row to row
};

// Returns the lowest float32 logit whose exact sigmoid is above the threshold (is_strict) or at least the threshold
// (otherwise). If there is no such logit, returns NaN: every comparison with NaN is false, so no logit passes.
inline float LowestLogit(float score_threshold, bool is_strict) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const double threshold = score_threshold;
  if (!(threshold >= 0)) return -kInfinity;
  if (is_strict ? threshold >= 1 : threshold > 1) return std::numeric_limits<float>::quiet_NaN();
  const double bound = std::log(threshold) - std::log1p(-threshold);
  auto logit = static_cast<float>(bound);
  if (is_strict ? logit <= bound : logit < bound) logit = std::nextafter(logit, kInfinity);
  if (const float below = std::nextafter(logit, -kInfinity); is_strict ? below > bound : below >= bound) logit = below;
  return logit;
}

constexpr float ScoreOf(float logit) { return Activate(ActivationFunction::kSigmoid, logit); }

// Returns a candidate's key. A better candidate has a larger key: one with a larger logit or, if the logits are equal
// (0 and -0 are equal), with a lower index. A key is never 0.
constexpr uint64_t CandidateKey(float logit, uint32_t index) {
  const auto bits = std::bit_cast<uint32_t>(logit + 0.0f);
  const uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | static_cast<uint32_t>(~index);
}
constexpr float LogitOfKey(uint64_t key) {
  const auto ordered = static_cast<uint32_t>(key >> 32);
  return std::bit_cast<float>((ordered >> 31) != 0 ? ordered & 0x7fffffffu : ~ordered);
}
constexpr uint32_t IndexOfKey(uint64_t key) { return ~static_cast<uint32_t>(key); }

constexpr bool IsFiniteBox(const float (&box)[kBoxColumns]) {
  bool is_finite = true;
  for (int32_t column = 0; column < kBoxScore; ++column) is_finite = is_finite && IsFinite(box[column]);
  return is_finite;
}

// The outcome of decoding a candidate: it becomes a box, or it is dropped for one of two reasons.
enum class CandidateFate { kBox, kOutOfRange, kNotFinite };

constexpr float ValueOfNoBox(int32_t column) { return column == kBoxScore ? kNoBox : 0.0f; }

namespace cpu {

inline void WriteNoBoxes(float* begin, const float* end) {
  for (float* row = begin; row < end; row += kBoxPitch) {
    for (int32_t column = 0; column < kBoxColumns; ++column) row[column] = ValueOfNoBox(column);
  }
}

// Writes the max_boxes rows of one sample: the boxes of its max_boxes best candidates, best first, then rows without a
// box. decode(key, box) writes a candidate's box and returns its CandidateFate. Reorders `keys`. Adds the number of
// kNotFinite candidates to *num_not_finite.
template <typename Decode>
void WriteBestBoxes(ScratchVector<uint64_t>& keys, int32_t max_boxes, const Decode& decode, float* rows,
                    uint32_t* num_not_finite) {
  const int64_t num_best = std::min(static_cast<int64_t>(keys.size()), int64_t{max_boxes});
  std::partial_sort(keys.begin(), keys.begin() + num_best, keys.end(), std::greater<>());
  float* row = rows;
  for (int64_t i = 0; i < num_best; ++i) {
    float box[kBoxColumns] = {};
    const CandidateFate fate = decode(keys[static_cast<size_t>(i)], box);
    if (fate == CandidateFate::kNotFinite) ++*num_not_finite;
    if (fate != CandidateFate::kBox) continue;
    std::copy(box, box + kBoxColumns, row);
    row += kBoxPitch;
  }
  WriteNoBoxes(row, rows + int64_t{max_boxes} * kBoxPitch);
}

}  // namespace cpu
}  // namespace voxserve::kernels
