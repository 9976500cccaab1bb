#pragma once

// Dense matrix product, row-major float32: C [m, n] = A [m, k] B [k, n] (+ C). On the CPU oneDNN's sgemm on the calling
// thread alone; callers split rows over the pool themselves, so that their tiles stay in cache.

#include <cstdint>
#include <type_traits>

namespace voxserve::kernels {

struct GemmParams {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  const float* a = nullptr;
  int64_t a_pitch = 0;  // floats from a row to the next, as for b and c
  const float* b = nullptr;
  int64_t b_pitch = 0;
  float* c = nullptr;
  int64_t c_pitch = 0;
  bool accumulate = false;       // add to C instead of overwriting it
  bool is_b_transposed = false;  // b is [n, k]
};
static_assert(std::is_trivially_copyable_v<GemmParams>);

namespace cpu {

// Throws std::bad_alloc where oneDNN finds no memory for its packed copies.
void Gemm(const GemmParams& params);

}  // namespace cpu
}  // namespace voxserve::kernels
