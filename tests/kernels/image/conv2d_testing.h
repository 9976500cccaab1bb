#pragma once

// Helpers for the tests of 2D convolutions of images. They have the shapes to test, put operands on a device, run the
// kernel, and compute single output values by PyTorch's definition.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/image/conv2d.h"
#include "tests/kernels/core/feature_testing.h"

namespace voxserve::kernels {

using support::ExpectCudaSuccess;
using support::Synchronize;
using support::TestStream;

// The geometry and all sizes of a convolution. Images have one row per pixel and one column per channel:
// [num_images * rows * columns, channels].
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

inline std::string Described(const Shape& shape) {
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

// Returns geometries of all kinds that tensor copies in im2col mode can walk along.
inline std::vector<Conv2dGeometry> Im2colGeometries() {
  return {
      {},
      {.kernel_size = {3, 3}, .padding = {1, 1}},
      {.kernel_size = {3, 3}, .stride = {2, 2}, .padding = {1, 1}},
      {.stride = {2, 2}},
      {.kernel_size = {3, 3}},
      {.kernel_size = {3, 3}, .padding = {2, 2}, .dilation = {2, 2}},
      {.kernel_size = {3, 3}, .stride = {2, 1}, .padding = {3, 0}},
      {.kernel_size = {3, 4}, .padding = {4, 3}, .dilation = {1, 2}},
      {.kernel_size = {1, 3}, .stride = {1, 2}, .padding = {0, 2}},
      {.kernel_size = {2, 5}, .stride = {1, 3}, .padding = {0, 2}, .dilation = {3, 1}},
      {.kernel_size = {7, 7}, .padding = {3, 3}},
      {.kernel_size = {2, 2}, .stride = {2, 2}, .is_transposed = true},
      {.kernel_size = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .output_padding = {1, 1}, .is_transposed = true},
      {.kernel_size = {4, 3}, .stride = {2, 1}, .padding = {1, 0}, .is_transposed = true},
      {.kernel_size = {4, 4}, .stride = {4, 4}, .is_transposed = true},
      {.kernel_size = {7, 3}, .stride = {4, 3}, .padding = {2, 1}, .output_padding = {3, 0}, .is_transposed = true}};
}

// The value of one output, which is a sum, and the sum of its terms' magnitudes.
struct Sum {
  double value = 0, magnitude = 0;
  void Add(double term) {
    value += term;
    magnitude += std::abs(term);
  }
};
// Returns output channel `channel` at pixel `position`, without bias, by PyTorch's definition of Conv2d or
// ConvTranspose2d.
inline Sum NaiveOutput(const Shape& shape, const Matrix& in, const std::vector<float>& weights, int64_t position,
                       int32_t channel) {
  const Conv2dGeometry& g = shape.geometry;
  const int64_t column = position % shape.out_columns();
  const int64_t row = position / shape.out_columns() % shape.out_rows();
  const int64_t image = position / shape.out_columns() / shape.out_rows();
  const int32_t group_in = shape.in_channels / g.groups;
  const int32_t group = channel / (shape.out_channels / g.groups);
  // Returns true if output `out` reads input `at` through cell `cell`.
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

// Returns the geometries with which tests run convolutions whose groups have few output channels each. The caller sets
// the groups.
inline std::vector<Conv2dGeometry> FewOutputsGeometries() {
  return {
      {.kernel_size = {3, 3}, .padding = {1, 1}},
      {.kernel_size = {3, 3}},
      {.kernel_size = {3, 3}, .stride = {2, 2}, .padding = {1, 1}},
      {.kernel_size = {3, 3}, .stride = {1, 2}, .padding = {0, 3}},
      {.kernel_size = {3, 3}, .padding = {2, 2}, .dilation = {2, 2}},
      {.kernel_size = {5, 5}, .padding = {2, 2}},
      {.kernel_size = {2, 4}, .padding = {1, 0}, .dilation = {1, 3}},
      {.kernel_size = {1, 7}, .padding = {0, 3}},
      {.kernel_size = {7, 1}, .padding = {9, 0}, .dilation = {2, 1}},
  };
}

// The operands of a convolution: random on the host, and copied to the device for each run.
struct Operands {
  Device device;
  DType dtype;
  Shape shape;
  Matrix in;
  std::vector<float> weights;
  std::vector<float> bias;
  Matrix residual;

  // The margins of the input are NaN, since kernels must not read them.
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
    if (device != Device::kCpu) return CudaWeights();
    std::vector<float> packed;
    EXPECT_EQ(cpu::PackConv2dWeights(shape.geometry, shape.in_channels, shape.out_channels, weights.data(), &packed),
              "");
    return packed;
  }

  // Options of a GPU's kernel. The CPU ignores them.
  bool allow_tf32 = false;
  Conv2dTiling tiling = Conv2dTiling::kChosen;

  Matrix Run(DType out_dtype, Margins margins, const EpilogueCase& with) const {
    const DeviceMatrix device_out(device, out_dtype, Matrix(shape.NumOut(), shape.out_channels, margins, nullptr));
    const DeviceMatrix device_residual(device, dtype, residual);
    RunInto(device_out, with.With(nullptr, device_residual.View()), with.bias);
    return device_out.ToHost();
  }

  void RunInto(const DeviceMatrix& out, Epilogue epilogue, bool has_bias) const {
    const DeviceMatrix device_in(device, dtype, in);
    const DeviceValues device_weights(device, dtype, PackedWeights());
    const DeviceArray<float> device_bias(device, bias);
    if (has_bias) epilogue.bias = device_bias.data();
    const Conv2dParams params = {.geometry = shape.geometry,
                                 .num_images = shape.num_images,
                                 .in_rows = shape.in_rows,
                                 .in_columns = shape.in_columns,
                                 .in = device_in.View(),
                                 .weights = device_weights.data(),
                                 .out = out.View(),
                                 .epilogue = epilogue,
                                 .allow_tf32 = allow_tf32,
                                 .tiling = tiling};
    if (device == Device::kCpu) {
      ThreadPool pool(3);
      EXPECT_EQ(cpu::CheckConv2d(params), "");
      EXPECT_EQ(cpu::Conv2d(params, pool), "");
    } else if constexpr (kHasCuda) {
      ExpectCudaSuccess(cuda::Conv2d(params, TestStream()));
      Synchronize();
    }
  }

  // Expects the values of up to 3000 outputs, at random if there are more, and unchanged margins.
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

}  // namespace voxserve::kernels
