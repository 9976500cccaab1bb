#pragma once

// Convolutions of images, and their transposes:
//   out[y, x] = epilogue(sum over cells (i, j) of W[i, j] in[stride y - padding + dilation i, ...]), zeros around `in`;
//   transposed: in[y] goes to out[stride y - padding + dilation i], so that each output position reads the cells that
//   reach it. Positions with the same remainder of (y + padding) / stride read the same cells: a phase of the outputs
//   is a convolution of stride 1, and that is how it is computed.
// Definitions, names and the weights' order on the way in are PyTorch's conv2d and conv_transpose2d. Images are NHWC:
// matrices whose rows are positions (image, row, column) and whose columns are channels.
//
// A position's result depends on its own image alone, bit for bit: not on how many images there are, nor on which.
//
// On the CPU a thread computes a band of an image's rows by oneDNN. On a GPU it is an implicit GEMM of our own: a
// thread block multiplies a tile of output positions with the weights, chunk after chunk of the (cell, channel) axis,
// and gathers each chunk of the inputs to shared memory on the way. Where a group has few outputs, inputs are
// multiplied by the weights of all cells at once, and the products of an output's cells are added up afterwards.

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

inline constexpr int32_t kMaxConv2dKernelSize = 7;  // on an axis

// Pairs are (rows, columns).
struct Conv2dGeometry {
  std::array<int32_t, 2> kernel_size = {1, 1};     // 1 to kMaxConv2dKernelSize
  std::array<int32_t, 2> stride = {1, 1};          // 1 or more, as dilation
  std::array<int32_t, 2> padding = {0, 0};         // 0 or more, on both sides
  std::array<int32_t, 2> dilation = {1, 1};        // of a transposed one 1
  std::array<int32_t, 2> output_padding = {0, 0};  // of a transposed one, below its stride; else 0
  int32_t groups = 1;                              // of a transposed one 1; divides both numbers of channels
  bool is_transposed = false;

  // Positions of the output on an axis; 0 or less: none.
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

// How a GPU computes: by warps on tiles of 128 positions; by Hopper's warp groups, of which each has 64 positions and
// 64 or 128 channels, the wide ones 256; or a square of positions with all its cells at once, where the outputs are
// few.
enum class Conv2dTiling : int32_t {
  kChosen,
  kWarps,
  kFewOutputs,
  kTwoWarpGroups,
  kThreeWarpGroups,
  kFourWarpGroups,
  kFiveWarpGroups,
  kWideWarpGroups,  // two
};

struct Conv2dParams {
  Conv2dGeometry geometry;
  int64_t num_images = 0;
  int32_t in_rows = 0;  // of an image; those of the output are OutSize(0, in_rows), OutSize(1, in_columns)
  int32_t in_columns = 0;
  ConstRows in;                   // the inputs' positions, 1 channel or more; the CPU has float32 alone
  const void* weights = nullptr;  // of in's type, by the device's PackConv2dWeights; 128-byte aligned on a GPU
  Rows out;           // the outputs' positions, of in's type or float32; not over `in`, may be the residual itself
  Epilogue epilogue;  // its rows are positions of the output, its bias is float32
  bool allow_tf32 = false;  // a GPU may round float32 factors to TensorFloat-32
  Conv2dTiling tiling = Conv2dTiling::kChosen;
};
static_assert(std::is_trivially_copyable_v<Conv2dParams>);

namespace cpu {

// Each throws std::bad_alloc, and returns why oneDNN refuses the convolution: then there is no result. Empty: it does
// not.

// weights: [out_channels, in_channels / groups, rows, columns]; of a transposed one [in_channels, out_channels, rows,
// columns]. packed: in the order in which Conv2d reads them on this machine.
[[nodiscard]] std::string PackConv2dWeights(const Conv2dGeometry& geometry, int32_t in_channels, int32_t out_channels,
                                            const float* weights, std::vector<float>* packed);

// Computes nothing: whether Conv2d would be refused on one thread. Of pointers and the number of images it asks
// nothing.
[[nodiscard]] std::string CheckConv2d(const Conv2dParams& params);

[[nodiscard]] std::string Conv2d(const Conv2dParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

// weights: as above. In the order in which Conv2d reads them where they are stored as `dtype`: the caller converts the
// values.
std::vector<float> PackConv2dWeights(const Conv2dGeometry& geometry, int32_t in_channels, int32_t out_channels,
                                     DType dtype, const float* weights);

// cudaErrorInvalidValue for a geometry beyond its limits, for dtypes that hold no features, and for a tiling that the
// GPU, the dtype or the geometry has not.
cudaError_t Conv2d(const Conv2dParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
