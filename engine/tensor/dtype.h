#pragma once

// This header gives the engine short names for the data types of matrices. The matrices are kernels::Rows
// (kernels/core/rows.h). A matrix does not say which coordinates its rows belong to: the compiler decides that once per
// model (Buffer::level in engine/ops/step.h).

#include "kernels/core/dtype.h"

namespace voxserve {

using kernels::DType;
using kernels::SizeOf;

}  // namespace voxserve
