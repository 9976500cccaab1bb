#pragma once

// A matrix of features on a device: a view of rows with a pitch. Whoever made the memory owns it (on a request's path
// the context's arena).
//
// Which coordinates the rows belong to is not part of it: the compiler settles that once per model (a buffer's level in
// graph/program.h), so there is no tensor type that carries coordinates along.

#include <cstdint>

namespace voxserve {

enum class DType : int8_t { kFloat32, kUint8, kUint16 };

// Bytes of one value.
inline int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 4;
    case DType::kUint16:
      return 2;
    case DType::kUint8:
      break;
  }
  return 1;
}

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t rows = 0;
  int32_t channels = 0;
  int64_t pitch = 0;  // values from a row to the next; a column slice has a pitch above its channels

  float* floats() const { return static_cast<float*>(data); }
  int64_t pitch_bytes() const { return pitch * SizeOf(dtype); }
};

}  // namespace voxserve
