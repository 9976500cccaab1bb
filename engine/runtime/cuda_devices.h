#pragma once

// The GPUs that this process can compute on.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace voxserve {

struct CudaDevice {
  int ordinal = 0;                 // CUDA's
  std::string name;                // "NVIDIA H200"
  std::string compute_capability;  // "9.0"
  int64_t memory_bytes = 0;

  std::string id() const;  // "cuda:0"
};

// In CUDA's order. Empty in a build without CUDA, and where there is no driver or no GPU; where there is a driver that
// does not do, why is logged. Nothing is allocated on the devices.
std::vector<CudaDevice> ListCudaDevices();

// The version of the CUDA runtime that this build is linked with, "13.0"; "" without CUDA.
std::string CudaVersion();

}  // namespace voxserve
