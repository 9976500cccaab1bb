#pragma once

// LaunchBoxes computes a convolution's active boxes (active_boxes.h) by Hopper's warp groups. Only .cu files include
// this header.

#include "kernels/image/conv2d.h"
#include "kernels/image/conv2d_arguments.cuh"
#include "kernels/image/conv2d_launch.cuh"

namespace voxserve::kernels::cuda {

// T is __half or __nv_bfloat16. The convolution must be IsForIm2col. Returns cudaErrorNotSupported without launching
// unless CanLeaveOutBoxes, and if there are too many boxes or the driver refuses the tensor copies.
template <typename T>
cudaError_t LaunchBoxes(const Conv2dArguments<T>& arguments, const ActiveBoxList& active, const DeviceTraits& traits,
                        cudaStream_t stream);

}  // namespace voxserve::kernels::cuda
