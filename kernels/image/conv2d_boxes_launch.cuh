#pragma once

// This header describes boxes of inputs to Hopper's tensor copies, and launches the kernel of conv2d_boxes_kernel.cuh.
// Only .cu files include it.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>

#include "kernels/image/conv2d_boxes_kernel.cuh"
#include "kernels/image/conv2d_im2col_launch.cuh"

namespace voxserve::kernels::cuda {

// Describes the inputs of a box. Returns false if the driver refuses the description.
template <typename Shape, typename T>
bool FillBoxMap(const Conv2dArguments<T>& arguments, CUtensorMap& map) {
  static const auto encode = FindMapFunction<PFN_cuTensorMapEncodeTiled_v12000>("cuTensorMapEncodeTiled");
  if (encode == nullptr) return false;
  const Conv2dGeometry& geometry = arguments.geometry;
  // Sizes go from the innermost axis outwards: channels, columns, rows, images.
  const cuuint64_t row_bytes = static_cast<cuuint64_t>(arguments.in_pitch) * sizeof(T);
  const auto width = static_cast<cuuint64_t>(arguments.in_columns), height = static_cast<cuuint64_t>(arguments.in_rows);
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(arguments.group_in_channels), width, height,
                              static_cast<cuuint64_t>(arguments.num_images)};
  const cuuint64_t strides[] = {row_bytes, row_bytes * width, row_bytes * width * height};
  const cuuint32_t steps[] = {1, static_cast<cuuint32_t>(geometry.stride[1]),
                              static_cast<cuuint32_t>(geometry.stride[0]), 1};
  const cuuint32_t box[] = {kIm2colChannels<T, Shape>, Shape::kBoxColumns * steps[1], Shape::kInputRows * steps[2], 1};
  return encode(&map, kTensorMapType<T>, 4, const_cast<T*>(arguments.in), sizes, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, kInputSwizzle<Shape>, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// Returns cudaErrorNotSupported without launching if there are too many boxes or the driver refuses the tensor copies.
template <typename Shape, typename T>
cudaError_t LaunchBoxShape(const Conv2dArguments<T>& conv, const Im2colOutputs<T>& outputs, const ActiveBoxList& active,
                           const DeviceTraits& traits, cudaStream_t stream) {
  static std::atomic<uint64_t> allowed = 0;
  const auto kernel = Im2colKernel<T, Shape>;
  VOXSERVE_RETURN_IF_CUDA(AllowSharedMemory(kernel, Shape::kSharedBytes, traits.device, allowed));
  Im2colArguments<T> arguments{
      .inputs = {}, .conv = conv, .num_tiles = 0, .num_position_tiles = 0, .outputs = outputs, .active = active};
  if (!FillBoxMap<Shape>(conv, arguments.inputs[0])) return cudaErrorNotSupported;
  arguments.conv.num_column_tiles = (conv.group_out_channels - 1) / Shape::kChannels + 1;
  const int64_t num_boxes = conv.num_images * Shape::kBox.NumIn(conv.out_rows, conv.out_columns);
  // A list has place for one box more than there are.
  const int64_t num_tiles = (num_boxes + (active.box.rows > 0 ? 1 : 0)) * arguments.conv.num_column_tiles;
  if (num_tiles + traits.num_sms > std::numeric_limits<int32_t>::max()) return cudaErrorNotSupported;
  arguments.num_position_tiles = static_cast<int32_t>(num_boxes);
  arguments.num_tiles = static_cast<int32_t>(num_tiles);
  const auto num_blocks = static_cast<unsigned>(std::min<int64_t>(num_tiles, traits.num_sms));
  return LaunchEarly(kernel, dim3(num_blocks), Shape::kThreads, Shape::kSharedBytes, stream, arguments);
}

}  // namespace voxserve::kernels::cuda
