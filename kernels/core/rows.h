#pragma once

// A matrix in a device's memory: rows of values, a pitch apart. Kernels take every matrix as one of these two views.
//
// - A view owns nothing; whoever made the memory keeps it alive until the stream has passed the kernel.
// - `capacity` is the number of rows that the memory holds. How many of them are there may be known to the device
//   alone: then `num_rows` says where. Kernels leave the rows behind those as they are, unless they say otherwise.
// - A slice of columns is a view whose pitch is above its channels.

#include <cstdint>
#include <type_traits>

#include "kernels/core/dtype.h"

namespace voxserve::kernels {

// Rows that a kernel reads.
struct ConstRows {
  const void* data = nullptr;  // [capacity, channels], rows pitch apart
  DType dtype = DType::kFloat32;
  int32_t channels = 0;
  int64_t pitch = 0;                  // values from a row to the next
  int64_t capacity = 0;               // rows
  const int64_t* num_rows = nullptr;  // [1] in the device's memory; null: capacity

  // Rows without anything between them.
  static constexpr ConstRows Packed(const void* data, DType dtype, int64_t capacity, int32_t channels) {
    return {.data = data, .dtype = dtype, .channels = channels, .pitch = channels, .capacity = capacity};
  }
  // A row of float32 values.
  const float* floats(int64_t row = 0) const { return static_cast<const float*>(data) + row * pitch; }
  int64_t pitch_bytes() const { return pitch * SizeOf(dtype); }
  // Rows [begin, end), all of which are there.
  ConstRows RowRange(int64_t begin, int64_t end) const {
    return {.data = static_cast<const char*>(data) + begin * pitch_bytes(),
            .dtype = dtype,
            .channels = channels,
            .pitch = pitch,
            .capacity = end - begin};
  }
  // Columns [first, first + count).
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
  int64_t pitch = 0;                  // values from a row to the next
  int64_t capacity = 0;               // rows
  const int64_t* num_rows = nullptr;  // [1] in the device's memory; null: capacity

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
  operator ConstRows() const {  // NOLINT(google-explicit-constructor): whoever may write may read
    return {
        .data = data, .dtype = dtype, .channels = channels, .pitch = pitch, .capacity = capacity, .num_rows = num_rows};
  }
};
static_assert(std::is_trivially_copyable_v<Rows>);

}  // namespace voxserve::kernels
