#pragma once

// Allocates and copies memory on the CPU or the GPU, so that one test body serves both devices.
//
//   class FooTest : public testing::TestWithParam<Device> {};
//   TEST_P(FooTest, Does) {
//     SKIP_WITHOUT(GetParam());
//     DeviceArray<float> in(GetParam(), {1, 2, 3});
//     ...
//   }
//   INSTANTIATE_TEST_SUITE_P(Devices, FooTest, AllDevices(), DeviceName);
//
// Allocations and copies return when they are done. If a CUDA call fails, the test program prints the error and ends.

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "kernels/core/cuda_stream.h"

namespace voxserve::support {

enum class Device { kCpu, kCuda };

// Returns true for the CPU. For CUDA, returns false if the build has no CUDA or no code for the GPU, or if the machine
// has no driver or no GPU.
bool HasDevice(Device device);

inline auto AllDevices() { return ::testing::Values(Device::kCpu, Device::kCuda); }
inline std::string DeviceName(const ::testing::TestParamInfo<Device>& device) {
  return device.param == Device::kCpu ? "Cpu" : "Cuda";
}

#define SKIP_WITHOUT(device)                                                            \
  do {                                                                                  \
    if (!::voxserve::support::HasDevice(device)) GTEST_SKIP() << "no CUDA device here"; \
  } while (false)

// Returns the test program's only CUDA stream; null in a build without CUDA.
cudaStream_t TestStream();
// Waits for TestStream(). Prints the error and ends the program if a kernel failed.
void Synchronize();
void ExpectCudaSuccess(cudaError_t error);

void* AllocateBytes(Device device, size_t bytes);  // filled with 0xCD, so that unwritten values are visible
void FreeBytes(Device device, void* data);
void CopyToDevice(Device device, void* to, const void* from, size_t bytes);
void CopyFromDevice(Device device, void* to, const void* from, size_t bytes);  // waits for TestStream() first

// Owns an array on a device. The elements are those of `values`, or undefined.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(Device device, size_t size)
      : device_(device), size_(size), data_(AllocateBytes(device, size * sizeof(T))) {}
  DeviceArray(Device device, const std::vector<T>& values) : DeviceArray(device, values.size()) {
    CopyToDevice(device_, data_, values.data(), size_ * sizeof(T));
  }
  ~DeviceArray() { FreeBytes(device_, data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return static_cast<T*>(data_); }
  size_t size() const { return size_; }
  std::vector<T> ToHost() const {
    std::vector<T> values(size_);
    CopyFromDevice(device_, values.data(), data_, size_ * sizeof(T));
    return values;
  }

 private:
  Device device_;
  size_t size_;
  void* data_;
};

}  // namespace voxserve::support
