#if !defined(__aarch64__)  // gemm_neon.cc

#include <dnnl.h>

#include <cstdio>
#include <cstdlib>
#include <new>

#include "kernels/core/gemm.h"

namespace voxserve::kernels::cpu {

void Gemm(const GemmParams& params) {
  const int64_t m = params.c.capacity, n = params.c.channels, k = params.a.channels;
  if (m == 0 || n == 0) return;
  const dnnl_status_t status =
      dnnl_sgemm('N', params.is_b_transposed ? 'T' : 'N', m, n, k, 1.0f, params.a.floats(), params.a.pitch,
                 params.b.floats(), params.b.pitch, params.accumulate ? 1.0f : 0.0f, params.c.floats(), params.c.pitch);
  if (status == dnnl_out_of_memory) throw std::bad_alloc();
  // Any other failure comes from wrong arguments (a pitch below the row's length), a programmer error.
  if (status != dnnl_success) {
    std::fprintf(stderr, "dnnl_sgemm refused m=%ld n=%ld k=%ld: status %d\n", static_cast<long>(m),
                 static_cast<long>(n), static_cast<long>(k), static_cast<int>(status));
    std::abort();
  }
}

}  // namespace voxserve::kernels::cpu

#endif
