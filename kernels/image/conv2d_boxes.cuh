#pragma once

// LaunchBoxes computes convolutions of images box by box by Hopper's warp groups (conv2d_boxes_kernel.cuh). Only .cu
// files include this header.

#include "kernels/image/conv2d.h"
#include "kernels/image/conv2d_arguments.cuh"
#include "kernels/image/conv2d_launch.cuh"

namespace voxserve::kernels::cuda {

// Returns true if one box of inputs can serve the three cells of a column of the kernel.
constexpr bool SharesRows(const Conv2dGeometry& geometry) {
  return geometry.kernel_size[0] == 3 && geometry.stride[0] == 1 && geometry.stride[1] == 1 &&
         geometry.dilation[0] == 1 && geometry.groups == 1 && !geometry.is_transposed;
}

// T is __half or __nv_bfloat16. The convolution must be IsForIm2col. Without launching, the function returns
// cudaErrorInvalidValue unless the convolution SharesRows, and cudaErrorNotSupported if there are too many boxes or the
// driver refuses the tensor copies.
template <typename T>
cudaError_t LaunchBoxes(const Conv2dArguments<T>& arguments, Conv2dTiling tiling, const DeviceTraits& traits,
                        cudaStream_t stream);

}  // namespace voxserve::kernels::cuda
