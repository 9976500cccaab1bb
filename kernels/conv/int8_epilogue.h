#pragma once

// The epilogue of a product of whole numbers of 8 bits, on the CPU (kernels/int8) and on a GPU
// (kernels/conv/implicit_gemm, kernels/image/int8). Inputs are uint8 or int8, weights int8, sums int32. The epilogue
// computes in float32 and rounds a value to 8 bits once:
//   value = activation(sum * multiplier[c] + bias[c] + residual * residual_scale[c])
//   out   = value, or in 8 bits: saturate(round(value * inverse_scale[c]))
// Behind no activation or ReLU, the output's scale should be part of the other arrays: a GPU then has less to do.
// Rounding is to nearest, ties to even; uint8 saturates at 0 and 255, int8 at -127 and 127; NaN becomes 0. Every
// operation is rounded by itself (no fused multiply-add), so a GPU and all vector instruction sets of CPUs give the
// same bytes. Only activations other than ReLU call the library's functions.

#include <cstdint>
#include <type_traits>

#include "kernels/core/epilogue.h"
#include "kernels/core/rows.h"

namespace voxserve::kernels {

// Arrays of a value per channel have PaddedInt8Channels(channels) values; those after the last channel are 0.
inline constexpr int32_t kInt8ChannelAlignment = 16;
constexpr int64_t PaddedInt8Channels(int64_t channels) {
  return (channels + kInt8ChannelAlignment - 1) / kInt8ChannelAlignment * kInt8ChannelAlignment;
}

// The most products that a sum may have, so that it fits an int32 whatever the numbers are.
inline constexpr int64_t kMaxInt8Products = INT32_MAX / (255 * 127);

// Arrays are padded as above.
struct Int8Epilogue {
  const float* multiplier = nullptr;  // [out_channels] the scales of inputs and weights together
  const float* bias = nullptr;        // [out_channels]; null: 0
  // [num_out_rows, out_channels] uint8, int8 or float32, on a GPU also float16, where those of 8 bits are the fast
  // ones; null data: none
  ConstRows residual;
  const float* residual_scale = nullptr;  // [out_channels]; null: 1
  Activation activation;
  const float* inverse_scale = nullptr;  // [out_channels] 1 / the output's scale; null: 1; not read if `out` is a float
};
static_assert(std::is_trivially_copyable_v<Int8Epilogue>);

}  // namespace voxserve::kernels
