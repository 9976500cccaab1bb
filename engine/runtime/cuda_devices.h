#pragma once

// ListCudaDevices lists the GPUs on which this process can compute. CurrentDeviceGuard keeps a thread's current GPU.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace voxserve {

struct CudaDevice {
  int ordinal = 0;                 // CUDA's number of the device
  std::string name;                // "NVIDIA H200"
  std::string compute_capability;  // "9.0"
  int64_t memory_bytes = 0;

  std::string id() const;  // "cuda:0"
};

// Returns the GPUs in CUDA's order. The list is empty in a build without CUDA, and if there is no driver or no GPU. If
// there is a driver but CUDA does not start, logs the reason. Allocates nothing on the devices.
std::vector<CudaDevice> ListCudaDevices();

// Returns the version of the CUDA runtime that this build is linked with, "13.0"; "" without CUDA.
std::string CudaVersion();

// Keeps the calling thread's current GPU: the destructor makes that GPU current again which was current before. It is
// for code that runs on other programs' threads, whose libraries use the current GPU too.
// - CUDA makes a context on a GPU that becomes current, which takes some hundred MB of the GPU's memory. So a GPU that
//   the process has no context on does not become current again.
// - It leaves no error for cudaGetLastError, and ignores those of the constructor without a device and of the
//   destructor.
// - It begins CUDA's driver if nothing has, so code that uses no GPU goes without it. Does nothing in a build without
//   CUDA.
class CurrentDeviceGuard {
 public:
  CurrentDeviceGuard();
  // Also makes a device current for the scope. device: CUDA's ordinal. status() has the error if that fails.
  explicit CurrentDeviceGuard(int device);
  ~CurrentDeviceGuard();
  CurrentDeviceGuard(const CurrentDeviceGuard&) = delete;
  CurrentDeviceGuard& operator=(const CurrentDeviceGuard&) = delete;

  const absl::Status& status() const { return status_; }

 private:
  int before_ = -1;  // CUDA's ordinal; -1: none is known
  absl::Status status_;
};

}  // namespace voxserve
