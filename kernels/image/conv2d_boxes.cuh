#pragma once

// LaunchBoxes computes convolutions of images box by box by Hopper's warp groups (conv2d_boxes_kernel.cuh). Only .cu
// files include this header.

#include "kernels/image/conv2d.h"
#include "kernels/image/conv2d_arguments.cuh"
#include "kernels/image/conv2d_launch.cuh"

namespace voxserve::kernels::cuda {

// T is __half or __nv_bfloat16. The convolution must be IsForIm2col. Without launching, the function returns
// cudaErrorInvalidValue for a convolution that cannot ShareInputBoxes, and cudaErrorNotSupported if there are too many
// boxes or the driver refuses the tensor copies.
template <typename T>
cudaError_t LaunchBoxes(const Conv2dArguments<T>& arguments, Conv2dTiling tiling, const DeviceTraits& traits,
                        cudaStream_t stream);

}  // namespace voxserve::kernels::cuda
