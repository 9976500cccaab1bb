#pragma once

// Conv2d computes 2D convolutions of images, and transposed convolutions. On one axis, where a cell i is one place of
// the kernel and W[i] its weights:
//   convolution:  out[y] = epilogue(sum over cells i of W[i] in[stride y - padding + dilation i]);
//   transposed:   in[y] W[i] is added to out[stride y - padding + i], for each cell i; then the epilogue.
// Positions outside of `in` are 0. Definitions, names and the weights' original order are those of PyTorch's conv2d and
// conv_transpose2d.
//
// Images are NHWC: matrices whose rows are positions (image, row, column) and whose columns are channels. A position's
// result depends only on its own image, bit for bit, and not on the other images of the batch.
//
// The output positions of a transposed convolution with the same remainder of (y + padding) / stride read the same
// cells. Such a set of positions is a phase (conv2d_phase.h), which is computed as a convolution of stride 1.
//
// - CPU: a thread computes a band of an image's rows with oneDNN.
// - GPU: an implicit GEMM of our own (conv2d.cuh). A thread block multiplies a tile of output positions by the weights,
//   in chunks of the (cell, channel) axis, and gathers each chunk of the inputs to shared memory when it needs it. On
//   Hopper, tensor copies gather most layers (conv2d_im2col_kernel.cuh, conv2d_boxes_kernel.cuh). Such a kernel starts
//   before its predecessor on the stream has ended, and may read the weights and the bias at once, so the predecessor
//   must not write them. The results have the same bytes either way.
// - Groups with few output channels, on both devices: the input positions are multiplied by the weights of all cells at
//   once, and the matrix products of an output's cells are added up afterwards.

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
#include "kernels/image/sites/active_boxes.h"

namespace voxserve::kernels {

inline constexpr int32_t kMaxConv2dKernelSize = 7;  // per axis

// Pairs are (rows, columns). A 2D pooling uses this type too (max_pool2d.h).
struct Conv2dGeometry {
  std::array<int32_t, 2> kernel_size = {1, 1};     // 1 to kMaxConv2dKernelSize
  std::array<int32_t, 2> stride = {1, 1};          // at least 1
  std::array<int32_t, 2> padding = {0, 0};         // at least 0, on both sides
  std::array<int32_t, 2> dilation = {1, 1};        // at least 1; 1 if is_transposed
  std::array<int32_t, 2> output_padding = {0, 0};  // 0 to stride - 1 if is_transposed, else 0
  int32_t groups = 1;                              // divides both numbers of channels; 1 if is_transposed
  bool is_transposed = false;

  // Returns the number of output positions on an axis. If it is 0 or less, the output is empty.
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

// The tile of output positions and channels that a thread block computes on a GPU, and the instructions that it uses.
enum class Conv2dTiling : int32_t {
  kChosen,      // Conv2d chooses the tiling
  kWarps,       // 128 positions, by single warps; without tensor cores before sm_80 and for float32 without TF32
  kFewOutputs,  // a square of input positions with all cells at once, for groups with few output channels
  // Hopper's warp groups: each has 64 positions, and 64 or 128 channels.
  kTwoWarpGroups,
  kThreeWarpGroups,
  kFourWarpGroups,
  kFiveWarpGroups,
  kWideWarpGroups,  // two warp groups with 256 channels
  // The same tiles, whose inputs Hopper's tensor copies gather: for 16-bit values in aligned rows, and groups of a
  // multiple of 64 input channels (conv2d_im2col.cuh).
  kTwoIm2col,
  kThreeIm2col,
  kFourIm2col,
  // Tensor copies too, with channels as the rows of the products: so many channels by so many positions.
  kIm2col128By136,
  kIm2col64By272,
  // Boxes of 16 columns (conv2d_boxes_kernel.cuh), for those of these convolutions that ShareInputBoxes. So many warp
  // groups with 64 positions each; then with channels as the rows of the products. Int8Im2col has kTwoIm2col to
  // kFourIm2col, kThreeBoxes and kFourBoxes (int8/int8_im2col.h).
  kThreeBoxes,
  kFourBoxes,
  kBoxes128By144,
  kBoxes64By288,
};

struct Conv2dParams {
  Conv2dGeometry geometry;
  int64_t num_images = 0;
  int32_t in_rows = 0;  // rows of one image; the output has OutSize(0, in_rows) rows, OutSize(1, in_columns) columns
  int32_t in_columns = 0;
  ConstRows in;                   // one row per input position, at least 1 channel; the CPU only supports float32
  const void* weights = nullptr;  // of in's type, from the device's PackConv2dWeights; 128-byte aligned on a GPU
  Rows out;           // one row per output position; in's type or float32; must not overlap `in`, may be the residual
  Epilogue epilogue;  // its residual has one row per output position, its bias is float32
  bool allow_tf32 = false;                      // true: a GPU may round float32 inputs and weights to TensorFloat-32
  Conv2dTiling tiling = Conv2dTiling::kChosen;  // only on a GPU
  // On a GPU: the output's active boxes, where only these shall be computed; without `box`: all is computed. It does
  // not change the results.
  ActiveBoxList active;
};
static_assert(std::is_trivially_copyable_v<Conv2dParams>);

// Returns true if one box of inputs can serve the three cells of a column of the kernel.
constexpr bool ShareInputBoxes(const Conv2dGeometry& geometry) {
  return geometry.kernel_size[0] == 3 && geometry.stride[0] == 1 && geometry.stride[1] == 1 &&
         geometry.dilation[0] == 1 && geometry.groups == 1 && !geometry.is_transposed;
}

// Returns true if Hopper's kernel of boxes serves such a convolution in 16 bits. Conv2d computes others whole, whatever
// their list says.
constexpr bool CanLeaveOutBoxes(const Conv2dGeometry& geometry, int32_t in_channels, int32_t out_channels) {
  constexpr int32_t kMaxStride = 8;  // of tensor copies
  return !geometry.is_transposed && geometry.groups == 1 && geometry.stride[0] <= kMaxStride &&
         geometry.stride[1] <= kMaxStride && in_channels % 64 == 0 && out_channels > 32 &&
         (out_channels + 63) / 64 <= ActiveBoxList::kMaxColumnTiles;
}

namespace cpu {

// These functions return an empty string if they succeed. Otherwise they return the reason why oneDNN refuses the
// convolution, and there is no result. They throw std::bad_alloc if memory is used up.

// weights: [out_channels, in_channels / groups, rows, columns]; for a transpose [in_channels, out_channels, rows,
// columns]. packed: the weights in the order in which Conv2d reads them on this machine.
[[nodiscard]] std::string PackConv2dWeights(const Conv2dGeometry& geometry, int32_t in_channels, int32_t out_channels,
                                            const float* weights, std::vector<float>* packed);

// Returns without computing what Conv2d would return on one thread. Does not read pointers or the number of images.
[[nodiscard]] std::string CheckConv2d(const Conv2dParams& params);

[[nodiscard]] std::string Conv2d(const Conv2dParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

// Packs weights, which have the shape that cpu::PackConv2dWeights describes, in the order in which Conv2d reads them if
// they are stored as `dtype`. The caller converts the values to `dtype`.
std::vector<float> PackConv2dWeights(const Conv2dGeometry& geometry, int32_t in_channels, int32_t out_channels,
                                     DType dtype, const float* weights);

// Returns cudaErrorInvalidValue for a geometry beyond its limits, for dtypes that hold no features, and for a tiling
// that the GPU, the dtype or the geometry does not support.
cudaError_t Conv2d(const Conv2dParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
