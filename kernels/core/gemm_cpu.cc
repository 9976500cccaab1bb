#include <dnnl.h>

#include <cstdio>
#include <cstdlib>
#include <new>

#include "kernels/core/gemm.h"

namespace voxserve::kernels::cpu {

void Gemm(const GemmParams& params) {
  if (params.m == 0 || params.n == 0) return;
  const dnnl_status_t status =
      dnnl_sgemm('N', params.is_b_transposed ? 'T' : 'N', params.m, params.n, params.k, 1.0f, params.a, params.a_pitch,
                 params.b, params.b_pitch, params.accumulate ? 1.0f : 0.0f, params.c, params.c_pitch);
  if (status == dnnl_out_of_memory) throw std::bad_alloc();
  // Otherwise it fails on arguments alone (a pitch below its row): programmer error.
  if (status != dnnl_success) {
    std::fprintf(stderr, "dnnl_sgemm refused m=%ld n=%ld k=%ld: status %d\n", static_cast<long>(params.m),
                 static_cast<long>(params.n), static_cast<long>(params.k), static_cast<int>(status));
    std::abort();
  }
}

}  // namespace voxserve::kernels::cpu
