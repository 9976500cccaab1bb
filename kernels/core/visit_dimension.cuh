#pragma once

// The one place where a number of axes becomes a template argument. Included by .cu files alone.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

namespace voxserve::kernels::cuda {

// Calls visit(std::integral_constant<int, dimension>{}) and returns its cudaError_t; cudaErrorInvalidValue for a
// dimension that is not 1 to kMaxDimension.
template <typename Visitor>
cudaError_t VisitDimension(int32_t dimension, const Visitor& visit) {
  switch (dimension) {
    case 1:
      return visit(std::integral_constant<int, 1>{});
    case 2:
      return visit(std::integral_constant<int, 2>{});
    case 3:
      return visit(std::integral_constant<int, 3>{});
    case 4:
      return visit(std::integral_constant<int, 4>{});
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace voxserve::kernels::cuda
