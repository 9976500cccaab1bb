#include "engine/runtime/cuda_devices.h"

#include "absl/strings/str_cat.h"
#include "engine/base/logging.h"
#include "kernels/cuda_stream.h"
#include "kernels/device_code.h"
#if VOXSERVE_CUDA
#include <cuda_runtime_api.h>
#endif

namespace voxserve {

std::string CudaDevice::id() const { return absl::StrCat("cuda:", ordinal); }

#if VOXSERVE_CUDA

std::vector<CudaDevice> ListCudaDevices() {
  std::vector<CudaDevice> devices;
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    cudaGetLastError();
    // No driver at all is how most machines without a GPU answer.
    if (error != cudaErrorNoDevice && error != cudaErrorInsufficientDriver) {
      Log(LogLevel::kWarning, "CUDA does not start", {{"error", cudaGetErrorString(error)}});
    }
    return devices;
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cudaDeviceProp properties{};
    if (const cudaError_t error = cudaGetDeviceProperties(&properties, ordinal); error != cudaSuccess) {
      cudaGetLastError();
      Log(LogLevel::kWarning, "GPU passed over", {{"gpu", ordinal}, {"error", cudaGetErrorString(error)}});
      continue;
    }
    CudaDevice device{.ordinal = ordinal,
                      .name = properties.name,
                      .compute_capability = absl::StrCat(properties.major, ".", properties.minor),
                      .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem)};
    if (!kernels::cuda::HasCodeFor(ordinal)) {
      Log(LogLevel::kWarning, "GPU passed over",
          {{"gpu", device.name},
           {"compute_capability", device.compute_capability},
           {"reason", "this build has no code for it"}});
      continue;
    }
    devices.push_back(std::move(device));
  }
  return devices;
}

std::string CudaVersion() { return absl::StrCat(CUDART_VERSION / 1000, ".", CUDART_VERSION % 1000 / 10); }

#else

std::vector<CudaDevice> ListCudaDevices() { return {}; }
std::string CudaVersion() { return ""; }

#endif

}  // namespace voxserve
