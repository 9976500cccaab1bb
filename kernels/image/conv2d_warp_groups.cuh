#pragma once

// Convolutions of images by Hopper's warp groups: tiles of 128 to 320 positions. Included by .cu files alone.

#include "kernels/image/conv2d.h"
#include "kernels/image/conv2d_arguments.cuh"
#include "kernels/image/conv2d_launch.cuh"

namespace voxserve::kernels::cuda {

// The tiling that is expected to be done first. Each adds up the same products in the same order.
template <typename T>
Conv2dTiling ChooseWarpGroups(const Conv2dArguments<T>& arguments, const DeviceTraits& traits);

// T: __half or __nv_bfloat16.
template <typename T>
cudaError_t LaunchWarpGroups(const Conv2dArguments<T>& arguments, Conv2dTiling tiling, const DeviceTraits& traits,
                             cudaStream_t stream);

}  // namespace voxserve::kernels::cuda
