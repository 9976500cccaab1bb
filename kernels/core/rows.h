#pragma once

// Rows and ConstRows are views of a matrix: rows of values, a pitch apart. Kernels take every matrix as one of these
// views. The matrix is in GPU memory for functions in the namespace cuda, and in host memory for functions in cpu.
//
// - A view owns nothing. The owner of the memory keeps it until the kernel that uses the view has ended.
// - `capacity` is the number of rows that the memory has room for. If only the GPU knows how many rows exist,
//   `num_rows` points to that number. Kernels do not change the rows after it, unless their comment says so.
// - A view whose pitch is larger than its number of channels is a slice of the columns of a wider matrix.

#include <cstdint>
#include <type_traits>

#include "kernels/core/dtype.h"

namespace voxserve::kernels {

// Rows that a kernel reads.
struct ConstRows {
  const void* data = nullptr;  // [capacity, channels], rows pitch apart
  DType dtype = DType::kFloat32;
  int32_t channels = 0;
  int64_t pitch = 0;                  // values from one row to the next
  int64_t capacity = 0;               // rows
  const int64_t* num_rows = nullptr;  // [1] in device memory; null: capacity rows exist

  // Returns a view of rows without gaps.
  static constexpr ConstRows Packed(const void* data, DType dtype, int64_t capacity, int32_t channels) {
    return {.data = data, .dtype = dtype, .channels = channels, .pitch = channels, .capacity = capacity};
  }
  // Returns the address of a row of float32 values.
  const float* floats(int64_t row = 0) const { return static_cast<const float*>(data) + row * pitch; }
  int64_t pitch_bytes() const { return pitch * SizeOf(dtype); }
  // Returns rows [begin, end), all of which must exist.
  ConstRows RowRange(int64_t begin, int64_t end) const {
    return {.data = static_cast<const char*>(data) + begin * pitch_bytes(),
            .dtype = dtype,
            .channels = channels,
            .pitch = pitch,
            .capacity = end - begin};
  }
  // Returns columns [first, first + count).
  ConstRows Columns(int32_t first, int32_t count) const {
    return {.data = data == nullptr ? nullptr : static_cast<const char*>(data) + first * SizeOf(dtype),
            .dtype = dtype,
            .channels = count,
            .pitch = pitch,
            .capacity = capacity,
            .num_rows = num_rows};
  }
};
static_assert(std::is_trivially_copyable_v<ConstRows>);

// Rows that a kernel writes.
struct Rows {
  void* data = nullptr;  // [capacity, channels], rows pitch apart
  DType dtype = DType::kFloat32;
  int32_t channels = 0;
  int64_t pitch = 0;                  // values from one row to the next
  int64_t capacity = 0;               // rows
  const int64_t* num_rows = nullptr;  // [1] in device memory; null: capacity rows exist

  static constexpr Rows Packed(void* data, DType dtype, int64_t capacity, int32_t channels) {
    return {.data = data, .dtype = dtype, .channels = channels, .pitch = channels, .capacity = capacity};
  }
  float* floats(int64_t row = 0) const { return static_cast<float*>(data) + row * pitch; }
  int64_t pitch_bytes() const { return pitch * SizeOf(dtype); }
  Rows RowRange(int64_t begin, int64_t end) const {
    return {.data = static_cast<char*>(data) + begin * pitch_bytes(),
            .dtype = dtype,
            .channels = channels,
            .pitch = pitch,
            .capacity = end - begin};
  }
  operator ConstRows() const {  // NOLINT(google-explicit-constructor): rows that may be written may be read
    return {
        .data = data, .dtype = dtype, .channels = channels, .pitch = pitch, .capacity = capacity, .num_rows = num_rows};
  }
};
static_assert(std::is_trivially_copyable_v<Rows>);

}  // namespace voxserve::kernels
