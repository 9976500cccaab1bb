#pragma once

// Writes the same rows again and again: out[i] = rows[i mod the number of rows]. It is used for learned rows, which
// every sample of a batch gets.

#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"

namespace voxserve::kernels {

struct RepeatRowsParams {
  ConstRows rows;  // all `capacity` of them exist
  Rows out;        // rows' type and channels; float32 only on the CPU
};
static_assert(std::is_trivially_copyable_v<RepeatRowsParams>);

namespace cpu {

void RepeatRows(const RepeatRowsParams& params);

}  // namespace cpu

namespace cuda {

cudaError_t RepeatRows(const RepeatRowsParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
