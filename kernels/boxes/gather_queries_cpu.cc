#include <algorithm>
#include <cassert>

#include "kernels/boxes/gather_queries.h"

namespace voxserve::kernels::cpu {

void GatherQueries(const GatherQueriesParams& params) {
  assert(params.out.dtype == DType::kFloat32);
  for (int64_t row = 0; row < params.out.capacity; ++row) {
    float* const out = params.out.floats(row);
    if (params.of == GatherOf::kFeatures) {
      std::copy_n(params.cells.floats(CellRowOf(params, row)), params.out.channels, out);
      continue;
    }
    const float* const selected = params.selection + row * kSelectionColumns;
    for (int32_t channel = 0; channel < params.out.channels; ++channel) {
      out[channel] = SelectedValue(params.of, selected, channel);
    }
  }
}

}  // namespace voxserve::kernels::cpu
