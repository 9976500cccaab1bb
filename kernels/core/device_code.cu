#include <cuda_runtime_api.h>

#include "kernels/core/device_code.h"

namespace voxserve::kernels::cuda {
namespace {

__global__ void ProbeKernel() {}

}  // namespace

bool HasCodeFor(int device) {
  int current = 0;
  if (cudaGetDevice(&current) != cudaSuccess || cudaSetDevice(device) != cudaSuccess) return false;
  cudaFuncAttributes attributes{};
  const bool has_code = cudaFuncGetAttributes(&attributes, ProbeKernel) == cudaSuccess;
  cudaGetLastError();
  return cudaSetDevice(current) == cudaSuccess && has_code;
}

}  // namespace voxserve::kernels::cuda
