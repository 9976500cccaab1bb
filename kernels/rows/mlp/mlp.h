#pragma once

// Mlp computes the two linear layers of a transformer block, and what lies around them, in one kernel on Hopper GPUs:
//
//   y = input_norm ? LayerNorm(in) : in
//   out = y W1 -> + hidden_bias -> GELU or ReLU -> W2 -> + bias -> + (adds_normed_input ? y : residual)
//   for each of `norms`: out = LayerNorm(out) + its residual
//
// The hidden values, the widest of a block, never leave the chip. A warp group (4 warps) takes 64 rows and goes through
// the hidden channels in chunks of 64. A chunk's first product leaves float32 sums in registers; activated and rounded
// to 16 bits, they are the first factor of its second product, without a way through memory (as the weights of
// FlashAttention-3, Shah et al., 2024). The warp groups of a block read the same chunks of weights, so that one's
// products run while another one activates.
//
// Rounding: y is rounded to the features' type, as a layer norm's stored result is. So are the hidden values after
// their activation. All sums, norms and the steps from the second product to the stored result are float32. A chunk's
// products are added in ascending order of channels, and chunks in ascending order. A row's bits therefore depend
// neither on the number of rows nor on the other rows.

#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/epilogue.h"
#include "kernels/core/rows.h"

namespace voxserve::kernels {

inline constexpr int32_t kMaxMlpNorms = 3;  // behind the second product

// A layer norm: (x - mean) / sqrt(variance + epsilon) * weight + bias + residual, with the biased variance.
struct MlpNorm {
  const float* weight = nullptr;  // [padded channels of the row], zeros beyond its channels; null: there is no norm
  const float* bias = nullptr;    // the same shape
  float epsilon = 0;
  ConstRows residual;  // [rows, out channels], in the features' type; null data: none. Not for the input's norm
};

// Arrays of float32 have the padded lengths of MlpShape and are aligned to 16 bytes.
struct MlpParams {
  ConstRows in;  // [rows, in channels], float16 or bfloat16: the features' type
  Rows out;      // [rows, out channels], the features' type; no overlap with `in`
  int32_t hidden_channels = 0;
  const void* weights = nullptr;       // PackMlpWeights, in the features' type, aligned to 128 bytes
  const float* hidden_bias = nullptr;  // [padded_hidden]
  const float* bias = nullptr;         // [padded_out]
  ActivationFunction activation = ActivationFunction::kGelu;  // or kRelu
  MlpNorm input_norm;
  bool adds_normed_input = false;  // then there is no residual, and as many in channels as out channels
  ConstRows residual;              // [rows, out channels], the features' type; may be `in`; null data: none
  int32_t num_norms = 0;
  MlpNorm norms[kMaxMlpNorms];
};
static_assert(std::is_trivially_copyable_v<MlpParams>);

// The numbers of channels to which a kernel pads an MLP's. Padded weights and biases are 0.
struct MlpShape {
  int32_t padded_in = 0;  // 0: no kernel has the shape
  int32_t padded_hidden = 0;
  int32_t padded_out = 0;
};
// Returns the shape of the kernel for these numbers of channels: up to 256 input and output channels, of which the
// input has at most 32 or at most as many as the padded output, and up to 1,024 hidden channels.
MlpShape MlpShapeOf(int32_t in_channels, int32_t hidden_channels, int32_t out_channels);

// Packs the weights [in channels, hidden channels] and [hidden channels, out channels] in the order in which Mlp reads
// them. The caller converts the values to the features' type. MlpShapeOf must have a shape.
std::vector<float> PackMlpWeights(int32_t in_channels, int32_t hidden_channels, int32_t out_channels,
                                  const float* first, const float* second);

namespace cuda {

// Returns true if the current GPU runs Mlp on features of this type.
bool SupportsMlp(DType dtype);

// Queues the MLP on `stream`. The kernel starts before its predecessor on the stream has ended. The predecessor may
// write features, residuals and outputs, and must not write weights, biases or norms.
//
// All rows are aligned to 16 bytes, and their pitches are multiples of 8 values: the kernel reads whole vectors, also
// those of which a row has only some channels. It writes no others than the row's.
//
// Returns cudaErrorInvalidValue for shapes, types and activations that have no kernel, for residuals of other types,
// for more than kMaxMlpNorms norms, for rows that are not aligned, and for more than 2^31 - 64 rows.
cudaError_t Mlp(const MlpParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
