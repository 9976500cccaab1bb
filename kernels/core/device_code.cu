#include <cuda_runtime_api.h>

#include <atomic>

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

int CodeVersion() {
  static std::atomic<int> versions[kMaxDevices] = {};
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  int version = device < kMaxDevices ? versions[device].load(std::memory_order_relaxed) : 0;
  if (version != 0) return version;
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, ProbeKernel) == cudaSuccess) version = attributes.ptxVersion;
  cudaGetLastError();
  if (device < kMaxDevices) versions[device].store(version, std::memory_order_relaxed);
  return version;
}

int NumSms() {
  static std::atomic<int> counts[kMaxDevices] = {};
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  int count = device < kMaxDevices ? counts[device].load(std::memory_order_relaxed) : 0;
  if (count != 0) return count;
  if (cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return 0;
  if (device < kMaxDevices) counts[device].store(count, std::memory_order_relaxed);
  return count;
}

}  // namespace voxserve::kernels::cuda
