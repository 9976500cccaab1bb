#pragma once

// Int8Im2col computes 2D convolutions of images (kernels/image/conv2d.h) in 8 bits on Hopper: the kernel of
// conv2d_im2col_kernel.cuh, or of conv2d_boxes_kernel.cuh, for inputs of uint8 or int8 and weights of int8. Sums are
// int32 and exact, so every tile gives the same bytes. The epilogue (conv/int8_epilogue.h) rounds them once, with the
// bytes that products in 8 bits on a CPU have (kernels/int8).
//
// A chunk has 128 input channels of a cell, or 64 where the input channels are no multiple of 128.

#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/conv/int8_epilogue.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"
#include "kernels/image/conv2d.h"

namespace voxserve::kernels {

struct Int8Im2colParams {
  Conv2dGeometry geometry;  // of 1 group
  int64_t num_images = 0;
  int32_t in_rows = 0, in_columns = 0;  // of one image; Conv2dGeometry::OutSize gives those of the output
  ConstRows in;                         // [input positions, in_channels] uint8 or int8, rows at multiples of 16 bytes
  const void* weights = nullptr;        // PackInt8Im2colWeights, 128-byte aligned
  // [output positions, out_channels] uint8, int8, float16 or float32; does not overlap `in`. Stores are fast where
  // those of Int8ImplicitGemmParams are.
  Rows out;
  Int8Epilogue epilogue;  // arrays on the GPU; the residual may be `out` if their types have the same size
  // It may also be kTwoIm2col, kThreeIm2col or kFourIm2col, and for convolutions that ShareInputBoxes kThreeBoxes or
  // kFourBoxes.
  Conv2dTiling tiling = Conv2dTiling::kChosen;
};
static_assert(std::is_trivially_copyable_v<Int8Im2colParams>);

// Returns true if Int8Im2col serves the convolution: one group, input channels that are a multiple of 64, a geometry
// within the limits of tensor copies (conv2d_im2col_limits.h), and sums that fit an int32.
bool IsForInt8Im2col(const Conv2dGeometry& geometry, int32_t in_rows, int32_t in_columns, int32_t in_channels);

// Packs weights [cells, in_channels, out_channels] in the order in which Int8Im2col reads them. Cells are those of the
// kernel, row by row. in_channels: a multiple of 64.
std::vector<int8_t> PackInt8Im2colWeights(const Conv2dGeometry& geometry, int32_t in_channels, int32_t out_channels,
                                          const int8_t* weights);

namespace cuda {

// Returns true if the current GPU runs Int8Im2col.
bool SupportsInt8Im2col();

// Queues the convolution on `stream`. It starts before its predecessor on the stream has ended, and reads the weights
// and the epilogue's arrays at once, so the predecessor must not write them.
//
// Returns cudaErrorInvalidValue for
// - a GPU other than Hopper, and a tiling other than those above;
// - convolutions for which IsForInt8Im2col is false, and inputs whose rows are not aligned;
// - types other than those above, or no multiplier.
// Returns cudaErrorNotSupported for more than about 2^31 positions, or if the driver refuses the tensor copies.
cudaError_t Int8Im2col(const Int8Im2colParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
