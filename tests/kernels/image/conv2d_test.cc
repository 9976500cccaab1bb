// Compares every value of 2D convolutions and transposed convolutions with the definition, on every device.

#include "kernels/image/conv2d.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/kernels/image/conv2d_testing.h"

namespace voxserve::kernels::conv2d_test {
namespace {

class Conv2dTest : public testing::TestWithParam<Ground> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam().device); }

  // Runs the shape once, with an epilogue, an output dtype and margins that are drawn at random.
  void Check(const Shape& shape, Random& random) {
    SCOPED_TRACE(Described(shape));
    const std::vector<Margins> all_margins = {{}, {.before = 8, .after = 8}, {.before = 1}, {.after = 4}};
    const Operands operands(GetParam(), shape, random.OneOf(all_margins), random);
    const EpilogueCase with = random.OneOf(EpilogueCases());
    const Matrix out = operands.Run(random.OneOf(OutDTypes(GetParam().dtype)), random.OneOf(all_margins), with);
    operands.ExpectOutputs(out, with, random, GetParam().dtype);
  }
};

TEST_P(Conv2dTest, EqualsTheDefinition) {
  Random random(1);
  for (const Conv2dGeometry& geometry : std::vector<Conv2dGeometry>{
           {},
           {.stride = {2, 2}},
           {.kernel_size = {3, 3}, .padding = {1, 1}},
           {.kernel_size = {3, 3}, .stride = {2, 2}, .padding = {1, 1}},
           {.kernel_size = {3, 3}, .padding = {2, 2}, .dilation = {2, 2}},
           {.kernel_size = {2, 5}, .stride = {1, 3}, .padding = {0, 2}},
           {.kernel_size = {7, 7}, .padding = {3, 3}},
           {.kernel_size = {1, 3}, .padding = {4, 6}, .dilation = {1, 5}},
       }) {
    for (const auto& [in_channels, out_channels] :
         std::vector<std::array<int32_t, 2>>{{1, 1}, {5, 3}, {8, 16}, {64, 64}, {40, 33}, {72, 130}}) {
      for (const auto& [images, rows, columns] :
           std::vector<std::array<int32_t, 3>>{{1, 9, 11}, {2, 13, 10}, {3, 7, 7}}) {
        Check({geometry, images, rows, columns, in_channels, out_channels}, random);
      }
    }
  }
}

TEST_P(Conv2dTest, TransposedEqualsTheDefinition) {
  Random random(2);
  for (Conv2dGeometry geometry : std::vector<Conv2dGeometry>{
           {},
           {.padding = {1, 0}},
           {.kernel_size = {2, 2}, .stride = {2, 2}},
           {.kernel_size = {4, 4}, .stride = {4, 4}},
           {.kernel_size = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .output_padding = {1, 1}},
           {.kernel_size = {3, 5}, .stride = {1, 3}, .padding = {2, 0}, .output_padding = {0, 2}},
           {.kernel_size = {1, 2}, .stride = {3, 4}},  // some outputs have no input
           {.kernel_size = {7, 6}, .stride = {2, 3}, .padding = {3, 1}},
       }) {
    geometry.is_transposed = true;
    for (const auto& [in_channels, out_channels] :
         std::vector<std::array<int32_t, 2>>{{1, 1}, {5, 3}, {24, 40}, {64, 128}, {72, 65}}) {
      for (const auto& [images, rows, columns] : std::vector<std::array<int32_t, 3>>{{1, 5, 9}, {2, 7, 6}, {3, 4, 3}}) {
        Check({geometry, images, rows, columns, in_channels, out_channels}, random);
      }
    }
  }
}

TEST_P(Conv2dTest, GroupsEqualTheDefinition) {
  Random random(3);
  Conv2dGeometry geometry = {.kernel_size = {3, 3}, .padding = {1, 1}};
  for (const auto& [groups, group_in, group_out] : std::vector<std::array<int32_t, 3>>{
           {36, 64, 3}, {6, 64, 1}, {4, 16, 8}, {2, 24, 72}, {2, 9, 5}, {11, 1, 1}, {3, 2, 40}, {2, 64, 128}}) {
    geometry.groups = groups;
    Check({geometry, 2, 11, 9, groups * group_in, groups * group_out}, random);
  }
}

