// Convolutions of images and their transposes against the definition, read value by value.

#include "kernels/conv2d.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/feature_testing.h"

namespace voxserve::kernels {
namespace {

using support::ExpectCudaSuccess;
using support::Synchronize;
using support::TestStream;

struct Shape {
  Conv2dGeometry geometry;
  int64_t num_images;
  int32_t in_rows, in_columns;
  int32_t in_channels, out_channels;

  int64_t out_rows() const { return std::max<int64_t>(0, geometry.OutSize(0, in_rows)); }
  int64_t out_columns() const { return std::max<int64_t>(0, geometry.OutSize(1, in_columns)); }
  int64_t NumIn() const { return num_images * in_rows * in_columns; }
  int64_t NumOut() const { return num_images * out_rows() * out_columns(); }
  int64_t NumWeights() const {
    return int64_t{in_channels} * out_channels / geometry.groups * geometry.kernel_size[0] * geometry.kernel_size[1];
  }
};

std::string Described(const Shape& shape) {
  const Conv2dGeometry& g = shape.geometry;
  const auto pair = [](const char* name, const std::array<int32_t, 2>& values) {
    return std::string(" ") + name + " " + std::to_string(values[0]) + " " + std::to_string(values[1]);
  };
  return (g.is_transposed ? "transposed " : "") + std::to_string(shape.num_images) + " of " +
         std::to_string(shape.in_rows) + " x " + std::to_string(shape.in_columns) + ", " +
         std::to_string(shape.in_channels) + " to " + std::to_string(shape.out_channels) + " channels in " +
         std::to_string(g.groups) + " groups" + pair("kernel", g.kernel_size) + pair("stride", g.stride) +
         pair("padding", g.padding) + pair("dilation", g.dilation) + pair("output padding", g.output_padding);
}

// The sum of one output, and its terms' magnitudes, by PyTorch's definitions.
struct Sum {
  double value = 0, magnitude = 0;
  void Add(double term) {
    value += term;
    magnitude += std::abs(term);
  }
};
Sum NaiveOutput(const Shape& shape, const Matrix& in, const std::vector<float>& weights, int64_t position,
                int32_t channel) {
  const Conv2dGeometry& g = shape.geometry;
  const int64_t column = position % shape.out_columns();
  const int64_t row = position / shape.out_columns() % shape.out_rows();
  const int64_t image = position / shape.out_columns() / shape.out_rows();
  const int32_t group_in = shape.in_channels / g.groups;
  const int32_t group = channel / (shape.out_channels / g.groups);
  // Whether input `at` meets output `out` through cell `cell`.
  const auto meets = [&](size_t axis, int64_t out, int64_t at, int32_t cell) {
    return g.is_transposed ? out == at * g.stride[axis] - g.padding[axis] + cell
                           : at == out * g.stride[axis] - g.padding[axis] + cell * g.dilation[axis];
  };
  Sum sum;
  for (int32_t i = 0; i < g.kernel_size[0]; ++i) {
    for (int32_t r = 0; r < shape.in_rows; ++r) {
      if (!meets(0, row, r, i)) continue;
      for (int32_t j = 0; j < g.kernel_size[1]; ++j) {
        for (int32_t c = 0; c < shape.in_columns; ++c) {
          if (!meets(1, column, c, j)) continue;
          for (int32_t k = 0; k < group_in; ++k) {
            const int64_t matrix =
                g.is_transposed ? int64_t{k} * shape.out_channels + channel : int64_t{channel} * group_in + k;
            const float weight = weights[static_cast<size_t>((matrix * g.kernel_size[0] + i) * g.kernel_size[1] + j)];
            sum.Add(double{weight} * in.at((image * shape.in_rows + r) * shape.in_columns + c, group * group_in + k));
          }
        }
      }
    }
  }
  return sum;
}

// A convolution's operands on a device.
struct Operands {
  Device device;
  DType dtype;
  Shape shape;
  Matrix in;
  std::vector<float> weights;
  std::vector<float> bias;
  Matrix residual;

  // What lies around the inputs must not be read.
  Operands(const Ground& ground, const Shape& s, Margins margins, Random& random)
      : device(ground.device),
        dtype(ground.dtype),
        shape(s),
        in(shape.NumIn(), shape.in_channels, margins, &random, dtype),
        weights(random.Floats(shape.NumWeights(), dtype)),
        bias(random.Floats(shape.out_channels)),
        residual(shape.NumOut(), shape.out_channels, {.before = 8}, &random, dtype) {
    for (float& value : in.values) {
      if (value == kUntouched) value = std::numeric_limits<float>::quiet_NaN();
    }
  }

  std::vector<float> PackedWeights() const {
    return device == Device::kCpu
               ? cpu::PackConv2dWeights(shape.geometry, shape.in_channels, shape.out_channels, weights.data())
               : CudaWeights();
  }

