#pragma once

// These functions find and decode the boxes of one cell (center_head.h). The CPU and the GPU share this code. Files
// that include this header are compiled without fused multiply-add: both devices then round alike, and a box on a bound
// of the range is inside on both or outside on both.
//
// load(image, row, channel) returns a value of an ImageChannels as float32.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/boxes/center_head.h"

namespace voxserve::kernels {

// A class at a cell: the place of a candidate.
struct CenterHeadCell {
  int32_t class_index = 0;
  int32_t cell = 0;  // the cell's number in its sample: row * num_columns + column
  int64_t row = 0;   // the row of the images that has the cell's values
};

// Returns the row of the images that has a cell's values, or -1 if the cell has no site. site_of is that of
// CenterHeadParams.
constexpr int64_t RowOfCell(const CenterHead& head, const int32_t* site_of, int32_t sample, int32_t cell) {
  const int64_t row = int64_t{sample} * head.num_rows * head.num_columns + cell;
  return site_of == nullptr ? row : site_of[row];
}

// Returns the place of candidate `index` = class * cells of an image + cell.
constexpr CenterHeadCell CellOfCandidate(const CenterHead& head, const int32_t* site_of, int32_t sample,
                                         uint32_t index) {
  const auto num_cells = static_cast<uint32_t>(head.num_rows * head.num_columns);
  const auto cell = static_cast<int32_t>(index % num_cells);
  return {.class_index = static_cast<int32_t>(index / num_cells),
          .cell = cell,
          .row = RowOfCell(head, site_of, sample, cell)};
}

// Returns the logit of a candidate.
template <typename Load>
constexpr float LogitAt(const CenterHead& head, const CenterHeadCell& at, const Load& load) {
  return load(head.heatmap, at.row, at.class_index);
}

// Returns the score of a candidate's box, NaN if its IoU is.
template <typename Load>
constexpr float BoxScore(const CenterHead& head, const CenterHeadCell& at, float logit, const Load& load) {
  const float score = ScoreOf(logit);
  if (head.iou.data == nullptr) return score;
  const float power = head.iou_powers[static_cast<size_t>(at.class_index)], iou = load(head.iou, at.row, 0);
  const float limited = iou < 0 ? 0.0f : iou > 1 ? 1.0f : iou;
  return std::pow(score, 1 - power) * std::pow(limited, power);
}

// Decodes a box and writes the columns of box_rows.h to `box`. The result says if `box` is valid.
template <typename Load>
constexpr CandidateFate DecodeCenterBox(const CenterHead& head, const CenterHeadCell& at, float logit, const Load& load,
                                        float (&box)[kBoxColumns]) {
  const auto row = static_cast<float>(at.cell / head.num_columns);
  const auto column = static_cast<float>(at.cell % head.num_columns);
  const bool is_det3d = head.convention == CenterHeadConvention::kDet3d;
  box[kBoxX] = (column + load(head.center, at.row, 0)) * head.stride * head.voxel_size[0] + head.range_min[0];
  box[kBoxY] = (row + load(head.center, at.row, 1)) * head.stride * head.voxel_size[1] + head.range_min[1];
  box[kBoxZ] = load(head.height, at.row, 0);
  for (int32_t axis = 0; axis < 3; ++axis) box[kBoxLength + axis] = std::exp(load(head.dim, at.row, axis));
  const float cosine = load(head.rot, at.row, is_det3d ? 1 : 0), sine = load(head.rot, at.row, is_det3d ? 0 : 1);
  box[kBoxYaw] = std::atan2(sine, cosine);
  const bool has_velocity = head.vel.data != nullptr;
  box[kBoxVelocityX] = has_velocity ? load(head.vel, at.row, 0) : 0.0f;
  box[kBoxVelocityY] = has_velocity ? load(head.vel, at.row, 1) : 0.0f;
  box[kBoxScore] = BoxScore(head, at, logit, load);
  box[kBoxClass] = static_cast<float>(head.class_ids[static_cast<size_t>(at.class_index)]);
  if (!IsFiniteBox(box) || !IsFinite(box[kBoxScore])) return CandidateFate::kNotFinite;
  bool is_within = true;
  for (int32_t axis = 0; axis < 3; ++axis) {
    const auto a = static_cast<size_t>(axis);
    is_within = is_within && box[axis] >= head.center_min[a] && box[axis] <= head.center_max[a];
  }
  return is_within ? CandidateFate::kBox : CandidateFate::kOutOfRange;
}

// Calls emit(logit, index) for each candidate of a sample's cell: each class of at least lowest_logit under kOpenPcdet,
// and the best class under kDet3d if its box is valid. Calls drop() for each class whose logit is not finite and, under
// kDet3d, if the best class's box is not finite.
template <typename Load, typename Emit, typename Drop>
constexpr void FindCenterCandidates(const CenterHead& head, const int32_t* site_of, float lowest_logit, int32_t sample,
                                    int32_t cell, const Load& load, const Emit& emit, const Drop& drop) {
  const int32_t num_cells = head.num_rows * head.num_columns;
  const int64_t row = RowOfCell(head, site_of, sample, cell);
  if (row < 0) return;
  const auto index_of = [&](int32_t k) {
    return static_cast<uint32_t>(k) * static_cast<uint32_t>(num_cells) + static_cast<uint32_t>(cell);
  };
  if (head.convention == CenterHeadConvention::kOpenPcdet) {
    for (int32_t k = 0; k < head.num_classes; ++k) {
      const float logit = load(head.heatmap, row, k);
      if (!IsFinite(logit)) {
        drop();
      } else if (logit >= lowest_logit) {
        emit(logit, index_of(k));
      }
    }
    return;
  }
  int32_t best = -1;
  float best_logit = 0;
  for (int32_t k = 0; k < head.num_classes; ++k) {
    const float logit = load(head.heatmap, row, k);
    if (!IsFinite(logit)) {
      drop();
    } else if (logit >= lowest_logit && (best < 0 || logit > best_logit)) {
      best = k;
      best_logit = logit;
    }
  }
  if (best < 0) return;
  float box[kBoxColumns] = {};
  const CandidateFate fate =
      DecodeCenterBox(head, {.class_index = best, .cell = cell, .row = row}, best_logit, load, box);
  if (fate == CandidateFate::kBox) emit(best_logit, index_of(best));
  if (fate == CandidateFate::kNotFinite) drop();
}

}  // namespace voxserve::kernels
