#pragma once

// The CUDA types that declarations of cuda:: launchers name, and whether this build has the launchers.
//
// A build without the CUDA toolkit declares them all the same and defines none: callers ask `if constexpr (kHasCuda)`.
//
// What all launchers in kernels::cuda promise: every pointer of their params is device memory unless it says otherwise;
// they return at once where there is nothing to do; they launch on the given stream, never synchronise and never
// allocate; they return the launch's error, cudaSuccess otherwise. Results are the same bytes in every run.

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
