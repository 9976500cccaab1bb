// Compares the maximum over windows of images with its definition, on every device. Results are exact, since a maximum
// does not round.

#include "kernels/image/max_pool2d.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/kernels/core/feature_testing.h"

namespace voxserve::kernels::max_pool2d_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

struct Images {
  int64_t count;
  int32_t rows, columns;

  int64_t Position(int64_t image, int64_t row, int64_t column) const { return (image * rows + row) * columns + column; }
  int64_t num_positions() const { return count * rows * columns; }
};

class MaxPool2dTest : public testing::TestWithParam<Ground> {
 protected:
  void SetUp() override { SKIP_WITHOUT(device()); }
  Device device() const { return GetParam().device; }
  DType dtype() const { return GetParam().dtype; }

  static Images OutputOf(const Conv2dGeometry& geometry, const Images& in) {
    return {.count = in.count,
            .rows = static_cast<int32_t>(geometry.OutSize(0, in.rows)),
            .columns = static_cast<int32_t>(geometry.OutSize(1, in.columns))};
  }

  Matrix Pool(const Conv2dGeometry& geometry, const Images& images, const Matrix& in, Margins margins,
              DType out_dtype) const {
    const DeviceMatrix from(device(), dtype(), in);
    const DeviceMatrix out(device(), out_dtype,
                           Matrix(OutputOf(geometry, images).num_positions(), in.channels, margins, nullptr));
    const MaxPool2dParams params{.geometry = geometry,
                                 .num_images = images.count,
                                 .in_rows = images.rows,
                                 .in_columns = images.columns,
                                 .in = from.View(),
                                 .out = out.View()};
    if (device() == Device::kCpu) {
      ThreadPool pool(3);
      cpu::MaxPool2d(params, pool);
    } else if constexpr (kHasCuda) {
      ExpectCudaSuccess(cuda::MaxPool2d(params, TestStream()));
      support::Synchronize();
    }
    return out.ToHost();
  }

  // Expects each output value to be the largest of the window's cells that lie in the image.
  static void ExpectLargest(const Conv2dGeometry& geometry, const Images& images, const Matrix& in, const Matrix& out) {
    const Images results = OutputOf(geometry, images);
    for (int64_t at = 0; at < results.num_positions(); ++at) {
      const int64_t image = at / (int64_t{results.rows} * results.columns);
      const int64_t row = at / results.columns % results.rows, column = at % results.columns;
      for (int64_t c = 0; c < in.channels; ++c) {
        float largest = -std::numeric_limits<float>::infinity();
        for (int32_t i = 0; i < geometry.kernel_size[0]; ++i) {
          for (int32_t j = 0; j < geometry.kernel_size[1]; ++j) {
            const int64_t y = row * geometry.stride[0] - geometry.padding[0] + i;
            const int64_t x = column * geometry.stride[1] - geometry.padding[1] + j;
            if (y < 0 || y >= images.rows || x < 0 || x >= images.columns) continue;
            const float value = in.at(images.Position(image, y, x), c);
            if (std::isnan(value) || value > largest) largest = value;
            if (std::isnan(largest)) break;
          }
          if (std::isnan(largest)) break;
        }
        if (std::isnan(largest)) {
          ASSERT_TRUE(std::isnan(out.at(at, c))) << "position " << at << " channel " << c;
        } else {
          ASSERT_EQ(out.at(at, c), largest) << "position " << at << " channel " << c;
        }
      }
    }
    EXPECT_TRUE(out.MarginsAreUntouched());
  }
};
INSTANTIATE_TEST_SUITE_P(Grounds, MaxPool2dTest, AllGrounds(), GroundName);

const std::vector<Conv2dGeometry> kGeometries = {
    {},
    {.kernel_size = {2, 2}, .stride = {2, 2}},
    {.kernel_size = {3, 3}, .stride = {2, 2}, .padding = {1, 1}},
    {.kernel_size = {3, 3}, .padding = {1, 1}},
    {.kernel_size = {5, 1}, .stride = {1, 3}, .padding = {2, 0}},
    {.kernel_size = {2, 4}, .stride = {5, 7}, .padding = {1, 2}},
    {.kernel_size = {15, 15}, .padding = {7, 7}},
};

TEST_P(MaxPool2dTest, IsTheLargestOfTheWindow) {
  Random random(1);
  for (const Conv2dGeometry& geometry : kGeometries) {
    for (const Images& images : {Images{1, 15, 15}, Images{3, 16, 31}, Images{2, 23, 15}}) {
      for (const int64_t channels : {1, 5, 16, 136}) {
        const Margins margins = channels == 16 ? Margins{.before = 8, .after = 8} : Margins{.before = 1, .after = 2};
        const Matrix in(images.num_positions(), channels, margins, &random, dtype());
        for (const DType out_dtype : OutDTypes(dtype())) {
          const Matrix out = Pool(geometry, images, in, margins, out_dtype);
          ASSERT_NO_FATAL_FAILURE(ExpectLargest(geometry, images, in, out));
        }
      }
    }
  }
}

TEST_P(MaxPool2dTest, NanWinsAndInfinityIsAValue) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  Random random(2);
  const Images images{2, 9, 8};
  Matrix in(images.num_positions(), 8, {}, &random, dtype());
  for (int64_t position = 0; position < in.rows; ++position) {
    for (int64_t c = 0; c < in.channels; ++c) {
      if (random.Chance(0.1)) in.at(position, c) = random.OneOf<float>({kNan, kInfinity, -kInfinity});
    }
  }
  for (int64_t c = 0; c < 4; ++c) {  // a whole window of -infinity
    for (const int64_t row : {0, 1, 2}) {
      for (const int64_t column : {0, 1, 2}) in.at(images.Position(1, row, column), c) = -kInfinity;
    }
  }
  for (const Conv2dGeometry& geometry : kGeometries) {
    if (geometry.OutSize(0, images.rows) <= 0 || geometry.OutSize(1, images.columns) <= 0) continue;
    ASSERT_NO_FATAL_FAILURE(ExpectLargest(geometry, images, in, Pool(geometry, images, in, {}, dtype())));
  }
}

TEST_P(MaxPool2dTest, NoImages) {
  const Matrix out = Pool(kGeometries[1], {0, 8, 8}, Matrix(0, 4, {}, nullptr), {}, dtype());
  EXPECT_EQ(out.rows, 0);
}

}  // namespace
}  // namespace voxserve::kernels::max_pool2d_test
