// Tests the 2D convolutions whose inputs Hopper's tensor copies gather (kernels/image/conv2d_im2col.cuh). They are
// compared with the definition, and byte by byte with the other warp groups, which conv2d_cuda_test.cc tests.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/device_code.h"
#include "kernels/image/conv2d.h"
#include "tests/kernels/image/conv2d_testing.h"
#include "tests/support/activation_formulas.h"

namespace voxserve::kernels::conv2d_im2col_cuda_test {
namespace {

struct Tiling {
  Conv2dTiling tiling;
  int32_t rows;  // positions of a tile
};
constexpr Tiling kTilings[] = {{Conv2dTiling::kTwoIm2col, 128},
                               {Conv2dTiling::kThreeIm2col, 192},
                               {Conv2dTiling::kFourIm2col, 256},
                               {Conv2dTiling::kIm2col128By136, 136},
                               {Conv2dTiling::kIm2col64By272, 272}};
constexpr Conv2dTiling kBoxTilings[] = {Conv2dTiling::kThreeBoxes, Conv2dTiling::kFourBoxes,
                                        Conv2dTiling::kBoxes128By144, Conv2dTiling::kBoxes64By288};

// Returns all tilings that serve a convolution, with kChosen where it is one of them.
std::vector<Conv2dTiling> TilingsOf(const Conv2dGeometry& geometry, int32_t out_channels = 64) {
  std::vector<Conv2dTiling> tilings;
  constexpr int32_t kMostOfOtherKernels = 32;  // outputs of a group
  if (out_channels / geometry.groups > kMostOfOtherKernels) tilings.push_back(Conv2dTiling::kChosen);
  for (const Tiling& each : kTilings) tilings.push_back(each.tiling);
  if (ShareInputBoxes(geometry)) tilings.insert(tilings.end(), std::begin(kBoxTilings), std::end(kBoxTilings));
  return tilings;
}
constexpr Conv2dGeometry kSame = {.kernel_size = {3, 3}, .padding = {1, 1}};
constexpr Conv2dGeometry kHalving = {.kernel_size = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
constexpr Conv2dGeometry kDoubling = {.kernel_size = {2, 2}, .stride = {2, 2}, .is_transposed = true};
constexpr Conv2dGeometry kQuadrupling = {.kernel_size = {4, 4}, .stride = {4, 4}, .is_transposed = true};

std::string NameOf(Conv2dTiling tiling) { return "tiling " + std::to_string(static_cast<int>(tiling)); }

class Conv2dIm2colTest : public testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT(Device::kCuda);
    if constexpr (kHasCuda) {
      if (cuda::CodeVersion() != cuda::kWarpGroupCode) GTEST_SKIP() << "This GPU has no tensor copies";
      values_.emplace(Device::kCuda, std::vector<uint16_t>(65536));
      ExpectCudaSuccess(cuda::Conv2d(SmallParams(), TestStream()));
    }
  }

  // Returns a convolution of one position that every im2col tiling supports.
  Conv2dParams SmallParams() const {
    return {.num_images = 1,
            .in_rows = 1,
            .in_columns = 1,
            .in = ConstRows::Packed(values_->data(), DType::kFloat16, 1, 64),
            .weights = values_->data() + 1024,
            .out = Rows::Packed(values_->data() + 512, DType::kFloat16, 1, 64),
            .tiling = Conv2dTiling::kTwoIm2col};
  }

  // Expects that every im2col tiling gives the bytes of the other warp groups, and these the values of the definition.
  void Check(const Shape& shape, DType dtype, const EpilogueCase& with, Random& random) {
    SCOPED_TRACE(Described(shape));
    Operands operands({Device::kCuda, dtype}, shape, {}, random);
    operands.tiling = Conv2dTiling::kTwoWarpGroups;
    const DType out_dtype = random.OneOf(OutDTypes(dtype));
    const Matrix expected = operands.Run(out_dtype, {}, with);
    operands.ExpectOutputs(expected, with, random, dtype);
    for (const Conv2dTiling tiling : TilingsOf(shape.geometry, shape.out_channels)) {
      operands.tiling = tiling;
      ExpectEqual(operands.Run(out_dtype, {}, with), expected, NameOf(tiling));
    }
  }

