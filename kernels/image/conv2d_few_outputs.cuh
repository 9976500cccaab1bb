#pragma once

// 2D convolutions whose groups have few outputs each, like the last layers of detection heads. Only .cu files include
// this header.

#include "kernels/image/conv2d_arguments.cuh"
#include "kernels/image/conv2d_launch.cuh"

namespace voxserve::kernels::cuda {

// Returns true if LaunchFewOutputs supports the convolution and reads less than the kernel of kernels/image/conv2d.cuh.
template <typename T>
bool IsForFewOutputs(const Conv2dArguments<T>& arguments);

// T: __half, __nv_bfloat16, or float, whose factors are rounded to TensorFloat-32. From sm_80 on.
template <typename T>
cudaError_t LaunchFewOutputs(const Conv2dArguments<T>& arguments, const DeviceTraits& traits, cudaStream_t stream);

}  // namespace voxserve::kernels::cuda
