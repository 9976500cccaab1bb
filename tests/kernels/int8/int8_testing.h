#pragma once

// Makes the operands of products in 8 bits, and computes what the epilogue makes of exact sums. Tests of products
// compare bytes with it, so that files that include it are compiled without fused multiply-add.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/int8/int8_product.h"
#include "tests/kernels/core/feature_testing.h"

namespace voxserve::kernels {

inline constexpr uint8_t kUntouchedByte = 0xa5;

// Rows of float32, float16, uint8 or int8 with columns before and after them that no kernel may change.
class Int8Table {
 public:
  Int8Table(DType dtype, int64_t rows, int32_t channels, int32_t before, int32_t after)
      : dtype_(dtype), rows_(rows), channels_(channels), before_(before), pitch_(before + channels + after) {
    bytes_.assign(static_cast<size_t>(rows * pitch_ * SizeOf(dtype)), kUntouchedByte);
  }

  Rows View() {
    return {.data = bytes_.empty() ? nullptr : bytes_.data() + before_ * SizeOf(dtype_),
            .dtype = dtype_,
            .channels = channels_,
            .pitch = pitch_,
            .capacity = rows_};
  }
  float Get(int64_t row, int32_t c) const {
    const uint8_t* const at = At(row, c);
    if (dtype_ == DType::kUint8) return *at;
    if (dtype_ == DType::kInt8) return static_cast<int8_t>(*at);
    if (dtype_ == DType::kFloat16) {
      uint16_t bits;
      std::memcpy(&bits, at, sizeof(bits));
      return FromBits(dtype_, bits);
    }
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  void Set(int64_t row, int32_t c, float value) {
    uint8_t* const at = const_cast<uint8_t*>(At(row, c));
    if (dtype_ == DType::kFloat32) {
      std::memcpy(at, &value, sizeof(value));
    } else if (dtype_ == DType::kFloat16) {
      const uint16_t bits = ToBits(dtype_, value);
      std::memcpy(at, &bits, sizeof(bits));
    } else {
      *at = static_cast<uint8_t>(static_cast<int32_t>(value));
    }
  }
  // Fills the table with random values of its type's whole range; floats are within 4.
  void Fill(Random& random) {
    const std::vector<float> unit = random.Floats(rows_ * channels_);
    const auto [least, largest] = dtype_ == DType::kUint8  ? std::pair(0.0f, 255.0f)
                                  : dtype_ == DType::kInt8 ? std::pair(-127.0f, 127.0f)
                                                           : std::pair(-4.0f, 4.0f);
    for (int64_t row = 0; row < rows_; ++row) {
      for (int32_t c = 0; c < channels_; ++c) {
        const float value = least + (unit[static_cast<size_t>(row * channels_ + c)] + 1) / 2 * (largest - least);
        Set(row, c, SizeOf(dtype_) > 1 ? value : std::nearbyint(value));
      }
    }
  }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  const uint8_t* At(int64_t row, int32_t c) const {
    return bytes_.data() + (row * pitch_ + before_ + c) * SizeOf(dtype_);
  }

  DType dtype_;
  int64_t rows_;
  int32_t channels_, before_;
  int64_t pitch_;
  std::vector<uint8_t> bytes_;
};

// Returns the whole number that a value becomes in uint8 or int8.
inline float RoundedToInt8(DType dtype, float value) {
  const float least = dtype == DType::kInt8 ? -127.0f : 0.0f;
  const float largest = dtype == DType::kInt8 ? 127.0f : 255.0f;
  return std::nearbyint(std::fmin(std::fmax(value, least), largest));
}

// Arrays of the epilogue, padded.
inline std::vector<float> Padded(std::vector<float> values) {
  values.resize(static_cast<size_t>(PaddedInt8Channels(static_cast<int64_t>(values.size()))));
  return values;
}

inline std::vector<float> Positive(Random& random, int64_t count, float largest) {
  std::vector<float> values = random.Floats(count);
  for (float& value : values) value = (std::fabs(value) + 0.01f) * largest;
  return values;
}

inline std::vector<int8_t> RandomWeights(Random& random, int64_t count) {
  std::vector<int8_t> weights;
  for (const float value : random.Floats(count)) weights.push_back(static_cast<int8_t>(std::nearbyint(value * 127)));
  return weights;
}

// The types of a product's operands, and its epilogue.
struct Int8Case {
  DType in = DType::kUint8;
  DType out = DType::kUint8;
  bool bias = false;
  DType residual = DType::kUint16;  // none
  Activation activation;
  bool is_folded = false;  // the output's scale is part of the other arrays, as the engine has it behind ReLU
};

inline std::vector<Int8Case> Cases() {
  return {{.in = DType::kUint8, .out = DType::kUint8, .bias = true, .activation = ActivationFunction::kRelu},
          {.in = DType::kInt8, .out = DType::kInt8},
          {.in = DType::kUint8, .out = DType::kFloat32, .bias = true, .residual = DType::kInt8},
          {.in = DType::kInt8,
           .out = DType::kUint8,
           .bias = true,
           .residual = DType::kUint8,
           .activation = ActivationFunction::kRelu},
          {.in = DType::kInt8,
           .out = DType::kInt8,
           .residual = DType::kFloat32,
           .activation = {ActivationFunction::kLeakyRelu, 0.25f}},
          {.in = DType::kUint8,
           .out = DType::kFloat32,
           .residual = DType::kFloat32,
           .activation = ActivationFunction::kSigmoid},
          {.in = DType::kUint8,
           .out = DType::kUint8,
           .bias = true,
           .residual = DType::kFloat32,
           .activation = ActivationFunction::kRelu,
           .is_folded = true},
          {.in = DType::kUint8, .out = DType::kInt8, .bias = true, .residual = DType::kUint8, .is_folded = true}};
}

// The operands of one case, and what the epilogue must make of exact sums.
class Int8Product {
 public:
  // is_aligned: rows of output and residual begin at multiples of 16 values; else they do not.
  Int8Product(const Int8Case& c, int64_t rows, int32_t in_channels, int32_t out_channels, int32_t num_offsets,
              Random& random, bool is_aligned = false)
      : case_(c), rows_(rows), out_channels_(out_channels), in_channels_(in_channels), is_aligned_(is_aligned) {
    weights_ = RandomWeights(random, int64_t{num_offsets} * in_channels * out_channels);
    const float typical = 255.0f * 127.0f * std::sqrt(static_cast<float>(num_offsets * in_channels));
    multiplier_ = Padded(Positive(random, out_channels, 4 / typical));
    bias_ = Padded(random.Floats(out_channels));
    residual_scale_ = Padded(Positive(random, out_channels, 0.02f));
    inverse_scale_ = Padded(Positive(random, out_channels, 200.0f));
    if (c.is_folded) {
      if (SizeOf(c.residual) > 1) residual_scale_ = Padded(std::vector<float>(residual_scale_.size(), 1.0f));
      for (std::vector<float>* const values : {&multiplier_, &bias_, &residual_scale_}) {
        for (size_t i = 0; i < values->size(); ++i) (*values)[i] *= inverse_scale_[i];
      }
      inverse_scale_.assign(inverse_scale_.size(), 1.0f);
    }
    if (c.residual != DType::kUint16) {
      residual_.push_back(is_aligned ? Aligned(c.residual) : Int8Table(c.residual, rows, out_channels, 1, 2));
      residual_.front().Fill(random);
    }
  }

