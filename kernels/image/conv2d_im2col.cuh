#pragma once

// LaunchIm2col computes 2D convolutions (kernels/image/conv2d.h) by Hopper's warp groups. Hopper's tensor copies (TMA)
// gather the inputs, with zeros for positions outside the image: in im2col mode, or as boxes (conv2d_boxes.cuh). Only
// .cu files include this header.

#include "kernels/image/conv2d.h"
#include "kernels/image/conv2d_arguments.cuh"
#include "kernels/image/conv2d_launch.cuh"

namespace voxserve::kernels::cuda {

// T is __half or __nv_bfloat16 in these functions.

// Returns true if LaunchIm2col supports the convolution: groups of a multiple of 64 input channels, all
// rows aligned to 16 bytes, and a geometry within the limits of tensor copies. It needs code for warp groups
// (kWarpGroupCode), which the caller checks.
template <typename T>
bool IsForIm2col(const Conv2dArguments<T>& arguments);

// Returns the tiling of tensor copies with the lowest expected time. All these tilings, and those of LaunchWarpGroups,
// add up the same products in the same order, so the choice does not change the result.
template <typename T>
Conv2dTiling ChooseIm2col(const Conv2dArguments<T>& arguments, const DeviceTraits& traits);

// Without launching, returns cudaErrorInvalidValue for boxes of a convolution that cannot ShareInputBoxes, and
// cudaErrorNotSupported if there are too many tiles or the driver refuses the tensor copies. The launch holds the
// addresses of the tensors, so it can be captured in a graph like any other.
template <typename T>
cudaError_t LaunchIm2col(const Conv2dArguments<T>& arguments, Conv2dTiling tiling, const DeviceTraits& traits,
                         cudaStream_t stream);

}  // namespace voxserve::kernels::cuda
