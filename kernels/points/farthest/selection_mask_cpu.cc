#include <algorithm>

#include "kernels/points/farthest/farthest_point_sample.h"
#include "kernels/points/farthest/selection_mask.h"

namespace voxserve::kernels::cpu {

void SelectionMask(const SelectionMaskParams& params, ThreadPool& pool) {
  pool.ParallelFor(params.num_samples, 1, [&](int64_t first, int64_t last) {
    for (int64_t sample = first; sample < last; ++sample) {
      const int64_t begin = params.point_begin[sample], end = params.point_begin[sample + 1];
      const int32_t* const selected = params.selected + params.selected_begin[sample];
      const int32_t* const selected_end = params.selected + params.selected_begin[sample + 1];
      const bool is_selection =
          params.is_restricted[sample] != 0 && selected != selected_end && *selected != kNothingSelected;
      if (!is_selection) {
        std::copy(params.is_valid + begin, params.is_valid + end, params.mask + begin);
        continue;
      }
      std::fill(params.mask + begin, params.mask + end, uint8_t{0});
      std::for_each(selected, selected_end, [&](int32_t index) { params.mask[begin + index] = 1; });
    }
  });
}

}  // namespace voxserve::kernels::cpu
