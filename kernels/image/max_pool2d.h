#pragma once

// MaxPool2d computes the maximum over windows of images, channel by channel, like PyTorch's max_pool2d:
//   out[y, x] = max over cells (i, j) of in[stride y - padding + i, stride x - padding + j],
// where cells outside the image are left out. A maximum is NaN if one of its values is NaN. Images are NHWC: matrices
// whose rows are positions (image, row, column). A position's result depends only on its own image, bit for bit.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/pool_reduce.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"
#include "kernels/image/conv2d.h"

namespace voxserve::kernels {

inline constexpr int32_t kMaxPool2dKernelSize = 15;  // on an axis

struct MaxPool2dParams {
  // Only kernel_size, stride and padding are used; the other members have their defaults. The padding is at most half
  // of the kernel, so every window has a cell in the image.
  Conv2dGeometry geometry;
  int64_t num_images = 0;
  int32_t in_rows = 0;  // rows of one image; the output has OutSize(0, in_rows) rows, OutSize(1, in_columns) columns
  int32_t in_columns = 0;
  ConstRows in;  // one row per input position; the CPU only supports float32
  Rows out;      // one row per output position; in's channels; in's type or float32; must not overlap `in`
};
static_assert(std::is_trivially_copyable_v<MaxPool2dParams>);

// The input positions [begin, end) that the window of an output position covers on an axis, inside the image.
struct WindowRange {
  int32_t begin = 0;
  int32_t end = 0;
};
constexpr WindowRange WindowOf(const Conv2dGeometry& geometry, size_t axis, int32_t position, int32_t in_size) {
  const int32_t first = position * geometry.stride[axis] - geometry.padding[axis];
  const int32_t last = first + geometry.kernel_size[axis];
  return {.begin = first < 0 ? 0 : first, .end = last > in_size ? in_size : last};
}

namespace cpu {

void MaxPool2d(const MaxPool2dParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t MaxPool2d(const MaxPool2dParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
