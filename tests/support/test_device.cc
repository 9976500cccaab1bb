#include "tests/support/test_device.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#if VOXSERVE_CUDA
#include <cuda_runtime_api.h>

#include "kernels/core/device_code.h"
#endif

namespace voxserve::support {
namespace {

constexpr int kRubbish = 0xCD;

}  // namespace

#if VOXSERVE_CUDA

bool HasDevice(Device device) {
  static const bool has_gpu = [] {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0 && kernels::cuda::HasCodeFor(0);
  }();
  return device == Device::kCpu || has_gpu;
}

void ExpectCudaSuccess(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s: %s\n", cudaGetErrorName(error), cudaGetErrorString(error));
  std::abort();
}

cudaStream_t TestStream() {
  static const cudaStream_t stream = [] {
    cudaStream_t made = nullptr;
    if (HasDevice(Device::kCuda)) ExpectCudaSuccess(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
    return made;
  }();
  return stream;
}

void Synchronize() {
  if (HasDevice(Device::kCuda)) ExpectCudaSuccess(cudaStreamSynchronize(TestStream()));
}

#else

bool HasDevice(Device device) { return device == Device::kCpu; }
void ExpectCudaSuccess(cudaError_t) {}
cudaStream_t TestStream() { return nullptr; }
void Synchronize() {}

#endif

void* AllocateBytes(Device device, size_t bytes) {
  void* data = nullptr;
  if (bytes == 0) return data;
#if VOXSERVE_CUDA
  if (device == Device::kCuda) {
    ExpectCudaSuccess(cudaMalloc(&data, bytes));
    ExpectCudaSuccess(cudaMemset(data, kRubbish, bytes));
    ExpectCudaSuccess(cudaDeviceSynchronize());
    return data;
  }
#endif
  static_cast<void>(device);
  data = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(data, kRubbish, bytes);
  return data;
}

void FreeBytes(Device device, void* data) {
  if (data == nullptr) return;
#if VOXSERVE_CUDA
  if (device == Device::kCuda) {
    ExpectCudaSuccess(cudaFree(data));
    return;
  }
#endif
  static_cast<void>(device);
  std::free(data);
}

void CopyToDevice(Device device, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
#if VOXSERVE_CUDA
  if (device == Device::kCuda) {
    ExpectCudaSuccess(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
    // A copy from pageable memory may still run on the legacy default stream, for which TestStream() does not wait.
    return ExpectCudaSuccess(cudaDeviceSynchronize());
  }
#endif
  static_cast<void>(device);
  std::memcpy(to, from, bytes);
}

void CopyFromDevice(Device device, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
#if VOXSERVE_CUDA
  if (device == Device::kCuda) {
    Synchronize();
    return ExpectCudaSuccess(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
  }
#endif
  static_cast<void>(device);
  std::memcpy(to, from, bytes);
}

}  // namespace voxserve::support
