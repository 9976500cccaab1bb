#pragma once

// 2D convolutions of images, and their transposes:
//  out[y, x] = epilogue(sum over cells (i, j) of W[i, j] in[stride y - padding + dilation i, ...]), zeros around `in`;
//  transposed: in[y] adds to out[stride y - padding + dilation i], so each output position reads the cells that reach
//  it.
// Output positions of a transpose with the same remainder of (y + padding) / stride read the same cells. Such a phase
// of the outputs is a convolution of stride 1, and is computed as one.
//
// Definitions, names and the weights' original order are those of PyTorch's conv2d and conv_transpose2d. Images are
// NHWC: matrices whose rows are positions (image, row, column) and whose columns are channels.
//
// A position's result depends only on its own image, bit for bit, and not on the other images of the batch.
//
// - CPU: a thread computes a band of an image's rows with oneDNN.
// - GPU: an implicit GEMM of our own. A thread block multiplies a tile of output positions by the weights, in chunks of
//   the (cell, channel) axis, and gathers each chunk of the inputs to shared memory on the way.
// - Groups with few outputs (both devices): inputs are multiplied by the weights of all cells at once, and the products
//   of an output's cells are added afterwards.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/epilogue.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

inline constexpr int32_t kMaxConv2dKernelSize = 7;  // per axis

// Pairs are (rows, columns).
struct Conv2dGeometry {
  std::array<int32_t, 2> kernel_size = {1, 1};     // 1 to kMaxConv2dKernelSize
  std::array<int32_t, 2> stride = {1, 1};          // at least 1; dilation too
  std::array<int32_t, 2> padding = {0, 0};         // at least 0, on both sides
  std::array<int32_t, 2> dilation = {1, 1};        // 1 for a transpose
  std::array<int32_t, 2> output_padding = {0, 0};  // transpose: below its stride; else 0
  int32_t groups = 1;                              // 1 for a transpose; divides both numbers of channels
  bool is_transposed = false;

  // Returns the output's positions on an axis; 0 or less: none.
  constexpr int64_t OutSize(size_t axis, int64_t in_size) const {
    const int64_t reach = int64_t{dilation[axis]} * (kernel_size[axis] - 1) + 1;
    if (is_transposed) {
      return (in_size - 1) * stride[axis] - 2 * int64_t{padding[axis]} + reach + output_padding[axis];
    }
    const int64_t room = in_size + 2 * int64_t{padding[axis]} - reach;
    return room < 0 ? 0 : room / stride[axis] + 1;
  }

  bool operator==(const Conv2dGeometry&) const = default;
};

// How a GPU computes: by single warps, on tiles of 128 positions; by Hopper's warp groups, each on 64 positions and 64
// or 128 channels (the wide ones 256); or on a square of positions with all their cells at once, for few outputs.
enum class Conv2dTiling : int32_t {
  kChosen,
  kWarps,
  kFewOutputs,
  kTwoWarpGroups,
  kThreeWarpGroups,
  kFourWarpGroups,
  kFiveWarpGroups,
  kWideWarpGroups,  // two warp groups
};

struct Conv2dParams {
  Conv2dGeometry geometry;
  int64_t num_images = 0;
  int32_t in_rows = 0;  // rows of one image; the output has OutSize(0, in_rows) rows, OutSize(1, in_columns) columns
  int32_t in_columns = 0;
  ConstRows in;                   // positions of the inputs, at least 1 channel; float32 only on the CPU
  const void* weights = nullptr;  // in in's type, by the device's PackConv2dWeights; 128-byte aligned on a GPU
  Rows out;                 // positions of the outputs, in's type or float32; not over `in`, may be the residual itself
  Epilogue epilogue;        // its rows are output positions, its bias is float32
  bool allow_tf32 = false;  // a GPU may round float32 factors to TensorFloat-32
  Conv2dTiling tiling = Conv2dTiling::kChosen;
};
static_assert(std::is_trivially_copyable_v<Conv2dParams>);

namespace cpu {

// These functions return an empty string, or the reason why oneDNN refuses the convolution; there is no result then.
// They throw std::bad_alloc.

// weights: [out_channels, in_channels / groups, rows, columns]; for a transpose [in_channels, out_channels, rows,
// columns]. packed: the weights in the order in which Conv2d reads them on this machine.
[[nodiscard]] std::string PackConv2dWeights(const Conv2dGeometry& geometry, int32_t in_channels, int32_t out_channels,
                                            const float* weights, std::vector<float>* packed);

// Checks, without computing, whether Conv2d on one thread would be refused. Does not read pointers or the number of
// images.
[[nodiscard]] std::string CheckConv2d(const Conv2dParams& params);

[[nodiscard]] std::string Conv2d(const Conv2dParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

// Packs weights (shape as above) in the order in which Conv2d reads them when they are stored as `dtype`. The caller
// converts the values to `dtype`.
std::vector<float> PackConv2dWeights(const Conv2dGeometry& geometry, int32_t in_channels, int32_t out_channels,
                                     DType dtype, const float* weights);

// cudaErrorInvalidValue for a geometry beyond its limits, for dtypes that hold no features, and for a tiling that the
// GPU, the dtype or the geometry does not support.
cudaError_t Conv2d(const Conv2dParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
