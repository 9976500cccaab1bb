#pragma once

// A matrix of features on a device: a view of rows with a pitch. Whoever made the memory owns it (on a request's path
// the context's arena).
//
// Which coordinates the rows belong to is not part of it: the compiler settles that once per model (a buffer's level in
// graph/program.h), so there is no tensor type that carries coordinates along.

#include <cstdint>

#include "kernels/core/dtype.h"

namespace voxserve {

using kernels::DType;
using kernels::SizeOf;

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
