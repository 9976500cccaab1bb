#pragma once

// Lists the GPUs that this process can compute on.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace voxserve {

struct CudaDevice {
  int ordinal = 0;                 // CUDA's number of the device
  std::string name;                // "NVIDIA H200"
  std::string compute_capability;  // "9.0"
  int64_t memory_bytes = 0;

  std::string id() const;  // "cuda:0"
};

// Returns the GPUs in CUDA's order. Empty in a build without CUDA and where there is no driver or no GPU. If there is a
// driver that fails to start, logs why. Allocates nothing on the devices.
std::vector<CudaDevice> ListCudaDevices();

// Returns the version of the CUDA runtime that this build is linked with, "13.0"; "" without CUDA.
std::string CudaVersion();

}  // namespace voxserve
