#pragma once

// This header describes matrices and images to Hopper's tensor copies (CUDA driver API, cuTensorMapEncodeTiled and
// cuTensorMapEncodeIm2col). Only .cu files include it.

#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

namespace voxserve::kernels::cuda {

// Returns a function of the driver that makes descriptions, which the program does not link; null if the driver has
// none.
template <typename Function>
Function FindMapFunction(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  constexpr unsigned int kSince = 12000;  // the CUDA version of these functions
  if (cudaGetDriverEntryPointByVersion(name, &function, kSince, cudaEnableDefault, &found) != cudaSuccess) {
    cudaGetLastError();  // so that the next launch does not report this error
    return nullptr;
  }
  return found == cudaDriverEntryPointSuccess ? reinterpret_cast<Function>(function) : nullptr;
}

// The type of the values. Copies do not interpret numbers of 8 bits, so int8 is copied as uint8.
template <typename T>
inline constexpr CUtensorMapDataType kTensorMapType = sizeof(T) == 1              ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                                      : std::is_same_v<T, __half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                                                  : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;

// Starts a tensor copy of a box of images: channels from `channel` on, of the positions from (column, row) of an image
// on, possibly outside of it. The barrier (barriers.cuh) counts the bytes. It exists from sm_90 on, and the caller
// guards the code.
__device__ inline void CopyImageBox(uint32_t to, const CUtensorMap& map, int32_t channel, int32_t column, int32_t row,
                                    int32_t image, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];\n" ::"r"(to),
      "l"(&map), "r"(channel), "r"(column), "r"(row), "r"(image), "r"(barrier)
      : "memory");
}

}  // namespace voxserve::kernels::cuda
