#pragma once

// Dense matrix product, row-major float32: C [m, n] = A [m, k] B [k, n] (+ C). On the CPU oneDNN's sgemm on the calling
// thread alone; callers split rows over the pool themselves, so that their tiles stay in cache.

#include <type_traits>

#include "kernels/core/rows.h"

namespace voxserve::kernels {

struct GemmParams {
  ConstRows a;  // float32, as b and c
  ConstRows b;
  Rows c;                        // m, n and k are c's rows and channels and a's channels
  bool accumulate = false;       // add to C instead of overwriting it
  bool is_b_transposed = false;  // b is [n, k]
};
static_assert(std::is_trivially_copyable_v<GemmParams>);

namespace cpu {

// Throws std::bad_alloc where oneDNN finds no memory for its packed copies.
void Gemm(const GemmParams& params);

}  // namespace cpu
}  // namespace voxserve::kernels
