#include "engine/ops/int8/int8_weights.h"

#include "kernels/conv/implicit_gemm/int8_implicit_gemm.h"
#include "kernels/image/int8/int8_im2col.h"

namespace voxserve {

Int8Weights::Int8Weights(const int8_t* numbers, int32_t num_offsets, int32_t in_channels, int32_t out_channels,
                         bool on_cuda) {
  if (on_cuda) {
    for_device_ = Weights(kernels::PackInt8ImplicitGemmWeights(num_offsets, in_channels, out_channels, numbers));
  } else {
    lines_ = kernels::cpu::PackInt8Weights(numbers, num_offsets, in_channels, out_channels);
  }
}

Int8Weights Int8Weights::OfConv2d(const int8_t* numbers, const kernels::Conv2dGeometry& geometry, int32_t in_channels,
                                  int32_t out_channels, bool on_cuda) {
  if (!on_cuda) {
    return {numbers, geometry.kernel_size[0] * geometry.kernel_size[1], in_channels, out_channels, on_cuda};
  }
  Int8Weights weights;
  weights.for_device_ = Weights(kernels::PackInt8Im2colWeights(geometry, in_channels, out_channels, numbers));
  return weights;
}

}  // namespace voxserve
