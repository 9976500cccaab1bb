#pragma once

// Computes a dense matrix product on the CPU, row-major float32: C [m, n] = A [m, k] B [k, n] (+ C). oneDNN's sgemm
// computes it (on aarch64: NEON of our own), on the calling thread alone. With AVX2, oneDNN's bits of a row depend
// on where the row lies in A and on m. Callers split the rows over the thread pool themselves, so that each
// thread's rows stay in its cache.

#include <type_traits>

#include "kernels/core/rows.h"

namespace voxserve::kernels {

struct GemmParams {
  ConstRows a;  // float32, like b and c
  ConstRows b;
  Rows c;                        // m = c.capacity, n = c.channels, k = a.channels
  bool accumulate = false;       // add to C instead of overwriting it
  bool is_b_transposed = false;  // b is [n, k]
};
static_assert(std::is_trivially_copyable_v<GemmParams>);

namespace cpu {

// Throws std::bad_alloc if oneDNN has no memory for its packed copies. Any other failure comes from wrong arguments (a
// pitch below the row's length) and ends the process.
void Gemm(const GemmParams& params);

}  // namespace cpu
}  // namespace voxserve::kernels
