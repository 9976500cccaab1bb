#include <cassert>

#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/site_filter.h"

namespace voxserve::kernels::cpu {

void SiteFilter(const SiteFilterParams& params) {
  assert(params.scores.dtype == DType::kFloat32);
  const CoordinateKey layout(params.dimension);
  uint64_t* out = params.out_keys;
  for (int64_t row = 0; row < params.num_in; ++row) {
    const uint64_t key = params.in_keys[row];
    bool stays = params.scores.data == nullptr || *params.scores.floats(row) > params.threshold;
    for (int axis = 0; axis < params.dimension; ++axis) {
      const int32_t coordinate = layout.Coordinate(key, axis);
      stays &= coordinate >= params.lower[axis] && coordinate < params.upper[axis];
    }
    if (stays) *out++ = key;
  }
  *params.num_out = out - params.out_keys;
}

}  // namespace voxserve::kernels::cpu
