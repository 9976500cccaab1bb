#pragma once

// This header turns a number of axes into a template argument. Only .cu files include it.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

namespace voxserve::kernels::cuda {

// Returns visit(std::integral_constant<int, dimension>{}), a cudaError_t. Returns cudaErrorInvalidValue for a dimension
// outside 1 to kMaxDimension (conv_geometry.h), which is 4.
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
