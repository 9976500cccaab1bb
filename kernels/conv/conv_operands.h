#pragma once

// What every dataflow of a sparse convolution multiplies: out[o] = epilogue(sum over pairs (k, i, o) of in[i] W_k).
// Which pairs there are is said by the view of the map that stands beside it in the dataflow's params.

#include <type_traits>

#include "kernels/core/epilogue.h"
#include "kernels/core/rows.h"

namespace voxserve::kernels {

struct ConvOperands {
  ConstRows in;                   // [num_in_rows, in channels]
  Rows out;                       // [num_out_rows, out channels]; must not overlap `in`, may be the residual itself
  const void* weights = nullptr;  // of [K, in channels, out channels] in in.dtype, as the dataflow packs them
  Epilogue epilogue;              // residual in in.dtype
};
static_assert(std::is_trivially_copyable_v<ConvOperands>);

}  // namespace voxserve::kernels
