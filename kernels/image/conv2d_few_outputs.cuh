#pragma once

// LaunchFewOutputs computes 2D convolutions (kernels/image/conv2d.h) whose groups have few output channels, like the
// last layers of detection heads, on a GPU. Only .cu files include this header.

#include "kernels/image/conv2d_arguments.cuh"
#include "kernels/image/conv2d_launch.cuh"

namespace voxserve::kernels::cuda {

// Returns true if LaunchFewOutputs supports the convolution and reads fewer input values than the kernel of
// kernels/image/conv2d.cuh.
template <typename T>
bool IsForFewOutputs(const Conv2dArguments<T>& arguments);

// IsForFewOutputs must be true, and the GPU at least sm_80. T: __half, __nv_bfloat16, or float; floats are rounded to
// TensorFloat-32. Returns cudaErrorInvalidValue if the grid would have 2^31 blocks or more.
//
// On Hopper, tensor copies bring inputs of 16 bits whose rows are aligned to 16 bytes, if the groups have a multiple of
// 64 input channels. The results have the same bytes either way. The launch holds the addresses of the tensors, so it
// can be captured in a graph like any other.
template <typename T>
cudaError_t LaunchFewOutputs(const Conv2dArguments<T>& arguments, const DeviceTraits& traits, cudaStream_t stream);

}  // namespace voxserve::kernels::cuda
