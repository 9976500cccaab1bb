// Compares the CPU's matrix product with naive loops in double.

#include "kernels/core/gemm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/core/feature_testing.h"

namespace voxserve::kernels::gemm_test {
namespace {

// Rows and columns that fill tiles and panels, and others.
TEST(GemmTest, EqualsTheNaiveLoop) {
  Random random(3);
  for (const int64_t m : {1, 7, 8, 19}) {
    for (const int64_t n : {1, 4, 8, 13, 32}) {
      for (const int64_t k : {1, 5, 32}) {
        for (const bool is_transposed : {false, true}) {
          for (const bool accumulate : {false, true}) {
            Matrix a(m, k, {.after = 1}, &random), c(m, n, {.before = 1, .after = 2}, &random);
            Matrix b(is_transposed ? n : k, is_transposed ? k : n, {.before = 2}, &random);
            const Matrix before = c;
            cpu::Gemm({.a = a.View(),
                       .b = b.View(),
                       .c = c.View(),
                       .accumulate = accumulate,
                       .is_b_transposed = is_transposed});
            for (int64_t row = 0; row < m; ++row) {
              for (int64_t column = 0; column < n; ++column) {
                double sum = accumulate ? before.at(row, column) : 0.0, size = std::abs(sum);
                for (int64_t i = 0; i < k; ++i) {
                  const double product = double{a.at(row, i)} * (is_transposed ? b.at(column, i) : b.at(i, column));
                  sum += product;
                  size += std::abs(product);
                }
                ASSERT_NEAR(c.at(row, column), sum, 1e-6 * size + 1e-12) << m << " " << n << " " << k;
              }
            }
            EXPECT_TRUE(c.MarginsAreUntouched());
          }
        }
      }
    }
  }
}

#if defined(__aarch64__)
// So an answer does not depend on the other clouds of its batch.
TEST(GemmTest, ARowsBitsDoNotDependOnTheNumberOfRows) {
  Random random(4);
  Matrix a(21, 33, {}, &random), b(33, 13, {}, &random), together(21, 13, {}, nullptr);
  cpu::Gemm({.a = a.View(), .b = b.View(), .c = together.View()});
  for (int64_t row = 0; row < 21; ++row) {
    Matrix alone(1, 13, {}, nullptr);
    Rows one = a.View();
    one.data = a.data() + row * a.pitch;
    one.capacity = 1;
    cpu::Gemm({.a = one, .b = b.View(), .c = alone.View()});
    for (int64_t column = 0; column < 13; ++column) ASSERT_EQ(alone.at(0, column), together.at(row, column)) << row;
  }
}
#endif

}  // namespace
}  // namespace voxserve::kernels::gemm_test
