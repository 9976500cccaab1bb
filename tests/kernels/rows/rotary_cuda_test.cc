// Tests what the GPU's rotation of rows refuses, and the tables of angles with which products rotate. The results of
// rotations are compared in rotary_test.cc.

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/morton_key.h"
#include "kernels/rows/rotary.h"
#include "tests/kernels/core/feature_testing.h"

namespace voxserve::kernels::rotary_cuda_test {
namespace {

using support::DeviceArray;
using support::ExpectCudaSuccess;
using support::TestStream;

TEST(RotaryCudaTest, RefusesHeadsThatAreTooWide) {
  SKIP_WITHOUT(Device::kCuda);
  const DeviceMatrix in(Device::kCuda, DType::kFloat32, Matrix(2, 258, {}, nullptr));
  const DeviceArray<uint64_t> keys(Device::kCuda, 2);
  const RotaryParams params{.dimension = 3, .keys = keys.data(), .in = in.View(), .out = in.View()};
  EXPECT_EQ(cuda::Rotary(params, TestStream()), cudaErrorInvalidValue);
}

// Returns rows of one head in which each pair is (1, 0), so that a rotation makes cosine and sine of it.
Matrix UnitPairs(int64_t rows, int32_t dimension, int32_t pairs) {
  Matrix in(rows, int64_t{dimension} * pairs * 2, {}, nullptr);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t c = 0; c < in.channels; ++c) in.at(row, c) = c / pairs % 2 == 0 ? 1.0f : 0.0f;
  }
  return in;
}

// Makes the table by the positions of keys, or of a tensor, and compares it with what Rotary makes of unit pairs.
void ExpectAnglesOfRotary(int64_t num_rows, int32_t dimension, int32_t pairs, bool has_tensor, int64_t spare_rows,
                          const Margins& margins, Random& random) {
  SCOPED_TRACE(testing::Message() << num_rows << " rows, " << dimension << " axes, " << pairs << " pairs"
                                  << (has_tensor ? ", a tensor of positions" : ""));
  const CoordinateKey layout(dimension);
  std::vector<uint64_t> sites;
  for (int64_t row = 0; row < num_rows; ++row) {
    Axes site = {0, 0, 0, 0};
    for (int32_t axis = 0; axis < dimension; ++axis) {
      site[axis] = std::uniform_int_distribution<int32_t>(-9000, 9000)(random.engine());
    }
    sites.push_back(ToMortonKey(layout, layout.Pack(0, site)));
  }
  Matrix positions(num_rows, dimension, {}, &random);
  for (float& value : positions.values) value *= 5000;
  const DeviceArray<uint64_t> keys(Device::kCuda, sites);
  const DeviceMatrix tensor(Device::kCuda, DType::kFloat32, positions);
  const DeviceMatrix in(Device::kCuda, DType::kFloat32, UnitPairs(num_rows, dimension, pairs));
  const DeviceMatrix rotated(Device::kCuda, DType::kFloat32,
                             Matrix(num_rows, int64_t{dimension} * pairs * 2, {}, nullptr));
  const int32_t head_pairs = dimension * pairs;
  const DeviceMatrix table(Device::kCuda, DType::kFloat32,
                           Matrix(num_rows + spare_rows, AngleTableChannels(head_pairs), margins, nullptr));
  const DeviceArray<int64_t> rows_there(Device::kCuda, std::vector<int64_t>{num_rows});

  RotaryParams rotary{.dimension = dimension, .in = in.View(), .out = rotated.View()};
  RotaryAnglesParams angles{.dimension = dimension, .pairs = pairs, .out = table.View()};
  angles.out.num_rows = rows_there.data();
  if (has_tensor) {
    rotary.positions = angles.positions = tensor.View();
  } else {
    rotary.keys = angles.keys = keys.data();
  }
  SetRotaryFrequencies(100, &rotary);
  SetRotaryFrequencies(100, &angles);
  ExpectCudaSuccess(cuda::Rotary(rotary, TestStream()));
  ExpectCudaSuccess(cuda::RotaryAngles(angles, TestStream()));
  support::Synchronize();
  const Matrix expected = rotated.ToHost(), found = table.ToHost();
  EXPECT_TRUE(found.MarginsAreUntouched());
  for (int64_t row = 0; row < found.rows; ++row) {
    for (int64_t angle = 0; angle < head_pairs + kRepeatedAngles; ++angle) {
      const int64_t pair = angle % head_pairs, u = pair / pairs * 2 * pairs + pair % pairs;
      const bool exists = row < num_rows;
      ASSERT_EQ(found.at(row, 2 * angle), exists ? expected.at(row, u + pairs) : kUntouched) << row << ", " << angle;
      ASSERT_EQ(found.at(row, 2 * angle + 1), exists ? expected.at(row, u) : kUntouched) << row << ", " << angle;
    }
  }
}

TEST(RotaryCudaTest, ATableHasTheAnglesOfRotary) {
  SKIP_WITHOUT(Device::kCuda);
  Random random(1);
  for (const bool has_tensor : {false, true}) {
    for (int32_t dimension = 1; dimension <= kMaxDimension; ++dimension) {
      for (const int32_t pairs : {1, 2, 3, 11}) {
        ExpectAnglesOfRotary(70, dimension, pairs, has_tensor, 0, {}, random);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
    for (const int64_t num_rows : {1, 21, 22, 3000}) {  // a block has 256 angles
      ExpectAnglesOfRotary(num_rows, 3, 3, has_tensor, 5, {.before = 2, .after = 4}, random);
      if (testing::Test::HasFatalFailure()) return;
    }
    ExpectAnglesOfRotary(0, 3, 3, has_tensor, 5, {}, random);
    ExpectAnglesOfRotary(40, 1, 128, has_tensor, 0, {}, random);  // the widest head
  }
}

TEST(RotaryCudaTest, RefusesTablesOfAnotherForm) {
  SKIP_WITHOUT(Device::kCuda);
  const DeviceMatrix table(Device::kCuda, DType::kFloat32, Matrix(4, AngleTableChannels(9), {}, nullptr));
  const DeviceArray<uint64_t> keys(Device::kCuda, std::vector<uint64_t>(4, 0));
  RotaryAnglesParams good{.pairs = 3, .keys = keys.data(), .out = table.View()};
  SetRotaryFrequencies(100, &good);
  EXPECT_EQ(cuda::RotaryAngles(good, TestStream()), cudaSuccess);
  support::Synchronize();
  const auto expect_refused = [&](const char* what, const auto& change) {
    RotaryAnglesParams params = good;
    change(params);
    EXPECT_EQ(cuda::RotaryAngles(params, TestStream()), cudaErrorInvalidValue) << what;
  };
  expect_refused("other heads", [](auto& p) { p.pairs = 4; });
  expect_refused("no pairs", [](auto& p) { p.pairs = 0; });
  expect_refused("too wide heads", [](auto& p) {
    p.pairs = 43;
    p.out.channels = AngleTableChannels(129);
  });
  expect_refused("16 bits", [](auto& p) { p.out.dtype = DType::kFloat16; });
  expect_refused("an odd pitch", [](auto& p) { p.out.pitch += 1; });
}

}  // namespace
}  // namespace voxserve::kernels::rotary_cuda_test
