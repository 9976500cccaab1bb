#pragma once

// Which farthest points a batch's samples select: what a geometry pass is told of it, in one block that goes to a
// device as it is. Empty where no sample selects any: then nothing runs.
//
// An executor keeps one and fills it anew for every batch. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/farthest_point_sample.h"
#include "kernels/selection_mask.h"
#include "kernels/voxelize.h"

namespace voxserve {

class PointSampling {
 public:
  // Begins a batch; Set follows for each of its samples, in their order.
  void Begin(size_t num_samples) {
    num_samples_ = num_samples;
    words_.assign(3 * num_samples + 1, 0);
  }
  // start: an index within the sample. is_restricted: a network sees the selected points alone.
  void Set(size_t sample, int64_t num_selected, int64_t start, bool is_restricted) {
    words_[sample + 1] = words_[sample] + num_selected;
    words_[num_samples_ + 1 + sample] = start;
    words_[2 * num_samples_ + 1 + sample] = is_restricted ? 1 : 0;
  }

  int64_t num_selected() const { return words_[num_samples_]; }  // of all samples
  bool is_empty() const { return num_selected() == 0; }
  int64_t selected_begin(size_t sample) const { return words_[sample]; }

  absl::Span<const int64_t> words() const { return words_; }

  // Parameters of the kernels, with `words` in place of words(): in the device's memory, say. Outputs and workspaces
  // are left to the caller.
  kernels::FarthestPointSampleParams SampleParams(const kernels::VoxelizeParams& points, const int64_t* words) const {
    const auto samples = static_cast<int64_t>(num_samples_);
    return {.num_points = points.num_points,
            .num_samples = points.num_samples,
            .point_begin = points.point_begin,
            .points = points.axes,
            .points_pitch = points.axes_pitch,
            .is_valid = points.is_valid,
            .selected_begin = words,
            .starts = words + samples + 1};
  }
  kernels::SelectionMaskParams MaskParams(const kernels::VoxelizeParams& points, const int64_t* words) const {
    const auto samples = static_cast<int64_t>(num_samples_);
    return {.num_points = points.num_points,
            .num_samples = points.num_samples,
            .point_begin = points.point_begin,
            .is_valid = points.is_valid,
            .num_selected = num_selected(),
            .selected_begin = words,
            .is_restricted = words + 2 * samples + 1};
  }

 private:
  size_t num_samples_ = 0;
  std::vector<int64_t> words_ = {0};  // selected_begin [samples + 1], starts [samples], is_restricted [samples]
};

}  // namespace voxserve
