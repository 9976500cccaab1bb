#if defined(__aarch64__)
#include <arm_neon.h>

#include <algorithm>
#include <vector>
#else
#include <dnnl.h>

#include <cstdio>
#include <cstdlib>
#include <new>
#endif

#include "kernels/core/gemm.h"

#if defined(__aarch64__)

// oneDNN has only reference code here, in which a row's bits depend on the number of rows of the call, and so on the
// other clouds of a batch. Below every element of C adds its products in the order of k, each fused, wherever its row
// lies.

namespace voxserve::kernels::cpu {
namespace {

constexpr int kGemmPanel = 8;  // columns of two vectors
constexpr int kGemmRows = 8;   // 16 sums in registers

// Packs B into panels of [k, kGemmPanel]. The last panel is padded with 0.
std::vector<float> PackPanels(const ConstRows& b, bool is_transposed, int64_t k, int64_t n) {
  const int64_t num_panels = (n + kGemmPanel - 1) / kGemmPanel;
  std::vector<float> packed(static_cast<size_t>(num_panels * kGemmPanel * k), 0.0f);
  for (int64_t column = 0; column < n; ++column) {
    float* const panel = packed.data() + column / kGemmPanel * kGemmPanel * k + column % kGemmPanel;
    for (int64_t i = 0; i < k; ++i) panel[i * kGemmPanel] = is_transposed ? b.floats(column)[i] : b.floats(i)[column];
  }
  return packed;
}

// Computes kRows rows of `width` <= kGemmPanel columns of C. With a guard of the stack, GCC would store the sums in
// each step.
template <int kRows>
__attribute__((noinline, no_stack_protector)) void MultiplyTile(const float* a, int64_t a_pitch, const float* panel,
                                                                int64_t k, bool accumulate, float* c, int64_t c_pitch,
                                                                int64_t width) {
  float32x4_t sum[kRows][2];
  float edge[kGemmPanel] = {};
  for (int r = 0; r < kRows; ++r) {
    const float* from = c + r * c_pitch;
    if (accumulate && width < kGemmPanel) {
      std::copy_n(from, width, edge);
      from = edge;
    }
    for (int v = 0; v < 2; ++v) sum[r][v] = accumulate ? vld1q_f32(from + 4 * v) : vdupq_n_f32(0.0f);
  }
  for (int64_t i = 0; i < k; ++i) {
    const float32x4_t b0 = vld1q_f32(panel + i * kGemmPanel), b1 = vld1q_f32(panel + i * kGemmPanel + 4);
    for (int r = 0; r < kRows; ++r) {
      const float factor = a[r * a_pitch + i];
      sum[r][0] = vfmaq_n_f32(sum[r][0], b0, factor);
      sum[r][1] = vfmaq_n_f32(sum[r][1], b1, factor);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    float* const to = width < kGemmPanel ? edge : c + r * c_pitch;
    for (int v = 0; v < 2; ++v) vst1q_f32(to + 4 * v, sum[r][v]);
    if (width < kGemmPanel) std::copy_n(edge, width, c + r * c_pitch);
  }
}

}  // namespace

void Gemm(const GemmParams& params) {
  const int64_t m = params.c.capacity, n = params.c.channels, k = params.a.channels;
  if (m == 0 || n == 0) return;
  const std::vector<float> packed = PackPanels(params.b, params.is_b_transposed, k, n);
  for (int64_t column = 0; column < n; column += kGemmPanel) {
    const float* const panel = packed.data() + column * k;
    const int64_t width = std::min<int64_t>(kGemmPanel, n - column);
    int64_t row = 0;
    for (; row + kGemmRows <= m; row += kGemmRows) {
      MultiplyTile<kGemmRows>(params.a.floats(row), params.a.pitch, panel, k, params.accumulate,
                              params.c.floats(row) + column, params.c.pitch, width);
    }
    for (; row < m; ++row) {
      MultiplyTile<1>(params.a.floats(row), params.a.pitch, panel, k, params.accumulate, params.c.floats(row) + column,
                      params.c.pitch, width);
    }
  }
}

}  // namespace voxserve::kernels::cpu

#else

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
