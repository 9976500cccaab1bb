#include "kernels/conv/tiles.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

namespace voxserve::kernels {

SortOrder OffsetsByDistance(const ConvGeometry& geometry) {
  SortOrder order{};
  const int32_t num_offsets = geometry.NumOffsets();
  if (num_offsets > kSortBits) return order;
  std::array<int32_t, kSortBits> distance{};
  for (int32_t k = 0; k < num_offsets; ++k) {
    const Axes cell = geometry.Cell(k);
    for (int axis = 0; axis < geometry.dimension; ++axis) {
      distance[static_cast<size_t>(k)] +=
          std::abs(2 * cell[static_cast<size_t>(axis)] - (geometry.kernel_size[static_cast<size_t>(axis)] - 1));
    }
  }
  const auto end = order.begin() + num_offsets;
  std::iota(order.begin(), end, int8_t{0});
  std::stable_sort(order.begin(), end, [&](int8_t a, int8_t b) {
    return distance[static_cast<size_t>(a)] < distance[static_cast<size_t>(b)];
  });
  return order;
}

}  // namespace voxserve::kernels
