#include "engine/ops/int8/int8_weights.h"

#include "kernels/conv/implicit_gemm/int8_implicit_gemm.h"

namespace voxserve {

Int8Weights::Int8Weights(const int8_t* numbers, int32_t num_offsets, int32_t in_channels, int32_t out_channels,
                         bool on_cuda) {
  if (on_cuda) {
    for_device_ = Weights(kernels::PackInt8ImplicitGemmWeights(num_offsets, in_channels, out_channels, numbers));
  } else {
    lines_ = kernels::cpu::PackInt8Weights(numbers, num_offsets, in_channels, out_channels);
  }
}

}  // namespace voxserve
