#pragma once

// LaunchListedBoxes computes a convolution's active boxes (active_boxes.h) by Hopper's warp groups
// (conv2d_boxes_kernel.cuh). Only .cu files include this header.

#include "kernels/image/conv2d.h"
#include "kernels/image/conv2d_arguments.cuh"
#include "kernels/image/conv2d_launch.cuh"

namespace voxserve::kernels::cuda {

// T is __half or __nv_bfloat16. The convolution must be IsForIm2col. Returns cudaErrorNotSupported without launching
// unless CanLeaveOutBoxes, and if there are too many boxes or the driver refuses the tensor copies.
template <typename T>
cudaError_t LaunchListedBoxes(const Conv2dArguments<T>& arguments, const ActiveBoxList& active,
                              const DeviceTraits& traits, cudaStream_t stream);

}  // namespace voxserve::kernels::cuda
