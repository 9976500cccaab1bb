#pragma once

// These functions find and decode the box of one anchor (anchor_head.h). The CPU and the GPU share this code. Files
// that include this header are compiled without fused multiply-add, so that both devices round alike.
//
// load(image, row, channel) returns a value of an ImageChannels as float32.

#include <cmath>
#include <cstdint>
#include <numbers>

#include "kernels/boxes/anchor_head.h"

namespace voxserve::kernels {

// Returns the centre of a cell's anchors on one axis.
constexpr float AnchorCentre(const AnchorHeadParams& params, int axis, int32_t cell, int32_t num_cells) {
  const auto a = static_cast<size_t>(axis);
  if (num_cells == 1) return params.range_min[a];
  const double step = (double{params.range_max[a]} - double{params.range_min[a]}) / (num_cells - 1);
  return static_cast<float>(double{params.range_min[a]} + cell * step);
}

// Calls emit(logit, index) if the best class of an anchor has at least lowest_logit. item: cell * num_anchors + anchor,
// with the cell's number in its sample. index: item * num_classes + class. Calls drop() for each class whose logit is
// not finite.
template <typename Load, typename Emit, typename Drop>
constexpr void FindAnchorCandidate(const AnchorHeadParams& params, float lowest_logit, int32_t sample, int32_t item,
                                   const Load& load, const Emit& emit, const Drop& drop) {
  const int32_t num_cells = params.num_rows * params.num_columns;
  const int32_t cell = item / params.num_anchors, anchor = item % params.num_anchors;
  const int64_t row = int64_t{sample} * num_cells + cell;
  int32_t best = -1;
  float best_logit = 0;
  for (int32_t k = 0; k < params.num_classes; ++k) {
    const float logit = load(params.scores, row, anchor * params.num_classes + k);
    if (!IsFinite(logit)) {
      drop();
    } else if (logit >= lowest_logit && (best < 0 || logit > best_logit)) {
      best = k;
      best_logit = logit;
    }
  }
  if (best >= 0)
    emit(best_logit,
         static_cast<uint32_t>(item) * static_cast<uint32_t>(params.num_classes) + static_cast<uint32_t>(best));
}

// Decodes candidate `index` and writes the columns of box_rows.h to `box`. The result says if `box` is valid.
template <typename Load>
constexpr CandidateFate DecodeAnchorBox(const AnchorHeadParams& params, int32_t sample, float logit, uint32_t index,
                                        const Load& load, float (&box)[kBoxColumns]) {
  const auto num_classes = static_cast<uint32_t>(params.num_classes);
  const auto item = static_cast<int32_t>(index / num_classes);
  const int32_t cell = item / params.num_anchors, number = item % params.num_anchors;
  const int64_t row = int64_t{sample} * params.num_rows * params.num_columns + cell;
  const AnchorBox& anchor = params.anchors[static_cast<size_t>(number)];
  const auto residual = [&](int32_t i) { return load(params.residuals, row, number * kAnchorResiduals + i); };

  const float diagonal = std::sqrt(anchor.size[0] * anchor.size[0] + anchor.size[1] * anchor.size[1]);
  const float x = AnchorCentre(params, 0, cell % params.num_columns, params.num_columns);
  const float y = AnchorCentre(params, 1, cell / params.num_columns, params.num_rows);
  box[kBoxX] = residual(0) * diagonal + x;
  box[kBoxY] = residual(1) * diagonal + y;
  box[kBoxZ] = residual(2) * anchor.size[2] + (anchor.bottom + anchor.size[2] / 2);
  for (int32_t axis = 0; axis < 3; ++axis) {
    box[kBoxLength + axis] = std::exp(residual(3 + axis)) * anchor.size[static_cast<size_t>(axis)];
  }

  int32_t bin = -1;
  float best = 0;
  for (int32_t b = 0; b < params.num_direction_bins; ++b) {
    const float direction = load(params.directions, row, number * params.num_direction_bins + b);
    if (bin < 0 ? direction == direction : direction > best) {
      bin = b;
      best = direction;
    }
  }
  constexpr double kTurn = 2 * std::numbers::pi;
  const double period = kTurn / params.num_direction_bins;
  const double turned = double{residual(6) + anchor.yaw} - params.direction_offset;
  const double limited = turned - std::floor(turned / period + params.direction_limit_offset) * period;
  const double yaw = limited + params.direction_offset + period * (bin < 0 ? 0 : bin);
  box[kBoxYaw] = static_cast<float>(yaw - kTurn * std::floor(yaw / kTurn + 0.5));

  box[kBoxVelocityX] = 0;
  box[kBoxVelocityY] = 0;
  box[kBoxScore] = ScoreOf(logit);
  box[kBoxClass] = static_cast<float>(params.class_ids[index % num_classes]);
  return IsFiniteBox(box) ? CandidateFate::kBox : CandidateFate::kNotFinite;
}

}  // namespace voxserve::kernels
