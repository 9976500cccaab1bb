#pragma once

// PointSampling tells a geometry pass how many farthest points each sample of a batch selects, and with which point
// each selection starts (kernels/points/farthest/farthest_point_sample.h defines the selection). The values form one
// block, which is copied to a device as a whole. If no sample selects a point, the PointSampling is empty and no kernel
// runs.
//
// An executor keeps one and fills it anew for every batch. Not thread-safe.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "engine/tensor/farthest_points.h"
#include "kernels/points/farthest/farthest_point_sample.h"
#include "kernels/points/farthest/selection_mask.h"
#include "kernels/points/voxelize.h"

namespace voxserve {

// Returns the number of points of the largest sample. point_begin: [samples + 1].
inline int64_t MostPoints(absl::Span<const int64_t> point_begin) {
  int64_t most = 0;
  for (size_t i = 1; i < point_begin.size(); ++i) most = std::max(most, point_begin[i] - point_begin[i - 1]);
  return most;
}

class PointSampling {
 public:
  // Begins a batch; Set follows for each of its samples, in their order.
  void Begin(size_t num_samples) {
    num_samples_ = num_samples;
    words_.assign(3 * num_samples + 1, 0);
    restricts_network_ = false;
  }
  // Sets the selection of a sample with num_points points; `asked` may be empty. A number above num_points selects all
  // points, and a start beyond the points becomes the last one. A request for which this is an error has been refused
  // before (executor/point_sample.h).
  void Set(size_t sample, const std::optional<FarthestPoints>& asked, int64_t num_points) {
    words_[sample + 1] = words_[sample];
    if (!asked || num_points == 0) return;
    const auto most = static_cast<uint64_t>(num_points);
    words_[sample + 1] += static_cast<int64_t>(std::min(asked->num_points, most));
    words_[num_samples_ + 1 + sample] = asked->seed ? kernels::FarthestPointStart(*asked->seed, num_points)
                                                    : static_cast<int64_t>(std::min(asked->start_index, most - 1));
    if (!asked->restricts_network) return;
    words_[2 * num_samples_ + 1 + sample] = 1;
    restricts_network_ = true;
  }

  int64_t num_selected() const { return words_[num_samples_]; }  // of all samples together
  bool is_empty() const { return num_selected() == 0; }
  bool restricts_network() const { return restricts_network_; }  // for at least one sample
  int64_t selected_begin(size_t sample) const { return words_[sample]; }

  absl::Span<const int64_t> words() const { return words_; }

  // Return the kernels' parameters. `words` is words() or its copy in device memory. The caller sets outputs and
  // workspaces.
  kernels::FarthestPointSampleParams SampleParams(const kernels::VoxelizeParams& points, const int64_t* words) const {
    const auto samples = static_cast<int64_t>(num_samples_);
    return {.num_points = points.num_points,
            .num_samples = points.num_samples,
            .point_begin = points.point_begin,
            .points = points.axes,
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
  bool restricts_network_ = false;
  std::vector<int64_t> words_ = {0};  // selected_begin [samples + 1], starts [samples], is_restricted [samples]
};

}  // namespace voxserve