TEST_P(Conv2dTest, GroupsOfFewOutputsEqualTheDefinition) {
  Random random(15);
  for (Conv2dGeometry geometry : FewOutputsGeometries()) {
    for (const auto& [groups, group_in, group_out] :
         std::vector<std::array<int32_t, 3>>{{6, 64, 3}, {2, 13, 1}, {3, 24, 10}, {2, 1, 16}}) {
      geometry.groups = groups;
      for (const auto& [images, rows, columns] :
           std::vector<std::array<int32_t, 3>>{{1, 14, 14}, {3, 5, 30}, {2, 33, 7}, {1, 110, 40}}) {
        Check({geometry, images, rows, columns, groups * group_in, groups * group_out}, random);
      }
    }
  }
  Check({{.kernel_size = {3, 3}, .stride = {3, 3}, .groups = 2}, 1, 20, 20, 2 * 16, 2 * 3}, random);
  Check({{.kernel_size = {3, 3}, .padding = {2, 2}, .groups = 2}, 2, 0, 3, 2 * 16, 2 * 3}, random);
}

TEST_P(Conv2dTest, ImagesOfAnySizeEqualTheDefinition) {
  Random random(4);
  const Conv2dGeometry same = {.kernel_size = {3, 3}, .padding = {1, 1}};
  for (const auto& [images, rows, columns] : std::vector<std::array<int32_t, 3>>{
           {1, 1, 1}, {300, 1, 1}, {5, 1, 200}, {1, 200, 1}, {1, 8, 16}, {2, 8, 16}, {1, 3, 43}, {1, 60, 70}}) {
    Check({same, images, rows, columns, 16, 24}, random);
    Check({same, images, rows, columns, 32, 128}, random);
  }
  Check({same, 1, 50, 40, 256, 128}, random);
  Check({same, 2, 50, 40, 128, 256}, random);
  Check({{.kernel_size = {2, 2}, .stride = {2, 2}, .is_transposed = true}, 1, 40, 50, 256, 256}, random);
}

TEST_P(Conv2dTest, RandomOnesEqualTheDefinition) {
  Random random(5);
  const auto number = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random.engine());
  };
  for (int i = 0; i < 150; ++i) {
    Conv2dGeometry geometry = {.is_transposed = random.Chance(0.4)};
    for (size_t axis = 0; axis < 2; ++axis) {
      geometry.kernel_size[axis] = number(1, kMaxConv2dKernelSize);
      geometry.stride[axis] = number(1, 4);
      geometry.padding[axis] = number(0, 4);
      if (geometry.is_transposed) {
        geometry.output_padding[axis] = number(0, geometry.stride[axis] - 1);
      } else {
        geometry.dilation[axis] = number(1, 3);
      }
    }
    geometry.groups = geometry.is_transposed ? 1 : random.OneOf(std::vector<int32_t>{1, 1, 2, 5});
    Check({geometry, number(1, 4), number(1, 20), number(1, 20), geometry.groups * number(1, 50),
           geometry.groups * number(1, 90)},
          random);
  }
}

TEST_P(Conv2dTest, ActivatesByAnyFunction) {
  Random random(6);
  const Shape shape = {{.kernel_size = {3, 3}, .padding = {1, 1}}, 1, 6, 7, 8, 24};
  const Operands operands(GetParam(), shape, {}, random);
  const Matrix plain = operands.Run(DType::kFloat32, {}, {.bias = true, .residual = false, .relu = false});
  for (const Activation activation :
       {Activation(ActivationFunction::kLeakyRelu, 0.25f), Activation(ActivationFunction::kSigmoid)}) {
    const DeviceMatrix out(GetParam().device, DType::kFloat32, Matrix(shape.NumOut(), 24, {}, nullptr));
    operands.RunInto(out, {.activation = activation}, /*has_bias=*/true);
    const Matrix activated = out.ToHost();
    for (size_t i = 0; i < activated.values.size(); ++i) {
      ASSERT_NEAR(activated.values[i], Activate(activation, plain.values[i]), 1e-5);
    }
  }
}

