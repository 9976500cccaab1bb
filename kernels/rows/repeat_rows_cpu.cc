#include <algorithm>
#include <cassert>

#include "kernels/rows/repeat_rows.h"

namespace voxserve::kernels::cpu {

void RepeatRows(const RepeatRowsParams& params) {
  assert(params.rows.dtype == DType::kFloat32 && params.out.dtype == DType::kFloat32);
  for (int64_t row = 0; row < params.out.capacity; ++row) {
    std::copy_n(params.rows.floats(row % params.rows.capacity), params.out.channels, params.out.floats(row));
  }
}

}  // namespace voxserve::kernels::cpu
