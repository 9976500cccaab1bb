#pragma once

// Puts the operands of products in 8 bits on a GPU and compares results with tables of the host. Files that include it
// are compiled without fused multiply-add (int8_testing.h).

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/kernels/int8/int8_testing.h"

namespace voxserve::kernels {

// A table's copy in device memory, with rows after it that no kernel may change.
class DeviceTable {
 public:
  explicit DeviceTable(Int8Table host, int64_t spare_rows = 0)
      : view_(host.View()),
        before_bytes_(host.bytes().empty() ? 0 : static_cast<uint8_t*>(view_.data) - host.bytes().data()),
        bytes_(Device::kCuda, WithSpare(host.bytes(), spare_rows * view_.pitch_bytes())) {
    view_.data = bytes_.data() == nullptr ? nullptr : bytes_.data() + before_bytes_;
  }

  Rows View() const { return view_; }
  std::vector<uint8_t> Bytes() const { return bytes_.ToHost(); }

  // Expects the bytes of another table, and rows after them that are unchanged.
  void ExpectBytes(const Int8Table& expected) const {
    const std::vector<uint8_t> found = bytes_.ToHost();
    const std::vector<uint8_t> wanted =
        WithSpare(expected.bytes(), static_cast<int64_t>(found.size() - expected.bytes().size()));
    const auto [at, _] = std::mismatch(found.begin(), found.end(), wanted.begin());
    if (at == found.end()) return;
    int64_t count = 0;
    for (size_t i = 0; i < found.size(); ++i) count += found[i] != wanted[i] ? 1 : 0;
    const int64_t place = at - found.begin() - before_bytes_;  // the first row's margin is before 0
    FAIL() << count << " of " << found.size() << " bytes differ; the first is byte " << place % view_.pitch_bytes()
           << " of row " << place / view_.pitch_bytes() << ": " << int{*at} << ", expected "
           << int{wanted[static_cast<size_t>(at - found.begin())]};
  }

 private:
  static std::vector<uint8_t> WithSpare(std::vector<uint8_t> bytes, int64_t num_spare) {
    bytes.resize(bytes.size() + static_cast<size_t>(num_spare), kUntouchedByte);
    return bytes;
  }

  Rows view_;
  int64_t before_bytes_;
  DeviceArray<uint8_t> bytes_;
};

// The arrays of an epilogue in device memory.
class DeviceEpilogue {
 public:
  // residual: the device's copy of the epilogue's residual; null: none.
  DeviceEpilogue(const Int8Epilogue& host, int32_t channels, const DeviceTable* residual) : epilogue_(host) {
    for (const float** array :
         {&epilogue_.multiplier, &epilogue_.bias, &epilogue_.residual_scale, &epilogue_.inverse_scale}) {
      if (*array == nullptr) continue;
      const std::vector<float> values(*array, *array + PaddedInt8Channels(channels));
      arrays_.push_back(std::make_unique<DeviceArray<float>>(Device::kCuda, values));
      *array = arrays_.back()->data();
    }
    epilogue_.residual = residual == nullptr ? ConstRows{} : ConstRows(residual->View());
  }
  const Int8Epilogue& get() const { return epilogue_; }

 private:
  Int8Epilogue epilogue_;
  std::vector<std::unique_ptr<DeviceArray<float>>> arrays_;
};

// Types, residuals and activations whose bytes a GPU shares with the CPU.
inline std::vector<Int8Case> DeviceCases() {
  using enum ActivationFunction;
  constexpr DType kU8 = DType::kUint8, kS8 = DType::kInt8, kF32 = DType::kFloat32, kF16 = DType::kFloat16;
  constexpr DType kNoResidual = DType::kUint16;
  return {{.in = kU8, .out = kU8, .bias = true, .residual = kNoResidual, .activation = kRelu, .is_folded = true},
          {.in = kS8, .out = kS8, .bias = false, .residual = kNoResidual, .activation = kNone, .is_folded = true},
          {.in = kU8, .out = kU8, .bias = true, .residual = kS8, .activation = kRelu, .is_folded = true},
          {.in = kS8, .out = kU8, .bias = true, .residual = kU8, .activation = kRelu, .is_folded = true},
          {.in = kS8, .out = kS8, .bias = true, .residual = kU8, .activation = kRelu, .is_folded = true},
          {.in = kU8, .out = kS8, .bias = false, .residual = kS8, .activation = kNone, .is_folded = true},
          {.in = kU8, .out = kU8, .bias = true, .residual = kF16, .activation = kRelu, .is_folded = true},
          {.in = kS8, .out = kS8, .bias = true, .residual = kF32, .activation = kRelu, .is_folded = true},
          {.in = kU8, .out = kF32, .bias = true, .residual = kF16, .activation = kNone},
          {.in = kU8, .out = kU8, .bias = true, .residual = kNoResidual, .activation = kRelu},
          {.in = kS8, .out = kS8, .bias = false, .residual = kNoResidual, .activation = kNone},
          {.in = kU8, .out = kU8, .bias = true, .residual = kS8, .activation = kRelu},
          {.in = kS8, .out = kU8, .bias = false, .residual = kU8, .activation = kRelu},
          {.in = kS8, .out = kS8, .bias = true, .residual = kS8, .activation = kRelu},
          {.in = kU8, .out = kS8, .bias = true, .residual = kU8, .activation = kNone},
          {.in = kU8, .out = kS8, .bias = true, .residual = kS8, .activation = {kLeakyRelu, 0.25f}},
          {.in = kU8, .out = kF32, .bias = true, .residual = kS8, .activation = kRelu},
          {.in = kS8, .out = kF32, .bias = true, .residual = kNoResidual, .activation = kNone}};
}

// Compares 16-bit results with float32's, rounded.
inline void ExpectHalves(const DeviceArray<uint16_t>& found, int64_t pitch, const Int8Table& expected, int64_t num_rows,
                         int32_t channels) {
  const std::vector<uint16_t> halves = found.ToHost();
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int32_t o = 0; o < channels; ++o) {
      ASSERT_EQ(halves[static_cast<size_t>(row * pitch + o)], ToBits(DType::kFloat16, expected.Get(row, o)))
          << "float16, row " << row << " channel " << o;
    }
  }
}

}  // namespace voxserve::kernels
