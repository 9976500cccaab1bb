#pragma once

// RepeatRows fills `out` with copies of the same rows: out[i] = rows[i mod rows.capacity]. The engine uses it to give
// every sample of a batch the same learned rows.

#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"

namespace voxserve::kernels {

struct RepeatRowsParams {
  ConstRows rows;  // rows.num_rows is not read: all rows.capacity rows exist
  Rows out;        // rows' type and channels; the CPU only supports float32
};
static_assert(std::is_trivially_copyable_v<RepeatRowsParams>);

namespace cpu {

void RepeatRows(const RepeatRowsParams& params);

}  // namespace cpu

namespace cuda {

// Returns cudaErrorInvalidValue if the types differ.
cudaError_t RepeatRows(const RepeatRowsParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
