#pragma once

// Converts rows between float32 and whole numbers of 8 bits on a CPU, a scale for each channel. Rounding is that of
// int8_product.h. The conversion of a value in 8 bits to another scale goes through float32 too.

#include <cstdint>
#include <type_traits>

#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

// Arrays are padded to PaddedInt8Channels (int8_product.h).
struct Int8RowsParams {
  ConstRows in;                          // float32, uint8 or int8
  const float* in_scale = nullptr;       // [channels]; not read if `in` is float32
  Rows out;                              // [rows of in, channels of in] float32, uint8 or int8; does not overlap `in`
  const float* inverse_scale = nullptr;  // [channels] 1 / the output's scale; not read if `out` is float32
};
static_assert(std::is_trivially_copyable_v<Int8RowsParams>);

namespace cpu {

void ConvertInt8Rows(const Int8RowsParams& params, ThreadPool& pool);

}  // namespace cpu
}  // namespace voxserve::kernels
