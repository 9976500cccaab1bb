// Compares conversions to and from 8 bits on a GPU with those of the CPU, byte by byte.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/conv/int8_epilogue.h"
#include "kernels/int8/int8_rows.h"
#include "tests/kernels/int8/int8_testing.h"

namespace voxserve::kernels::int8_rows_cuda_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kUint8, DType::kInt8};

bool IsInt8(DType dtype) { return SizeOf(dtype) == 1; }
DType TypeOfCpu(DType dtype) { return dtype == DType::kFloat16 ? DType::kFloat32 : dtype; }

// Returns the values of a table in another type, which holds each of them or rounds to it.
Int8Table Copied(const Int8Table& from, DType dtype, int64_t rows, int32_t channels) {
  Int8Table to(dtype, rows, channels, 0, 0);
  for (int64_t row = 0; row < rows; ++row) {
    for (int32_t c = 0; c < channels; ++c) to.Set(row, c, from.Get(row, c));
  }
  return to;
}

struct Columns {
  int32_t before = 0;
  int32_t after = 0;
};

// columns: those of the tables beside the channels. spare_rows: rows beyond those that the device counts.
void Check(DType in_type, DType out_type, int64_t rows, int32_t channels, const Columns& columns, int64_t spare_rows,
           Random& random) {
  SCOPED_TRACE(testing::Message() << NameOf(in_type) << " to " << NameOf(out_type) << ", " << rows << " + "
                                  << spare_rows << " rows of " << channels << " channels, " << columns.before
                                  << " columns before and " << columns.after << " after");
  Int8Table in(in_type, rows + spare_rows, channels, columns.before, columns.after);
  in.Fill(random);
  if (!IsInt8(in_type) && rows > 1 && channels > 3) {
    in.Set(0, 0, std::numeric_limits<float>::quiet_NaN());
    in.Set(0, 1, std::numeric_limits<float>::infinity());
    in.Set(1, 0, -std::numeric_limits<float>::infinity());
    constexpr std::array kTies = {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 126.5f, 127.5f, 254.5f};
    for (int64_t row = 2; row < rows; ++row) in.Set(row, 0, kTies[row % kTies.size()]);
  }
  const std::vector<float> in_scale = Padded(Positive(random, channels, 0.02f));
  std::vector<float> inverse_scale = Padded(Positive(random, channels, 100.0f));
  inverse_scale[0] = 1;  // so that halves are rounded to even

  ThreadPool pool(1);
  Int8Table cpu_in = Copied(in, TypeOfCpu(in_type), rows, channels);
  Int8Table cpu_out(TypeOfCpu(out_type), rows, channels, 0, 0);
  cpu::ConvertInt8Rows(
      {.in = cpu_in.View(), .in_scale = in_scale.data(), .out = cpu_out.View(), .inverse_scale = inverse_scale.data()},
      pool);

  const DeviceArray<uint8_t> device_in(Device::kCuda, in.bytes());
  Int8Table out(out_type, rows + spare_rows, channels, columns.before, columns.after);
  DeviceArray<uint8_t> device_out(Device::kCuda, out.bytes());
  const DeviceArray<float> device_in_scale(Device::kCuda, in_scale), device_inverse(Device::kCuda, inverse_scale);
  const DeviceArray<int64_t> num_rows(Device::kCuda, std::vector<int64_t>{rows});
  const auto on_device = [&](Int8Table& table, uint8_t* data) {
    Rows view = table.View();
    view.data = data == nullptr ? nullptr : data + columns.before * SizeOf(view.dtype);
    view.num_rows = spare_rows > 0 ? num_rows.data() : nullptr;
    return view;
  };
  ExpectCudaSuccess(cuda::ConvertInt8Rows({.in = on_device(in, device_in.data()),
                                           .in_scale = device_in_scale.data(),
                                           .out = on_device(out, device_out.data()),
                                           .inverse_scale = device_inverse.data()},
                                          TestStream()));
  support::Synchronize();
  for (int64_t row = 0; row < rows; ++row) {
    for (int32_t c = 0; c < channels; ++c) out.Set(row, c, cpu_out.Get(row, c));
  }
  const std::vector<uint8_t> found = device_out.ToHost();
  const auto [at, expected] = std::mismatch(found.begin(), found.end(), out.bytes().begin());
  ASSERT_TRUE(at == found.end()) << "byte " << at - found.begin() << " is " << int{*at} << ", expected "
                                 << int{*expected};
}

TEST(Int8RowsCudaTest, HasTheBytesOfTheCpu) {
  SKIP_WITHOUT(Device::kCuda);
  Random random(31);
  for (const DType in : kTypes) {
    for (const DType out : kTypes) {
      if (!IsInt8(in) && !IsInt8(out)) continue;
      for (const int32_t channels : {1, 3, 8, 16, 20, 24, 32, 96, 100, 256, 4800}) {
        const int32_t padding =
            static_cast<int32_t>(PaddedInt8Channels(channels)) - channels;  // as in the engine's buffers
        for (const Columns& columns : {Columns{0, padding}, Columns{16, padding}, Columns{}, Columns{3, 3}}) {
          Check(in, out, channels > 1000 ? 11 : 77, channels, columns, random.OneOf(std::vector<int64_t>{0, 9}),
                random);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
  Check(DType::kFloat16, DType::kUint8, 100'001, 32, {}, 0, random);
  Check(DType::kFloat16, DType::kUint8, 0, 32, {}, 0, random);
}

TEST(Int8RowsCudaTest, RefusesOtherTypes) {
  SKIP_WITHOUT(Device::kCuda);
  const DeviceArray<uint8_t> memory(Device::kCuda, size_t{1024});
  const DeviceArray<float> scale(Device::kCuda, std::vector<float>(16, 1.0f));
  const auto run = [&](DType in, DType out, const float* in_scale, const float* inverse_scale) {
    uint8_t* const data = memory.data();
    const Rows from{.data = data, .dtype = in, .channels = 16, .pitch = 16, .capacity = 4};
    const Rows to{.data = data + 512, .dtype = out, .channels = 16, .pitch = 16, .capacity = 4};
    return cuda::ConvertInt8Rows({.in = from, .in_scale = in_scale, .out = to, .inverse_scale = inverse_scale},
                                 TestStream());
  };
  ExpectCudaSuccess(run(DType::kUint8, DType::kInt8, scale.data(), scale.data()));
  EXPECT_EQ(run(DType::kFloat16, DType::kFloat32, scale.data(), scale.data()), cudaErrorInvalidValue);
  EXPECT_EQ(run(DType::kBfloat16, DType::kUint8, nullptr, scale.data()), cudaErrorInvalidValue);
  EXPECT_EQ(run(DType::kUint16, DType::kUint8, scale.data(), scale.data()), cudaErrorInvalidValue);
  EXPECT_EQ(run(DType::kUint8, DType::kFloat16, nullptr, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(run(DType::kFloat16, DType::kUint8, nullptr, nullptr), cudaErrorInvalidValue);
  support::Synchronize();
}

}  // namespace
}  // namespace voxserve::kernels::int8_rows_cuda_test