TEST_P(Conv2dTest, MayAddToTheResidualInPlace) {
  Random random(7);
  for (const bool is_transposed : {false, true}) {
    const Shape shape = {{.kernel_size = {2, 2}, .stride = {2, 2}, .is_transposed = is_transposed}, 2, 12, 10, 16, 72};
    const Operands operands(GetParam(), shape, {}, random);
    const EpilogueCase with = {.bias = true, .residual = true, .relu = true};
    const Matrix apart = operands.Run(GetParam().dtype, {}, with);
    const DeviceMatrix in_place(GetParam().device, GetParam().dtype, operands.residual);
    operands.RunInto(in_place, {.residual = in_place.View(), .activation = ActivationFunction::kRelu}, with.bias);
    const Matrix out = in_place.ToHost();
    EXPECT_TRUE(out.MarginsAreUntouched());
    for (int64_t row = 0; row < out.rows; ++row) {
      for (int64_t c = 0; c < out.channels; ++c) ASSERT_EQ(out.at(row, c), apart.at(row, c));
    }
  }
}

TEST_P(Conv2dTest, AnImagesBytesDoNotDependOnOthers) {
  Random random(8);
  for (const Conv2dGeometry& geometry : std::vector<Conv2dGeometry>{
           {.kernel_size = {3, 3}, .padding = {1, 1}},
           {.kernel_size = {2, 2}, .stride = {2, 2}, .is_transposed = true},
           {.kernel_size = {3, 3}, .padding = {1, 1}, .groups = 2},
       }) {
    for (const int32_t out_channels : {4, 64, 128, 130}) {
      const Shape all = {geometry, 7, 15, 13, 72, out_channels};
      const Operands together(GetParam(), all, {}, random);
      const EpilogueCase with = {.bias = true, .residual = false, .relu = true};
      const Matrix out = together.Run(GetParam().dtype, {}, with);
      Operands alone = together;
      alone.shape.num_images = 1;
      for (int64_t image = 0; image < all.num_images; ++image) {
        const int64_t positions = alone.shape.NumIn(), out_positions = alone.shape.NumOut();
        alone.in.rows = positions;
        alone.in.values.assign(together.in.values.begin() + image * positions * 72,
                               together.in.values.begin() + (image + 1) * positions * 72);
        const Matrix of_image = alone.Run(GetParam().dtype, {}, with);
        for (int64_t i = 0; i < out_positions; ++i) {
          for (int64_t c = 0; c < out_channels; ++c) {
            ASSERT_EQ(of_image.at(i, c), out.at(image * out_positions + i, c)) << "image " << image;
          }
        }
      }
    }
  }
}

TEST_P(Conv2dTest, NothingIsWrittenWhereThereIsNoOutput) {
  Random random(9);
  const Conv2dGeometry geometry = {.kernel_size = {3, 3}};
  for (const Shape& shape : {Shape{geometry, 0, 8, 8, 8, 8}, Shape{geometry, 2, 2, 8, 8, 8},
                             Shape{geometry, 2, 8, 1, 8, 8}, Shape{geometry, 2, 0, 8, 8, 8}}) {
    const Operands operands(GetParam(), shape, {}, random);
    const DeviceMatrix out(GetParam().device, GetParam().dtype, Matrix(4, 8, {}, nullptr));
    operands.RunInto(out, {}, /*has_bias=*/true);
    for (const float value : out.ToHost().values) EXPECT_EQ(value, kUntouched);
  }
}

TEST_P(Conv2dTest, ImagesWithoutPositionsGiveTheirPadding) {
  Random random(10);
  const Shape shape = {{.kernel_size = {3, 3}, .padding = {2, 2}}, 2, 0, 3, 8, 16};
  const Operands operands(GetParam(), shape, {}, random);
  const EpilogueCase with = {.bias = true, .residual = false, .relu = false};
  ASSERT_GT(shape.NumOut(), 0);
  operands.ExpectOutputs(operands.Run(GetParam().dtype, {}, with), with, random, GetParam().dtype);
}

