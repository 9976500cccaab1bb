#pragma once

// The functions of cuBLAS and cuBLASLt that kernels/ calls. The two libraries (0.6 GB) are opened when a process makes
// its first context on a GPU, so that a program without a GPU neither needs them nor waits 0.15 s for them at its
// start.

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#define VOXSERVE_CUBLAS_FUNCTIONS(FUNCTION) \
  FUNCTION(cublasCreate_v2)                 \
  FUNCTION(cublasDestroy_v2)                \
  FUNCTION(cublasSetStream_v2)              \
  FUNCTION(cublasSetWorkspace_v2)           \
  FUNCTION(cublasSetMathMode)               \
  FUNCTION(cublasGemmStridedBatchedEx_64)
#define VOXSERVE_CUBLASLT_FUNCTIONS(FUNCTION)     \
  FUNCTION(cublasLtCreate)                        \
  FUNCTION(cublasLtDestroy)                       \
  FUNCTION(cublasLtMatmul)                        \
  FUNCTION(cublasLtMatmulAlgoGetHeuristic)        \
  FUNCTION(cublasLtMatmulDescInit_internal)       \
  FUNCTION(cublasLtMatmulDescSetAttribute)        \
  FUNCTION(cublasLtMatmulPreferenceInit_internal) \
  FUNCTION(cublasLtMatmulPreferenceSetAttribute)  \
  FUNCTION(cublasLtMatrixLayoutInit_internal)     \
  FUNCTION(cublasLtMatrixLayoutSetAttribute)

namespace voxserve::kernels::cuda {

// Members have the names that the libraries export. (Their headers' names without "_v2" and "_internal" are macros and
// inline functions.)
struct CublasFunctions {
#define VOXSERVE_CUBLAS_MEMBER(name) decltype(&::name) name = nullptr;
  VOXSERVE_CUBLAS_FUNCTIONS(VOXSERVE_CUBLAS_MEMBER)
  VOXSERVE_CUBLASLT_FUNCTIONS(VOXSERVE_CUBLAS_MEMBER)
#undef VOXSERVE_CUBLAS_MEMBER
};

// Returns the functions, which the first call loads. A Gemm exists only where all of them were found (LoadCublas), so
// that its members need not check. Any thread may call it.
const CublasFunctions& Cublas();

// Loads the libraries as the dynamic loader finds them: beside what the program was linked with (its RUNPATH), in
// LD_LIBRARY_PATH, and where the system looks. Returns null, or the loader's message, which names what is missing.
const char* LoadCublas();

}  // namespace voxserve::kernels::cuda
