#pragma once

// DType is the data type of the values of a tensor. Networks compute on float32, float16 and bfloat16, and on a CPU on
// kUint8 and kInt8 too (kernels/int8); kUint8 and kUint16 are types of labels.

#include <cstdint>

namespace voxserve::kernels {

enum class DType : int8_t { kFloat32, kFloat16, kBfloat16, kUint8, kUint16, kInt8 };

// Returns the bytes of one value.
constexpr int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 4;
    case DType::kFloat16:
    case DType::kBfloat16:
    case DType::kUint16:
      return 2;
    case DType::kUint8:
    case DType::kInt8:
      break;
  }
  return 1;
}

constexpr const char* NameOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kFloat16:
      return "float16";
    case DType::kBfloat16:
      return "bfloat16";
    case DType::kUint8:
      return "uint8";
    case DType::kInt8:
      return "int8";
    case DType::kUint16:
      break;
  }
  return "uint16";
}

}  // namespace voxserve::kernels