INSTANTIATE_TEST_SUITE_P(Grounds, Conv2dTest, AllGrounds(), GroundName);

// The library chooses a layout by its number of threads. A model is loaded on a thread that has the default number, and
// runs on threads that have one.
TEST(Conv2dWeightsTest, AreTheSameForEveryNumberOfLibraryThreads) {
  const int before = omp_get_max_threads();
  for (const auto& [in_channels, out_channels] : {std::pair{64, 64}, {128, 128}, {256, 128}, {128, 256}, {512, 64}}) {
    for (const int32_t kernel : {1, 3}) {
      SCOPED_TRACE(testing::Message() << in_channels << " to " << out_channels << ", kernel " << kernel);
      const Conv2dGeometry geometry = {.kernel_size = {kernel, kernel}};
      std::vector<float> weights(static_cast<size_t>(in_channels * out_channels * kernel * kernel));
      std::iota(weights.begin(), weights.end(), 1.0f);
      const auto packed_by = [&](int num_threads) {
        omp_set_num_threads(num_threads);
        std::vector<float> packed;
        EXPECT_EQ(cpu::PackConv2dWeights(geometry, in_channels, out_channels, weights.data(), &packed), "");
        EXPECT_EQ(omp_get_max_threads(), num_threads) << "the caller's own number";
        return packed;
      };
      const std::vector<float> expected = packed_by(1);
      for (const int num_threads : {2, 8, 16, 64}) EXPECT_EQ(packed_by(num_threads), expected) << num_threads;
    }
  }
  omp_set_num_threads(before);
}

// Groups that do not divide the channels are an example of what a library may refuse.
TEST(Conv2dRefusalTest, IsReportedAndNothingIsComputed) {
  const Conv2dGeometry geometry = {.kernel_size = {3, 3}, .groups = 2};
  constexpr int32_t kInChannels = 3, kOutChannels = 64;
  const std::vector<float> weights(kOutChannels * 9, 1.0f), in(5 * 5 * kInChannels, 1.0f);
  std::vector<float> packed;
  EXPECT_NE(cpu::PackConv2dWeights(geometry, kInChannels, kOutChannels, weights.data(), &packed), "");
  EXPECT_TRUE(packed.empty());
  std::vector<float> out(3 * 3 * kOutChannels, kUntouched);
  const Conv2dParams params = {.geometry = geometry,
                               .num_images = 1,
                               .in_rows = 5,
                               .in_columns = 5,
                               .in = ConstRows::Packed(in.data(), DType::kFloat32, 25, kInChannels),
                               .weights = weights.data(),
                               .out = Rows::Packed(out.data(), DType::kFloat32, 9, kOutChannels)};
  EXPECT_NE(cpu::CheckConv2d(params), "");
  ThreadPool pool(2);
  EXPECT_NE(cpu::Conv2d(params, pool), "");
  for (const float value : out) ASSERT_EQ(value, kUntouched);
}

TEST(Conv2dGeometryTest, SizesAreTheDefinitions) {
  const Conv2dGeometry same = {.kernel_size = {3, 3}, .padding = {1, 1}};
  EXPECT_EQ(same.OutSize(0, 188), 188);
  const Conv2dGeometry halved = {.kernel_size = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
  EXPECT_EQ(halved.OutSize(0, 188), 94);
  EXPECT_EQ(halved.OutSize(0, 1), 1);
  const Conv2dGeometry wide = {.kernel_size = {3, 3}, .dilation = {3, 3}};
  EXPECT_EQ(wide.OutSize(0, 7), 1);
  EXPECT_EQ(wide.OutSize(0, 6), 0);
  const Conv2dGeometry doubled = {.kernel_size = {2, 2}, .stride = {2, 2}, .is_transposed = true};
  EXPECT_EQ(doubled.OutSize(1, 94), 188);
  const Conv2dGeometry padded = {
      .kernel_size = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .output_padding = {1, 1}, .is_transposed = true};
  EXPECT_EQ(padded.OutSize(1, 94), 188);
}

}  // namespace
}  // namespace voxserve::kernels::conv2d_test