  // How a GPU computes.
  bool allow_tf32 = false;
  Conv2dTiling tiling = Conv2dTiling::kChosen;

  Matrix Run(DType out_dtype, Margins margins, const EpilogueCase& with) const {
    const DeviceMatrix device_out(device, out_dtype, Matrix(shape.NumOut(), shape.out_channels, margins, nullptr));
    const DeviceMatrix device_residual(device, dtype, residual);
    const Epilogue epilogue = {.residual = with.residual ? device_residual.data() : nullptr,
                               .residual_pitch = device_residual.pitch(),
                               .activation = with.relu ? ActivationFunction::kRelu : ActivationFunction::kNone};
    RunInto(device_out, out_dtype, epilogue, with.bias);
    return device_out.ToHost();
  }

  void RunInto(const DeviceMatrix& out, DType out_dtype, Epilogue epilogue, bool has_bias) const {
    const DeviceMatrix device_in(device, dtype, in);
    const DeviceValues device_weights(device, dtype, PackedWeights());
    const DeviceArray<float> device_bias(device, bias);
    if (has_bias) epilogue.bias = device_bias.data();
    const Conv2dParams params = {.geometry = shape.geometry,
                                 .num_images = shape.num_images,
                                 .in_rows = shape.in_rows,
                                 .in_columns = shape.in_columns,
                                 .dtype = dtype,
                                 .out_dtype = out_dtype,
                                 .in = device_in.data(),
                                 .in_pitch = device_in.pitch(),
                                 .in_channels = shape.in_channels,
                                 .weights = device_weights.data(),
                                 .out = out.data(),
                                 .out_pitch = out.pitch(),
                                 .out_channels = shape.out_channels,
                                 .epilogue = epilogue,
                                 .allow_tf32 = allow_tf32,
                                 .tiling = tiling};
    if (device == Device::kCpu) {
      ThreadPool pool(3);
      cpu::Conv2d(params, pool);
    } else if constexpr (kHasCuda) {
      ExpectCudaSuccess(cuda::Conv2d(params, TestStream()));
      Synchronize();
    }
  }

  // Some of many outputs, all of few.
  void ExpectOutputs(const Matrix& out, const EpilogueCase& with, Random& random, DType precision) const {
    EXPECT_TRUE(out.MarginsAreUntouched());
    constexpr int64_t kMaxChecked = 3000;
    const int64_t num_outputs = shape.NumOut() * shape.out_channels;
    std::uniform_int_distribution<int64_t> any(0, std::max<int64_t>(0, num_outputs - 1));
    for (int64_t i = 0; i < std::min(num_outputs, kMaxChecked); ++i) {
      const int64_t output = num_outputs <= kMaxChecked ? i : any(random.engine());
      const int64_t position = output / shape.out_channels;
      const auto channel = static_cast<int32_t>(output % shape.out_channels);
      Sum sum = NaiveOutput(shape, in, weights, position, channel);
      if (with.bias) sum.Add(bias[static_cast<size_t>(channel)]);
      if (with.residual) sum.Add(residual.at(position, channel));
      if (with.relu) sum.value = std::max(sum.value, 0.0);
      ASSERT_NEAR(out.at(position, channel), sum.value, Tolerance(precision, sum.magnitude))
          << "position " << position << ", channel " << channel;
    }
  }

