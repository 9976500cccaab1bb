#pragma once

// The engine's short names for the types of values in a matrix. The matrices themselves are kernels::Rows
// (kernels/core/rows.h). Which coordinates their rows belong to is no part of them: the compiler settles that once for
// a model (a buffer's level in compiler/program.h).

#include "kernels/core/dtype.h"

namespace voxserve {

using kernels::DType;
using kernels::SizeOf;

}  // namespace voxserve
