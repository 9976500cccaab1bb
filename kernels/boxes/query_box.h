#pragma once

// DecodeQuery decodes the box of one query (query_decode.h). The CPU and the GPU share this code. Files that include
// this header are compiled without fused multiply-add: both devices then round alike, and a box on a bound is inside on
// both or outside on both.
//
// load(rows, row, channel) returns a value of an ImageChannels as float32.

#include <cmath>
#include <cstdint>

#include "kernels/boxes/query_decode.h"

namespace voxserve::kernels {

// Writes the columns of box_rows.h to `box`. The result says if `box` is valid; kOutOfRange stands for each reason but
// numbers that are not finite.
template <typename Load>
constexpr CandidateFate DecodeQuery(const QueryDecodeParams& params, int32_t sample, int32_t query, const Load& load,
                                    float (&box)[kBoxColumns]) {
  const int64_t at = int64_t{sample} * params.k + query;
  const float* const selected = params.selection + at * kSelectionColumns;
  if (!(selected[kSelectedScore] > 0)) return CandidateFate::kOutOfRange;
  const auto k = static_cast<int32_t>(selected[kSelectedClass]);
  const float logit = load(params.heatmap, at, k);
  if (!IsFinite(logit)) return CandidateFate::kNotFinite;
  box[kBoxScore] = ScoreOf(logit) * selected[kSelectedScore];
  if (!(box[kBoxScore] > params.score_thresholds[static_cast<uint32_t>(k)])) return CandidateFate::kOutOfRange;

  const float column = load(params.center, at, 0) + (selected[kSelectedColumn] + 0.5f);
  const float row = load(params.center, at, 1) + (selected[kSelectedRow] + 0.5f);
  box[kBoxX] = column * params.stride * params.voxel_size[0] + params.range_min[0];
  box[kBoxY] = row * params.stride * params.voxel_size[1] + params.range_min[1];
  for (int32_t axis = 0; axis < 3; ++axis) box[kBoxLength + axis] = std::exp(load(params.dim, at, axis));
  const float half_height = box[kBoxHeight] * 0.5f, height = load(params.height, at, 0);
  box[kBoxZ] = params.height_of == QueryHeight::kTop ? height - half_height : height;
  const float sine = load(params.rot, at, 0), cosine = load(params.rot, at, 1);
  box[kBoxYaw] = std::atan2(sine, cosine);
  const bool has_velocity = params.vel.data != nullptr;
  box[kBoxVelocityX] = has_velocity ? load(params.vel, at, 0) : 0.0f;
  box[kBoxVelocityY] = has_velocity ? load(params.vel, at, 1) : 0.0f;
  box[kBoxClass] = static_cast<float>(params.class_ids[static_cast<uint32_t>(k)]);
  box[kBoxQuery] = static_cast<float>(query + 1);
  if (!IsFiniteBox(box)) return CandidateFate::kNotFinite;

  bool is_kept = std::sqrt(sine * sine + cosine * cosine) >= params.min_rot_lengths[static_cast<uint32_t>(k)];
  const float bounded[3] = {box[kBoxX], box[kBoxY], params.bounds_bottom ? box[kBoxZ] - half_height : box[kBoxZ]};
  for (uint32_t axis = 0; axis < 3; ++axis) {
    is_kept = is_kept && bounded[axis] >= params.center_min[axis] && bounded[axis] <= params.center_max[axis];
  }
  return is_kept ? CandidateFate::kBox : CandidateFate::kOutOfRange;
}

}  // namespace voxserve::kernels