 private:
  std::vector<float> CudaWeights() const {
    if constexpr (kHasCuda) {
      return cuda::PackConv2dWeights(shape.geometry, shape.in_channels, shape.out_channels, dtype, weights.data());
    }
    return {};
  }
};

class Conv2dTest : public testing::TestWithParam<Ground> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam().device); }

  // One of all epilogues, output dtypes and margins each.
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
           {.kernel_size = {1, 2}, .stride = {3, 4}},  // outputs that no input reaches
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
    operands.RunInto(out, DType::kFloat32, {.activation = activation}, /*has_bias=*/true);
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
    operands.RunInto(
        in_place, GetParam().dtype,
        {.residual = in_place.data(), .residual_pitch = in_place.pitch(), .activation = ActivationFunction::kRelu},
        with.bias);
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
       }) {
    for (const int32_t out_channels : {3, 64, 128, 130}) {
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
    operands.RunInto(out, GetParam().dtype, {}, /*has_bias=*/true);
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

// Whether the GPU has warp groups, that is, takes a convolution by them.
bool HasWarpGroups() {
  if constexpr (kHasCuda) {
    const DeviceArray<uint16_t> values(Device::kCuda, std::vector<uint16_t>(4096));
    const cudaError_t status = cuda::Conv2d({.num_images = 1,
                                             .in_rows = 1,
                                             .in_columns = 1,
                                             .dtype = DType::kFloat16,
                                             .out_dtype = DType::kFloat16,
                                             .in = values.data(),
                                             .in_pitch = 8,
                                             .in_channels = 8,
                                             .weights = values.data() + 1024,
                                             .out = values.data() + 512,
                                             .out_pitch = 8,
                                             .out_channels = 8,
                                             .tiling = Conv2dTiling::kWarpGroups},
                                            TestStream());
    return status == cudaError_t{};
  }
  return false;
}

TEST(Conv2dCudaTest, Tf32RoundsNoMoreThanItsFactors) {
  SKIP_WITHOUT(Device::kCuda);
  Random random(11);
  for (const int32_t out_channels : {3, 24, 64, 130}) {
    const Shape shape = {{.kernel_size = {3, 3}, .padding = {1, 1}}, 2, 12, 15, 36, out_channels};
    SCOPED_TRACE(Described(shape));
    Operands operands({Device::kCuda, DType::kFloat32}, shape, {}, random);
    operands.allow_tf32 = true;
    const EpilogueCase with = {.bias = true, .residual = true, .relu = false};
    const Matrix out = operands.Run(DType::kFloat32, {}, with);
    operands.ExpectOutputs(out, with, random, DType::kFloat16);  // whose significand has as many bits
  }
}

TEST(Conv2dCudaTest, EveryTilingEqualsTheDefinition) {
  SKIP_WITHOUT(Device::kCuda);
  Random random(12);
  const Conv2dGeometry same = {.kernel_size = {3, 3}, .padding = {1, 1}};
  const Conv2dGeometry doubled = {.kernel_size = {2, 2}, .stride = {2, 2}, .is_transposed = true};
  for (const DType dtype : {DType::kFloat16, DType::kBfloat16}) {
    for (const Conv2dTiling tiling : {Conv2dTiling::kWarps, Conv2dTiling::kWarpGroups, Conv2dTiling::kWideWarpGroups}) {
      if (tiling != Conv2dTiling::kWarps && !HasWarpGroups()) continue;
      for (const auto& [in_channels, out_channels] :
           std::vector<std::array<int32_t, 2>>{{8, 3}, {16, 64}, {72, 72}, {64, 128}, {200, 300}}) {
        for (const Conv2dGeometry& geometry : {same, doubled, Conv2dGeometry()}) {
          for (const auto& [images, size] : std::vector<std::array<int32_t, 2>>{{1, 1}, {3, 9}, {1, 40}}) {
            const Shape shape = {geometry, images, size, size, in_channels, out_channels};
            SCOPED_TRACE(Described(shape) + ", tiling " + std::to_string(static_cast<int>(tiling)));
            Operands operands({Device::kCuda, dtype}, shape, {}, random);
            operands.tiling = tiling;
            const EpilogueCase with = random.OneOf(EpilogueCases());
            operands.ExpectOutputs(operands.Run(dtype, {}, with), with, random, dtype);
          }
        }
      }
    }
  }
}

TEST(Conv2dCudaTest, RefusesGeometryBeyondItsLimits) {
  SKIP_WITHOUT(Device::kCuda);
  if constexpr (kHasCuda) {
    const Conv2dParams good = {.num_images = 0, .in_rows = 8, .in_columns = 8, .in_channels = 8, .out_channels = 8};
    ExpectCudaSuccess(cuda::Conv2d(good, TestStream()));
    const auto expect_refused = [&](const auto& change) {
      Conv2dParams params = good;
      change(params);
      EXPECT_NE(cuda::Conv2d(params, TestStream()), cudaError_t{});
    };
    expect_refused([](Conv2dParams& p) { p.geometry.kernel_size = {8, 1}; });
    expect_refused([](Conv2dParams& p) { p.geometry.kernel_size = {1, 0}; });
    expect_refused([](Conv2dParams& p) { p.geometry.stride = {0, 1}; });
    expect_refused([](Conv2dParams& p) { p.geometry.padding = {0, -1}; });
    expect_refused([](Conv2dParams& p) { p.geometry.dilation = {0, 1}; });
    expect_refused([](Conv2dParams& p) { p.geometry.groups = 3; });
    expect_refused([](Conv2dParams& p) { p.geometry.groups = 0; });
    expect_refused([](Conv2dParams& p) { p.geometry.output_padding = {1, 0}; });
    expect_refused([](Conv2dParams& p) { p.geometry.is_transposed = true, p.geometry.groups = 2; });
    expect_refused([](Conv2dParams& p) { p.geometry.is_transposed = true, p.geometry.output_padding = {1, 0}; });
    expect_refused([](Conv2dParams& p) { p.geometry.is_transposed = true, p.geometry.dilation = {2, 1}; });
    expect_refused([](Conv2dParams& p) { p.in_channels = 0; });
    expect_refused([](Conv2dParams& p) { p.out_dtype = DType::kFloat16; });
  }
}

}  // namespace
}  // namespace voxserve::kernels