  static void ExpectEqual(const Matrix& out, const Matrix& expected, const std::string& name) {
    int64_t num_different = 0;
    for (int64_t row = 0; row < expected.rows; ++row) {
      for (int64_t channel = 0; channel < expected.channels; ++channel) {
        if (out.at(row, channel) == expected.at(row, channel)) continue;
        if (++num_different == 1) {
          ADD_FAILURE() << name << " gives " << out.at(row, channel) << " for " << expected.at(row, channel)
                        << " at position " << row << ", channel " << channel;
        }
      }
    }
    EXPECT_EQ(num_different, 0) << name << ": of " << expected.rows << " x " << expected.channels;
  }

  std::optional<DeviceArray<uint16_t>> values_;
};

TEST_F(Conv2dIm2colTest, EveryGeometryHasTheBytesOfTheOtherKernels) {
  Random random(21);
  for (const Conv2dGeometry& geometry : Im2colGeometries()) {
    for (const auto& [images, rows, columns] :
         std::vector<std::array<int32_t, 3>>{{1, 7, 9}, {3, 13, 10}, {2, 24, 31}}) {
      for (const auto& [in_channels, out_channels] : std::vector<std::array<int32_t, 2>>{{64, 64}, {128, 256}}) {
        Check({geometry, images, rows, columns, in_channels, out_channels},
              random.OneOf(std::vector{DType::kFloat16, DType::kBfloat16}), random.OneOf(EpilogueCases()), random);
      }
    }
  }
}

TEST_F(Conv2dIm2colTest, ImagesAroundATileHaveTheBytesOfTheOtherKernels) {
  Random random(22);
  const EpilogueCase with = {.bias = true, .residual = true, .relu = true};
  for (const Conv2dGeometry& geometry : {Conv2dGeometry(), kSame}) {
    Check({geometry, 1, 1, 1, 64, 128}, DType::kFloat16, with, random);
    Check({geometry, 300, 1, 1, 64, 128}, DType::kFloat16, with, random);
    for (const Tiling& each : kTilings) {
      for (const int32_t size : {each.rows - 1, each.rows, each.rows + 1}) {
        Check({geometry, 1, 1, size, 64, 128}, DType::kFloat16, with, random);
        Check({geometry, 2, size, 1, 64, 64}, DType::kFloat16, with, random);
      }
      Check({geometry, 1, 8, each.rows / 8, 64, 128}, DType::kFloat16, with, random);
    }
  }
  for (const int32_t rows : {8, 9, 10, 12, 13, 16, 17, 18, 19, 37}) {
    for (const int32_t columns : {15, 16, 17, 33}) {
      Check({kSame, 2, rows, columns, 64, 128}, DType::kFloat16, with, random);
      Check({kSame, 1, rows, columns, 128, 64}, DType::kBfloat16, with, random);
    }
  }
}

TEST_F(Conv2dIm2colTest, EveryNumberOfChannelsHasTheBytesOfTheOtherKernels) {
  Random random(23);
  for (const DType dtype : {DType::kFloat16, DType::kBfloat16}) {
    for (const int32_t in_channels : {64, 128, 192, 256, 384}) {
      for (const int32_t out_channels : {8, 40, 64, 72, 128, 136, 192, 200, 256, 384}) {
        Check({kSame, 1, 17, 20, in_channels, out_channels}, dtype, random.OneOf(EpilogueCases()), random);
      }
    }
    Conv2dGeometry grouped = kSame;
    grouped.groups = 3;
    Check({grouped, 2, 17, 20, 3 * 64, 3 * 40}, dtype, {.bias = true, .residual = true, .relu = false}, random);
    Check({grouped, 2, 17, 20, 3 * 128, 3 * 128}, dtype, {.bias = true, .residual = true, .relu = false}, random);
  }
}

// A block computes several tiles of these images.
TEST_F(Conv2dIm2colTest, LargeImagesHaveTheBytesOfTheOtherKernels) {
  Random random(24);
  const EpilogueCase with = {.bias = true, .residual = true, .relu = true};
  Check({kSame, 1, 188, 188, 128, 128}, DType::kFloat16, with, random);
  Check({kHalving, 1, 188, 188, 128, 256}, DType::kFloat16, with, random);
  Check({kSame, 2, 180, 180, 64, 384}, DType::kFloat16, with, random);
  Check({kSame, 1, 200, 190, 384, 64}, DType::kBfloat16, with, random);
  Check({kDoubling, 1, 94, 94, 256, 256}, DType::kFloat16, with, random);
  Check({kQuadrupling, 1, 117, 117, 256, 128}, DType::kFloat16, with, random);
  Check({{}, 1, 188, 188, 128, 256}, DType::kFloat16, with, random);
  // Five tiles of channels: a block's next tile has other channels, and so another bias.
  Check({kSame, 1, 180, 180, 64, 320}, DType::kFloat16, with, random);
  Check({kSame, 1, 180, 180, 64, 640}, DType::kBfloat16, with, random);
  Conv2dGeometry grouped = kSame;
  grouped.groups = 3;
  Check({grouped, 1, 180, 180, 3 * 64, 3 * 128}, DType::kFloat16, with, random);
}

TEST_F(Conv2dIm2colTest, SlicesOfRowsHaveTheBytesOfTheOtherKernels) {
  Random random(25);
  const Shape shape = {kSame, 2, 17, 20, 128, 136};
  for (const Margins& margins : std::vector<Margins>{{.before = 8, .after = 16}, {.before = 64}, {.after = 8}}) {
    Operands operands({Device::kCuda, DType::kFloat16}, shape, margins, random);
    const EpilogueCase with = {.bias = true, .residual = true, .relu = false};
    operands.tiling = Conv2dTiling::kTwoWarpGroups;
    const Matrix expected = operands.Run(DType::kFloat16, margins, with);
    for (const Conv2dTiling tiling : TilingsOf(kSame)) {
      operands.tiling = tiling;
      const Matrix out = operands.Run(DType::kFloat16, margins, with);
      EXPECT_TRUE(out.MarginsAreUntouched());
      ExpectEqual(out, expected, NameOf(tiling));
    }
  }
}

TEST_F(Conv2dIm2colTest, EveryActivationHasTheBytesOfTheOtherKernels) {
  Random random(26);
  const Shape shape = {kSame, 1, 19, 18, 64, 128};
  const Operands operands({Device::kCuda, DType::kFloat16}, shape, {}, random);
  for (const Activation& activation : support::EveryActivation()) {
    for (const DType out_dtype : {DType::kFloat16, DType::kFloat32}) {
      const auto bytes = [&](Conv2dTiling tiling) {
        Operands each = operands;
        each.tiling = tiling;
        const DeviceMatrix residual(Device::kCuda, DType::kFloat16, operands.residual);
        const DeviceMatrix out(Device::kCuda, out_dtype, Matrix(shape.NumOut(), shape.out_channels, {}, nullptr));
        each.RunInto(out, {.residual = residual.View(), .activation = activation}, /*has_bias=*/true);
        return out.Bytes();
      };
      const std::vector<uint8_t> expected = bytes(Conv2dTiling::kTwoWarpGroups);
      for (const Conv2dTiling tiling : TilingsOf(kSame)) {
        EXPECT_EQ(bytes(tiling), expected)
            << NameOf(tiling) << ", activation " << static_cast<int>(activation.function);
      }
    }
  }
}

TEST_F(Conv2dIm2colTest, AnImageHasTheSameBytesAloneAndInABatch) {
  Random random(27);
  for (const Conv2dGeometry& geometry : {kSame, kHalving, kDoubling, kQuadrupling}) {
    const Shape all = {geometry, 5, 23, 29, 128, 128};
    SCOPED_TRACE(Described(all));
    const Operands together({Device::kCuda, DType::kFloat16}, all, {}, random);
    const EpilogueCase with = {.bias = true, .residual = false, .relu = true};
    const Matrix out = together.Run(DType::kFloat16, {}, with);
    Operands alone = together;
    alone.shape.num_images = 1;
    const int64_t positions = alone.shape.NumIn(), out_positions = alone.shape.NumOut();
    for (int64_t image = 0; image < all.num_images; ++image) {
      alone.in.rows = positions;
      alone.in.values.assign(together.in.values.begin() + image * positions * all.in_channels,
                             together.in.values.begin() + (image + 1) * positions * all.in_channels);
      for (const Conv2dTiling tiling : TilingsOf(geometry)) {
        alone.tiling = tiling;
        const Matrix of_image = alone.Run(DType::kFloat16, {}, with);
        for (int64_t i = 0; i < out_positions; ++i) {
          for (int64_t c = 0; c < all.out_channels; ++c) {
            ASSERT_EQ(of_image.at(i, c), out.at(image * out_positions + i, c)) << "image " << image;
          }
        }
      }
    }
  }
}

// Each convolution starts before the one before it has ended, whose output it reads and whose input it overwrites.
TEST_F(Conv2dIm2colTest, ChainsHaveTheBytesOfSingleRuns) {
  Random random(28);
  constexpr int kNumRuns = 12;
  const Shape shape = {kSame, 1, 120, 130, 64, 64};
  const Operands operands({Device::kCuda, DType::kFloat16}, shape, {}, random);
  if constexpr (kHasCuda) {
    std::vector<float> weights = operands.PackedWeights();
    for (float& weight : weights) weight /= 16;
    const DeviceValues device_weights(Device::kCuda, DType::kFloat16, weights);
    const DeviceArray<float> bias(Device::kCuda, operands.bias);
    const auto run = [&](bool waits, Conv2dTiling tiling) {
      const DeviceMatrix images[] = {DeviceMatrix(Device::kCuda, DType::kFloat16, operands.in),
                                     DeviceMatrix(Device::kCuda, DType::kFloat16, operands.in)};
      for (int i = 0; i < kNumRuns; ++i) {
        ExpectCudaSuccess(cuda::Conv2d({.geometry = shape.geometry,
                                        .num_images = 1,
                                        .in_rows = shape.in_rows,
                                        .in_columns = shape.in_columns,
                                        .in = images[i % 2].View(),
                                        .weights = device_weights.data(),
                                        .out = images[(i + 1) % 2].View(),
                                        .epilogue = {.bias = bias.data(), .activation = ActivationFunction::kRelu},
                                        .tiling = tiling},
                                       TestStream()));
        if (waits) Synchronize();
      }
      Synchronize();
      return images[kNumRuns % 2].Bytes();
    };
    const std::vector<uint8_t> expected = run(/*waits=*/true, Conv2dTiling::kTwoWarpGroups);
    for (const Conv2dTiling tiling : TilingsOf(kSame)) {
      EXPECT_EQ(run(/*waits=*/false, tiling), expected) << NameOf(tiling);
    }
  }
}

TEST_F(Conv2dIm2colTest, RefusesWhatTensorCopiesCannotGather) {
  if constexpr (kHasCuda) {
    for (const Tiling& each : kTilings) {
      const auto status = [&](const auto& change) {
        Conv2dParams params = SmallParams();
        params.tiling = each.tiling;
        change(params);
        return cuda::Conv2d(params, TestStream());
      };
      EXPECT_EQ(status([](Conv2dParams&) {}), cudaError_t{}) << NameOf(each.tiling);
      EXPECT_NE(status([](Conv2dParams& p) { p.in.channels = 56; }), cudaError_t{});
      EXPECT_NE(status([](Conv2dParams& p) { p.in.pitch = 65; }), cudaError_t{});
      EXPECT_NE(status([](Conv2dParams& p) { p.out.channels = 60; }), cudaError_t{});
      EXPECT_NE(status([](Conv2dParams& p) { p.out.pitch = 65; }), cudaError_t{});
      EXPECT_NE(status([](Conv2dParams& p) { p.geometry.stride = {9, 9}; }), cudaError_t{});
      EXPECT_NE(status([](Conv2dParams& p) { p.geometry.padding = {129, 0}; }), cudaError_t{});
      EXPECT_NE(status([](Conv2dParams& p) {
                  p.geometry = {.kernel_size = {3, 1}, .padding = {128, 0}, .dilation = {128, 1}};
                }),
                cudaError_t{});
      EXPECT_NE(status([](Conv2dParams& p) {
                  p.geometry = {.kernel_size = {5, 4}, .stride = {5, 4}, .is_transposed = true};  // 20 phases
                }),
                cudaError_t{});
      EXPECT_NE(status([](Conv2dParams& p) { p.in.dtype = p.out.dtype = DType::kFloat32; }), cudaError_t{});
      Synchronize();
    }
    for (const Conv2dTiling tiling : kBoxTilings) {
      const auto status = [&](const Conv2dGeometry& geometry) {
        Conv2dParams params = SmallParams();
        params.tiling = tiling;
        params.geometry = geometry;
        return cuda::Conv2d(params, TestStream());
      };
      EXPECT_EQ(status(kSame), cudaError_t{}) << NameOf(tiling);
      for (const Conv2dGeometry& refused :
           std::vector<Conv2dGeometry>{{},
                                       {.kernel_size = {5, 3}, .padding = {2, 1}},
                                       {.kernel_size = {3, 3}, .stride = {2, 1}, .padding = {1, 1}},
                                       {.kernel_size = {3, 3}, .stride = {1, 2}, .padding = {1, 1}},
                                       {.kernel_size = {3, 3}, .padding = {2, 1}, .dilation = {2, 1}},
                                       {.kernel_size = {3, 3}, .padding = {1, 1}, .is_transposed = true},
                                       kDoubling}) {
        EXPECT_EQ(status(refused), cudaErrorInvalidValue) << NameOf(tiling);
      }
      Synchronize();
    }
  }
}

}  // namespace
}  // namespace voxserve::kernels::conv2d_im2col_cuda_test
