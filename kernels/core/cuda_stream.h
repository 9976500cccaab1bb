#pragma once

// This header declares the CUDA types that the launchers' declarations need, and says whether this build contains the
// launchers. A launcher is a function in kernels::cuda that launches kernels on a stream.
//
// A build without the CUDA toolkit declares the launchers but does not define them. So callers test `if constexpr
// (kHasCuda)`.
//
// All launchers follow this contract, unless their own comment says otherwise:
// - Pointers in their params point to device memory.
// - They return cudaSuccess at once if there is nothing to compute.
// - They queue their work on the given stream, never wait for it (a debug build does, see launch.cuh) and never
//   allocate.
// - They return cudaErrorInvalidValue for arguments that their comment names, CUDA's error if a launch fails, and
//   cudaSuccess otherwise.
// - They give the same bytes as results in every run.

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
