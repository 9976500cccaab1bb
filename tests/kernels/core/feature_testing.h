#pragma once

// Helpers for the tests of feature kernels, which compute with the rows of sparse tensors. They put matrices on any
// device in any feature dtype, and compare results with those of naive loops in double.
//
// Tests round the inputs to the dtype first. A result may then differ from the expected one only by the rounding of its
// computation: a few unit roundoffs of the sum of the magnitudes of all its terms.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/core/epilogue.h"
#include "kernels/core/rows.h"
#include "tests/support/float16.h"
#include "tests/support/test_device.h"

namespace voxserve::kernels {

using support::Device;
using support::DeviceArray;

inline constexpr float kUntouched = -16384.0f;  // the value of memory that kernels must not write; exact in every dtype

// The device and dtype of a test. The CPU only computes in float32.
struct Ground {
  Device device;
  DType dtype;
};
inline auto AllGrounds() {
  return ::testing::Values(Ground{Device::kCpu, DType::kFloat32}, Ground{Device::kCuda, DType::kFloat32},
                           Ground{Device::kCuda, DType::kFloat16}, Ground{Device::kCuda, DType::kBfloat16});
}
inline std::string GroundName(const ::testing::TestParamInfo<Ground>& ground) {
  return (ground.param.device == Device::kCpu ? "Cpu_" : "Cuda_") + std::string(NameOf(ground.param.dtype));
}
inline void PrintTo(const Ground& ground, std::ostream* os) { *os << NameOf(ground.dtype); }
// Returns the dtypes in which a kernel may store results that it computed from features of `dtype`.
inline std::vector<DType> OutDTypes(DType dtype) {
  return dtype == DType::kFloat32 ? std::vector{dtype} : std::vector{dtype, DType::kFloat32};
}

// Rounds to the nearest float16 or bfloat16, ties to even, and returns its bits. The dtype must not be kFloat32.
inline uint16_t ToBits(DType dtype, float value) {
  if (dtype == DType::kFloat16) return std::bit_cast<uint16_t>(static_cast<Float16>(value));
  const auto bits = std::bit_cast<uint32_t>(value);  // rounds to nearest even; NaN stays NaN
  return static_cast<uint16_t>(std::isnan(value) ? (bits >> 16) | 0x40 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
inline float FromBits(DType dtype, uint16_t bits) {
  if (dtype == DType::kFloat16) return static_cast<float>(std::bit_cast<Float16>(bits));
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}
inline float Rounded(DType dtype, float value) {
  return dtype == DType::kFloat32 ? value : FromBits(dtype, ToBits(dtype, value));
}

// Returns the tolerance of a sum whose terms' magnitudes add up to `magnitude`, after a few roundings to dtype.
inline double Tolerance(DType dtype, double magnitude) {
  const double roundoff = dtype == DType::kFloat32 ? 3e-6 : dtype == DType::kFloat16 ? 0x1p-11 : 0x1p-8;
  return 3 * roundoff * magnitude + 1e-6;
}

// Draws random test data from a seed.
class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  // Returns values from -1 to 1, rounded to the dtype.
  std::vector<float> Floats(int64_t count, DType dtype = DType::kFloat32) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = Rounded(dtype, uniform(engine_));
    return values;
  }
  bool Chance(double probability) { return std::bernoulli_distribution(probability)(engine_); }
  template <typename T>
  const T& OneOf(const std::vector<T>& choices) {
    return choices[std::uniform_int_distribution<size_t>(0, choices.size() - 1)(engine_)];
  }
  std::mt19937& engine() { return engine_; }

 private:
  std::mt19937 engine_;
};

// The numbers of unused columns before and after each row of a matrix in memory.
struct Margins {
  int64_t before = 0;
  int64_t after = 0;
};

// A matrix on the host. Rows of `channels` values begin `pitch` values apart. The margins are kUntouched. The other
// values come from `random`, rounded to the dtype, or are kUntouched if `random` is null.
struct Matrix {
  int64_t rows, channels, pitch, before;
  std::vector<float> values;
  Matrix(int64_t r, int64_t c, Margins margins, Random* random, DType dtype = DType::kFloat32)
      : rows(r),
        channels(c),
        pitch(margins.before + c + margins.after),
        before(margins.before),
        values(static_cast<size_t>(r * pitch), kUntouched) {
    if (random == nullptr) return;
    const std::vector<float> filled = random->Floats(r * c, dtype);
    for (int64_t i = 0; i < r * c; ++i) at(i / c, i % c) = filled[static_cast<size_t>(i)];
  }
  float* data() { return values.data() + before; }
  Rows View() { return {.data = data(), .channels = static_cast<int32_t>(channels), .pitch = pitch, .capacity = rows}; }
  float& at(int64_t row, int64_t column) { return values[static_cast<size_t>(row * pitch + before + column)]; }
  float at(int64_t row, int64_t column) const { return values[static_cast<size_t>(row * pitch + before + column)]; }
  bool MarginsAreUntouched() const {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = -before; column < pitch - before; ++column) {
        if ((column < 0 || column >= channels) && at(row, column) != kUntouched) return false;
      }
    }
    return true;
  }
};