  Int8Epilogue Epilogue() {
    Int8Epilogue epilogue{.multiplier = multiplier_.data(),
                          .bias = case_.bias ? bias_.data() : nullptr,
                          .activation = case_.activation,
                          .inverse_scale = case_.is_folded ? nullptr : inverse_scale_.data()};
    if (!residual_.empty()) {
      epilogue.residual = residual_.front().View();
      if (HasResidualScale(case_.residual)) epilogue.residual_scale = residual_scale_.data();
    }
    return epilogue;
  }
  // The first weight of an input channel of an offset.
  const int8_t* Weights(int32_t offset, int32_t i) const {
    return weights_.data() + (int64_t{offset} * in_channels_ + i) * out_channels_;
  }
  const std::vector<int8_t>& weights() const { return weights_; }
  // Returns null if there is no residual.
  const Int8Table* residual() const { return residual_.empty() ? nullptr : &residual_.front(); }

  // Writes what sums [rows, out_channels] become.
  Int8Table Finish(const std::vector<int64_t>& sums) {
    Int8Table out = Out();
    for (int64_t row = 0; row < rows_; ++row) {
      for (int32_t c = 0; c < out_channels_; ++c) {
        const auto channel = static_cast<size_t>(c);
        const int64_t sum = sums[static_cast<size_t>(row * out_channels_ + c)];
        EXPECT_LE(std::abs(sum), std::numeric_limits<int32_t>::max());
        float value = static_cast<float>(static_cast<int32_t>(sum)) * multiplier_[channel];
        if (case_.bias) value += bias_[channel];
        if (!residual_.empty()) {
          float residual = residual_.front().Get(row, c);
          if (HasResidualScale(case_.residual)) residual *= residual_scale_[channel];
          value += residual;
        }
        value = Activate(case_.activation, value);
        if (case_.out != DType::kFloat32) {
          value = RoundedToInt8(case_.out, value * inverse_scale_[channel]);
        }
        out.Set(row, c, value);
      }
    }
    return out;
  }
  Int8Table Out() const { return is_aligned_ ? Aligned(case_.out) : Int8Table(case_.out, rows_, out_channels_, 3, 2); }

 private:
  // A float residual has a scale only where that of the output is part of it.
  bool HasResidualScale(DType residual) const { return case_.is_folded || SizeOf(residual) == 1; }
  Int8Table Aligned(DType dtype) const {
    return {dtype, rows_, out_channels_, 16, static_cast<int32_t>(PaddedInt8Channels(out_channels_)) - out_channels_};
  }

  const Int8Case case_;
  const int64_t rows_;
  const int32_t out_channels_, in_channels_;
  const bool is_aligned_;
  std::vector<int8_t> weights_;
  std::vector<float> multiplier_, bias_, residual_scale_, inverse_scale_;
  std::vector<Int8Table> residual_;  // one or none
};

}  // namespace voxserve::kernels
