#pragma once

// Convolutions of images whose groups have few outputs each, as detection heads end in. Included by .cu files alone.

#include "kernels/image/conv2d_arguments.cuh"
#include "kernels/image/conv2d_launch.cuh"

namespace voxserve::kernels::cuda {

// Whether LaunchFewOutputs can compute it, and reads less than the kernel of kernels/image/conv2d.cuh would.
template <typename T>
bool IsForFewOutputs(const Conv2dArguments<T>& arguments);

// T: __half, __nv_bfloat16, or float whose factors are rounded to TensorFloat-32. From sm_80 on.
template <typename T>
cudaError_t LaunchFewOutputs(const Conv2dArguments<T>& arguments, const DeviceTraits& traits, cudaStream_t stream);

}  // namespace voxserve::kernels::cuda
