#include "kernels/core/vector_isa.h"

namespace voxserve::kernels::cpu {

const std::vector<VectorIsa>& SupportedVectorIsas() {
  static const std::vector<VectorIsa> kSupported = [] {
    std::vector<VectorIsa> isas;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) isas.push_back(VectorIsa::kAvx512);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) isas.push_back(VectorIsa::kAvx2);
#endif
    isas.push_back(VectorIsa::kBaseline);
    return isas;
  }();
  return kSupported;
}

}  // namespace voxserve::kernels::cpu
