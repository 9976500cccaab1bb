#pragma once

// The CUDA types in the declarations of cuda:: launchers, and whether this build contains the launchers.
//
// A build without the CUDA toolkit declares the launchers but does not define them: callers test `if constexpr
// (kHasCuda)`.
//
// All launchers in kernels::cuda keep these promises:
// - Pointers in their params point to device memory, unless their comment says otherwise.
// - They return at once if there is nothing to do.
// - They launch on the given stream, never synchronise and never allocate.
// - They return the launch's error, else cudaSuccess.
// - Results are the same bytes in every run.

#if VOXSERVE_CUDA
#include <driver_types.h>
#else
struct CUstream_st;
using cudaStream_t = CUstream_st*;
using cudaError_t = int;
#endif

namespace voxserve::kernels {

#if VOXSERVE_CUDA
inline constexpr bool kHasCuda = true;
#else
inline constexpr bool kHasCuda = false;
#endif

}  // namespace voxserve::kernels
