#pragma once

// Converts rows between floats and whole numbers of 8 bits, a scale for each channel. Rounding is that of
// conv/int8_epilogue.h. The conversion of a value in 8 bits to another scale goes through float32 too. CPU and GPU give
// the same bytes.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

// Arrays are padded to PaddedInt8Channels (conv/int8_epilogue.h), on the device of the rows. At least one of `in` and
// `out` is uint8 or int8; the other may be such too, or float32, or on a GPU float16.
struct Int8RowsParams {
  ConstRows in;
  const float* in_scale = nullptr;       // [channels]; not read if `in` is a float
  Rows out;                              // [rows of in, channels of in]; does not overlap `in`
  const float* inverse_scale = nullptr;  // [channels] 1 / the output's scale; not read if `out` is a float
};
static_assert(std::is_trivially_copyable_v<Int8RowsParams>);

namespace cpu {

void ConvertInt8Rows(const Int8RowsParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

// Returns cudaErrorInvalidValue for other types, or if an array that is read is null.
cudaError_t ConvertInt8Rows(const Int8RowsParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
