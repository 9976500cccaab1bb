// Compares convolutions of images in 8 bits on a GPU with the definition and with the CPU's, byte by byte, in every
// tiling.

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/device_code.h"
#include "kernels/image/int8/int8_im2col.h"
#include "kernels/int8/int8_product.h"
#include "tests/kernels/int8/int8_conv2d_testing.h"
#include "tests/kernels/int8/int8_device_testing.h"

namespace voxserve::kernels::int8_im2col_cuda_test {
namespace {

struct Tiling {
  Conv2dTiling tiling;
  int32_t rows;  // positions of a tile
};
constexpr Tiling kTilings[] = {
    {Conv2dTiling::kTwoIm2col, 128}, {Conv2dTiling::kThreeIm2col, 192}, {Conv2dTiling::kFourIm2col, 256}};
constexpr Conv2dTiling kBoxTilings[] = {Conv2dTiling::kThreeBoxes, Conv2dTiling::kFourBoxes};
constexpr Conv2dGeometry kSame = {.kernel_size = {3, 3}, .padding = {1, 1}};
constexpr Conv2dGeometry kHalving = {.kernel_size = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
constexpr Conv2dGeometry kDoubling = {.kernel_size = {2, 2}, .stride = {2, 2}, .is_transposed = true};
constexpr Conv2dGeometry kQuadrupling = {.kernel_size = {4, 4}, .stride = {4, 4}, .is_transposed = true};

std::string NameOfTiling(Conv2dTiling tiling) { return "tiling " + std::to_string(static_cast<int>(tiling)); }

// Which oracle a check has. The CPU's convolution, which has tests of its own, is faster than the definition.
enum class Oracle { kDefinition, kCpu };

class Int8Im2colTest : public testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT(Device::kCuda);
    if constexpr (kHasCuda) {
      if (cuda::CodeVersion() != cuda::kWarpGroupCode) GTEST_SKIP() << "This GPU has no tensor copies";
    }
  }
};

int32_t NumCells(const Conv2dGeometry& geometry) { return geometry.kernel_size[0] * geometry.kernel_size[1]; }

Int8Table AlignedInput(DType dtype, const Shape& shape, Random& random) {
  const auto padding = static_cast<int32_t>(PaddedInt8Channels(shape.in_channels)) - shape.in_channels;
  Int8Table in(dtype, shape.NumIn(), shape.in_channels, 16, 16 + padding);
  in.Fill(random);
  return in;
}

Int8Table OnCpu(const Shape& shape, Int8Table& in, Int8Product& product) {
  ThreadPool pool(4);
  const std::vector<Int8Line> weights =
      cpu::PackInt8Weights(product.weights().data(), NumCells(shape.geometry), shape.in_channels, shape.out_channels);
  Int8Table out = product.Out();
  cpu::Int8Conv2d({.geometry = shape.geometry,
                   .num_images = shape.num_images,
                   .in_rows = shape.in_rows,
                   .in_columns = shape.in_columns,
                   .in = in.View(),
                   .weights = weights.data(),
                   .out = out.View(),
                   .epilogue = product.Epilogue()},
                  pool, std::pmr::get_default_resource());
  return out;
}

cudaError_t RunInt8(const Int8Im2colParams& params) {
  const cudaError_t status = cuda::Int8Im2col(params, TestStream());
  Synchronize();
  return status;
}

// Expects the oracle's bytes from every tiling. is_aligned: whether rows of the output and of the residual are.
void Check(const Shape& shape, const Int8Case& types, Random& random, Oracle oracle = Oracle::kDefinition,
           bool is_aligned = true) {
  if constexpr (!kHasCuda) return;
  SCOPED_TRACE(Described(shape));
  SCOPED_TRACE(testing::Message() << NameOf(types.in) << " to " << NameOf(types.out) << ", bias " << types.bias
                                  << ", residual " << NameOf(types.residual) << " (uint16: none), activation "
                                  << static_cast<int>(types.activation.function) << ", folded " << types.is_folded
                                  << ", aligned " << is_aligned);
  const Conv2dGeometry& geometry = shape.geometry;
  Int8Table in = AlignedInput(types.in, shape, random);
  Int8Product product(types, shape.NumOut(), shape.in_channels, shape.out_channels, NumCells(geometry), random,
                      is_aligned);
  const bool is_on_cpu = oracle == Oracle::kCpu && types.residual != DType::kFloat16;
  const Int8Table expected =
      is_on_cpu ? OnCpu(shape, in, product) : product.Finish(Conv2dSums(shape, in, product.weights()));
  const DeviceTable device_in(in);
  const DeviceArray<int8_t> weights(
      Device::kCuda, PackInt8Im2colWeights(geometry, shape.in_channels, shape.out_channels, product.weights().data()));
  std::unique_ptr<DeviceTable> residual;
  if (const Int8Table* const host = product.residual()) residual = std::make_unique<DeviceTable>(*host);
  const DeviceEpilogue epilogue(product.Epilogue(), shape.out_channels, residual.get());
  const auto run = [&](Conv2dTiling tiling) {
    SCOPED_TRACE(NameOfTiling(tiling));
    constexpr int64_t kSpareRows = 3;
    const DeviceTable out(product.Out(), kSpareRows);
    Int8Im2colParams params{.geometry = geometry,
                            .num_images = shape.num_images,
                            .in_rows = shape.in_rows,
                            .in_columns = shape.in_columns,
                            .in = device_in.View(),
                            .weights = weights.data(),
                            .out = out.View(),
                            .epilogue = epilogue.get(),
                            .tiling = tiling};
    ExpectCudaSuccess(RunInt8(params));
    out.ExpectBytes(expected);
    if (types.out != DType::kFloat32 || testing::Test::HasFatalFailure()) return;
    const int64_t pitch = PaddedInt8Channels(shape.out_channels);
    const DeviceArray<uint16_t> halves(Device::kCuda, static_cast<size_t>(shape.NumOut() * pitch));
    params.out = {.data = halves.data(),
                  .dtype = DType::kFloat16,
                  .channels = shape.out_channels,
                  .pitch = pitch,
                  .capacity = shape.NumOut()};
    ExpectCudaSuccess(RunInt8(params));
    ExpectHalves(halves, pitch, expected, shape.NumOut(), shape.out_channels);
  };
  run(Conv2dTiling::kChosen);
  for (const Tiling& each : kTilings) {
    if (!testing::Test::HasFatalFailure()) run(each.tiling);
  }
  if (!ShareInputBoxes(geometry)) return;
  for (const Conv2dTiling tiling : kBoxTilings) {
    if (!testing::Test::HasFatalFailure()) run(tiling);
  }
}

// A layer as the engine has most: uint8 to uint8 behind ReLU.
Int8Case Usual() {
  return {.in = DType::kUint8,
          .out = DType::kUint8,
          .bias = true,
          .activation = ActivationFunction::kRelu,
          .is_folded = true};
}

TEST_F(Int8Im2colTest, EveryGeometryHasTheBytesOfItsDefinition) {
  Random random(31);
  const std::vector<Int8Case> cases = DeviceCases();
  for (const Conv2dGeometry& geometry : Im2colGeometries()) {
    for (const auto& [images, rows, columns] : std::vector<std::array<int32_t, 3>>{{1, 7, 9}, {3, 13, 10}}) {
      for (const auto& [in_channels, out_channels] : std::vector<std::array<int32_t, 2>>{{64, 64}, {128, 256}}) {
        Check({geometry, images, rows, columns, in_channels, out_channels}, random.OneOf(cases), random);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(Int8Im2colTest, EveryTypeAndEpilogue) {
  Random random(32);
  for (const Int8Case& types : DeviceCases()) {
    for (const bool is_aligned : {true, false}) {
      Check({kSame, 1, 11, 17, 128, 128}, types, random, Oracle::kDefinition, is_aligned);
      Check({kHalving, 2, 11, 17, 64, 40}, types, random, Oracle::kDefinition, is_aligned);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(Int8Im2colTest, EveryNumberOfChannels) {
  Random random(33);
  const std::vector<Int8Case> cases = DeviceCases();
  for (const int32_t in_channels : {64, 128, 192, 256, 320, 384}) {
    for (const int32_t out_channels : {1, 8, 20, 40, 64, 72, 128, 136, 192, 200, 256, 264, 384}) {
      Check({kSame, 1, 9, 16, in_channels, out_channels}, random.OneOf(cases), random, Oracle::kCpu);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(Int8Im2colTest, ImagesAroundATile) {
  Random random(34);
  const Int8Case with_residual = {.in = DType::kInt8,
                                  .out = DType::kUint8,
                                  .bias = true,
                                  .residual = DType::kUint8,
                                  .activation = ActivationFunction::kRelu,
                                  .is_folded = true};
  for (const Int8Case& types : {Usual(), with_residual}) {
    for (const Conv2dGeometry& geometry : {Conv2dGeometry(), kSame}) {
      Check({geometry, 1, 1, 1, 64, 128}, types, random, Oracle::kCpu);
      Check({geometry, 300, 1, 1, 128, 128}, types, random, Oracle::kCpu);
      for (const Tiling& each : kTilings) {
        for (const int32_t size : {each.rows - 1, each.rows, each.rows + 1}) {
          Check({geometry, 1, 1, size, 64, 128}, types, random, Oracle::kCpu);
          Check({geometry, 2, size, 1, 128, 64}, types, random, Oracle::kCpu);
        }
        Check({geometry, 1, 8, each.rows / 8, 64, 128}, types, random, Oracle::kCpu);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// A block computes several tiles of these images.
TEST_F(Int8Im2colTest, ImagesAroundABox) {
  Random random(17);
  for (const int32_t rows : {9, 11, 12, 13, 16, 17, 37}) {
    for (const int32_t columns : {15, 16, 17, 33}) {
      for (const int32_t in_channels : {64, 128}) {
        Check({kSame, 2, rows, columns, in_channels, 128}, Usual(), random, Oracle::kCpu);
        Check({kSame, 1, rows, columns, in_channels, 64}, Usual(), random, Oracle::kCpu);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(Int8Im2colTest, LargeImagesHaveTheBytesOfTheCpu) {
  Random random(35);
  const Int8Case with_residual = {
      .in = DType::kUint8, .out = DType::kInt8, .bias = true, .residual = DType::kInt8, .is_folded = true};
  const Int8Case floats = {.in = DType::kUint8, .out = DType::kFloat32, .bias = true};
  Check({kSame, 1, 188, 188, 128, 128}, Usual(), random, Oracle::kCpu);
  Check({kHalving, 1, 188, 188, 128, 256}, Usual(), random, Oracle::kCpu);
  Check({kSame, 2, 180, 180, 64, 384}, with_residual, random, Oracle::kCpu);
  Check({kSame, 1, 200, 190, 384, 64}, Usual(), random, Oracle::kCpu);
  Check({kSame, 1, 150, 190, 192, 72}, with_residual, random, Oracle::kCpu);
  Check({kDoubling, 1, 94, 94, 256, 256}, with_residual, random, Oracle::kCpu);
  Check({kQuadrupling, 1, 117, 117, 256, 128}, Usual(), random, Oracle::kCpu);
  Check({{}, 3, 94, 94, 128, 256}, floats, random, Oracle::kCpu);
}

// The largest numbers, whose sums 24 bits would not hold.
TEST_F(Int8Im2colTest, TheLargestSumsAreExact) {
  if constexpr (kHasCuda) {
    constexpr int32_t kChannels = 256, kCells = 9, kRows = 3;  // all cells of the middle position are in the image
    const DeviceArray<float> one(Device::kCuda, std::vector<float>(kChannels, 1.0f));
    for (const DType dtype : {DType::kUint8, DType::kInt8}) {
      for (const int8_t weight : {int8_t{127}, int8_t{-127}}) {
        const float largest = dtype == DType::kUint8 ? 255 : -127;
        Int8Table in(dtype, kRows * kRows, kChannels, 0, 0), expected(DType::kFloat32, 1, kChannels, 0, 0);
        for (int32_t c = 0; c < kChannels; ++c) {
          for (int64_t row = 0; row < kRows * kRows; ++row) in.Set(row, c, largest);
          expected.Set(0, c, static_cast<float>(kCells * kChannels * static_cast<int32_t>(largest) * weight));
        }
        const DeviceTable device_in(in);
        const Conv2dGeometry geometry = {.kernel_size = {3, 3}};
        const std::vector<int8_t> weights(size_t{kCells} * kChannels * kChannels, weight);
        const DeviceArray<int8_t> packed(Device::kCuda,
                                         PackInt8Im2colWeights(geometry, kChannels, kChannels, weights.data()));
        for (const Tiling& each : kTilings) {
          SCOPED_TRACE(NameOfTiling(each.tiling));
          const DeviceTable out(Int8Table(DType::kFloat32, 1, kChannels, 0, 0));
          ExpectCudaSuccess(RunInt8({.geometry = geometry,
                                     .num_images = 1,
                                     .in_rows = kRows,
                                     .in_columns = kRows,
                                     .in = device_in.View(),
                                     .weights = packed.data(),
                                     .out = out.View(),
                                     .epilogue = {.multiplier = one.data()},
                                     .tiling = each.tiling}));
          out.ExpectBytes(expected);
        }
      }
    }
  }
}

// Each convolution starts before the one before it has ended, whose output it reads and whose input it overwrites.
TEST_F(Int8Im2colTest, ChainsHaveTheBytesOfSingleRuns) {
  if constexpr (kHasCuda) {
    Random random(36);
    constexpr int kNumRuns = 12;
    const Shape shape = {kSame, 1, 120, 130, 64, 64};
    Int8Product product(Usual(), shape.NumOut(), shape.in_channels, shape.out_channels, 9, random, true);
    const Int8Table in = AlignedInput(DType::kUint8, shape, random);
    const DeviceArray<int8_t> weights(
        Device::kCuda, PackInt8Im2colWeights(kSame, shape.in_channels, shape.out_channels, product.weights().data()));
    const DeviceEpilogue epilogue(product.Epilogue(), shape.out_channels, nullptr);
    const auto run = [&](bool waits, Conv2dTiling tiling) {
      const DeviceTable images[] = {DeviceTable(in), DeviceTable(in)};
      for (int i = 0; i < kNumRuns; ++i) {
        ExpectCudaSuccess(cuda::Int8Im2col({.geometry = kSame,
                                            .num_images = 1,
                                            .in_rows = shape.in_rows,
                                            .in_columns = shape.in_columns,
                                            .in = images[i % 2].View(),
                                            .weights = weights.data(),
                                            .out = images[(i + 1) % 2].View(),
                                            .epilogue = epilogue.get(),
                                            .tiling = tiling},
                                           TestStream()));
        if (waits) Synchronize();
      }
      Synchronize();
      return images[kNumRuns % 2].Bytes();
    };
    const std::vector<uint8_t> expected = run(/*waits=*/true, Conv2dTiling::kTwoIm2col);
    for (const Tiling& each : kTilings) EXPECT_EQ(run(false, each.tiling), expected) << NameOfTiling(each.tiling);
    for (const Conv2dTiling tiling : kBoxTilings) EXPECT_EQ(run(false, tiling), expected) << NameOfTiling(tiling);
  }
}

TEST_F(Int8Im2colTest, RefusesWhatItDoesNotServe) {
  if constexpr (kHasCuda) {
    constexpr int32_t kChannels = 64;
    const DeviceTable in(Int8Table(DType::kUint8, 9, kChannels, 0, 16)),
        out(Int8Table(DType::kUint8, 9, kChannels, 0, 0));
    const DeviceArray<float> one(Device::kCuda, std::vector<float>(kChannels, 1.0f));
    const DeviceArray<int8_t> weights(Device::kCuda, std::vector<int8_t>(9 * kChannels * kChannels));
    const Int8Im2colParams served{.geometry = kSame,
                                  .num_images = 1,
                                  .in_rows = 3,
                                  .in_columns = 3,
                                  .in = in.View(),
                                  .weights = weights.data(),
                                  .out = out.View(),
                                  .epilogue = {.multiplier = one.data()}};
    ExpectCudaSuccess(RunInt8(served));
    const auto expect_refusal = [&](const char* what, const auto& change) {
      Int8Im2colParams params = served;
      change(params);
      EXPECT_EQ(RunInt8(params), cudaErrorInvalidValue) << what;
    };
    expect_refusal("56 channels", [](auto& p) { p.in.channels = 56; });
    expect_refusal("unaligned rows", [](auto& p) { p.in.pitch = 65; });
    expect_refusal("an unaligned first row", [](auto& p) { p.in = p.in.Columns(8, kChannels); });
    expect_refusal("groups", [](auto& p) { p.geometry.groups = 2; });
    expect_refusal("a stride of 9", [](auto& p) { p.geometry.stride = {9, 9}; });
    expect_refusal("a padding of 129", [](auto& p) { p.geometry.padding = {129, 0}; });
    expect_refusal("float16", [](auto& p) { p.in.dtype = DType::kFloat16; });
    expect_refusal("outputs of bfloat16", [](auto& p) { p.out.dtype = DType::kBfloat16; });
    expect_refusal("a residual of bfloat16", [](auto& p) {
      p.epilogue.residual = p.out;
      p.epilogue.residual.dtype = DType::kBfloat16;
    });
    expect_refusal("no multiplier", [](auto& p) { p.epilogue.multiplier = nullptr; });
    expect_refusal("warps", [](auto& p) { p.tiling = Conv2dTiling::kWarps; });
    expect_refusal("warp groups", [](auto& p) { p.tiling = Conv2dTiling::kTwoWarpGroups; });
    expect_refusal("channels as rows", [](auto& p) { p.tiling = Conv2dTiling::kBoxes128By144; });
    for (const Conv2dTiling tiling : kBoxTilings) {
      expect_refusal("boxes with strides", [&](auto& p) {
        p.geometry = kHalving;
        p.tiling = tiling;
      });
    }
  }
}

}  // namespace
}  // namespace voxserve::kernels::int8_im2col_cuda_test
