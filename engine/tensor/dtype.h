#pragma once

// The engine's short names for the data types of matrices. The matrices are kernels::Rows (kernels/core/rows.h). A
// matrix does not say which coordinates its rows belong to: the compiler decides that once per model (a buffer's level
// in compiler/program.h).

#include "kernels/core/dtype.h"

namespace voxserve {

using kernels::DType;
using kernels::SizeOf;

}  // namespace voxserve