// Owns values on a device, stored in a dtype.
class DeviceValues {
 public:
  DeviceValues(Device device, DType dtype, const std::vector<float>& values)
      : dtype_(dtype), bytes_(device, Encoded(dtype, values)) {}

  DType dtype() const { return dtype_; }
  // Returns the device address of the value at `begin`. It is not null unless there are no values.
  void* data(int64_t begin = 0) const {
    return bytes_.data() == nullptr ? nullptr : bytes_.data() + begin * SizeOf(dtype_);
  }
  std::vector<uint8_t> Bytes() const { return bytes_.ToHost(); }
  std::vector<float> ToHost() const {
    const std::vector<uint8_t> bytes = Bytes();
    std::vector<float> values(bytes.size() / static_cast<size_t>(SizeOf(dtype_)));
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype_ == DType::kFloat32) {
        std::memcpy(&values[i], &bytes[4 * i], 4);
      } else {
        uint16_t bits;
        std::memcpy(&bits, &bytes[2 * i], 2);
        values[i] = FromBits(dtype_, bits);
      }
    }
    return values;
  }

 private:
  static std::vector<uint8_t> Encoded(DType dtype, const std::vector<float>& values) {
    std::vector<uint8_t> bytes(values.size() * static_cast<size_t>(SizeOf(dtype)));
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype == DType::kFloat32) {
        std::memcpy(&bytes[4 * i], &values[i], 4);
      } else {
        const uint16_t bits = ToBits(dtype, values[i]);
        std::memcpy(&bytes[2 * i], &bits, 2);
      }
    }
    return bytes;
  }

  DType dtype_;
  DeviceArray<uint8_t> bytes_;
};

// Owns a copy of a matrix on a device, with its margins.
class DeviceMatrix {
 public:
  DeviceMatrix(Device device, DType dtype, const Matrix& matrix)
      : matrix_(matrix), values_(device, dtype, matrix.values) {}

  void* data() const { return values_.data(matrix_.before); }
  int64_t pitch() const { return matrix_.pitch; }
  Rows View() const {
    return {.data = data(),
            .dtype = values_.dtype(),
            .channels = static_cast<int32_t>(matrix_.channels),
            .pitch = matrix_.pitch,
            .capacity = matrix_.rows};
  }
  std::vector<uint8_t> Bytes() const { return values_.Bytes(); }
  Matrix ToHost() const {
    Matrix matrix = matrix_;
    matrix.values = values_.ToHost();
    return matrix;
  }

 private:
  Matrix matrix_;
  DeviceValues values_;
};

// An epilogue to test: what a kernel does to its sums before it stores them.
struct EpilogueCase {
  bool bias, residual, relu;

  // Returns an epilogue with the bias and the residual, if the case has them.
  Epilogue With(const void* bias_values, const ConstRows& residual_rows) const {
    return {.bias = bias ? bias_values : nullptr,
            .residual = residual ? residual_rows : ConstRows{},
            .activation = relu ? ActivationFunction::kRelu : ActivationFunction::kNone};
  }
};
inline std::vector<EpilogueCase> EpilogueCases() {
  return {{false, false, false}, {true, false, true}, {true, true, true}, {false, true, false}, {false, false, true}};
}

// The expected results in double. For each it has the sum of the magnitudes of its terms, from which the tolerance
// follows.
struct Expected {
  int64_t channels;
  std::vector<double> values;
  std::vector<double> magnitudes;

  Expected(int64_t rows, int64_t c)
      : channels(c), values(static_cast<size_t>(rows * c)), magnitudes(static_cast<size_t>(rows * c)) {}
  void Add(int64_t row, int64_t channel, double value) {
    values[static_cast<size_t>(row * channels + channel)] += value;
    magnitudes[static_cast<size_t>(row * channels + channel)] += std::abs(value);
  }
  // Adds the bias and the residual, then applies the ReLU. Both may be null.
  void Finish(const std::vector<float>* bias, const Matrix* residual, bool relu) {
    for (int64_t row = 0; row * channels < static_cast<int64_t>(values.size()); ++row) {
      for (int64_t c = 0; c < channels; ++c) {
        if (bias != nullptr) Add(row, c, (*bias)[static_cast<size_t>(c)]);
        if (residual != nullptr) Add(row, c, residual->at(row, c));
        double& value = values[static_cast<size_t>(row * channels + c)];
        if (relu) value = std::max(value, 0.0);
      }
    }
  }
};

// Expects that `out`, which a kernel computed with features of `dtype`, has the expected values and unchanged margins.
inline void ExpectNear(const Matrix& out, const Expected& expected, DType dtype) {
  for (int64_t row = 0; row < out.rows; ++row) {
    for (int64_t c = 0; c < out.channels; ++c) {
      const auto i = static_cast<size_t>(row * out.channels + c);
      ASSERT_NEAR(out.at(row, c), expected.values[i], Tolerance(dtype, expected.magnitudes[i]))
          << "row " << row << " channel " << c;
    }
  }
  EXPECT_TRUE(out.MarginsAreUntouched());
}

}  // namespace voxserve::kernels
