#pragma once

// LaunchWarpGroups computes 2D convolutions (kernels/image/conv2d.h) by Hopper's warp groups, on tiles of 128 to 320
// output positions. Only .cu files include this header.

#include "kernels/image/conv2d.h"
#include "kernels/image/conv2d_arguments.cuh"
#include "kernels/image/conv2d_launch.cuh"

namespace voxserve::kernels::cuda {

// Returns the warp groups' tiling with the lowest expected time. All these tilings add up the same products in the same
// order, so the choice does not change the result.
template <typename T>
Conv2dTiling ChooseWarpGroups(const Conv2dArguments<T>& arguments, const DeviceTraits& traits);

// T: __half or __nv_bfloat16.
template <typename T>
cudaError_t LaunchWarpGroups(const Conv2dArguments<T>& arguments, Conv2dTiling tiling, const DeviceTraits& traits,
                             cudaStream_t stream);

}  // namespace voxserve::kernels::cuda
