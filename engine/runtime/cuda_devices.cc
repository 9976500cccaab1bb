#include "engine/runtime/cuda_devices.h"

#include "absl/strings/str_cat.h"
#include "engine/base/logging.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/core/cuda_stream.h"
#if VOXSERVE_CUDA
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#endif

namespace voxserve {

std::string CudaDevice::id() const { return absl::StrCat("cuda:", ordinal); }

#if VOXSERVE_CUDA

namespace {

// Returns the text of a version in CUDA's encoding: "13.0" for 13000.
std::string VersionText(int version) { return absl::StrCat(version / 1000, ".", version % 1000 / 10); }

// Returns true if the process has a context on the device, so that cudaSetDevice makes none. Also true if the driver
// does not tell.
bool HasContext(int device) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  constexpr unsigned int kSince = 7000;  // the CUDA version whose cuDevicePrimaryCtxGetState this is
  if (cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &function, kSince, cudaEnableDefault, &found) !=
          cudaSuccess ||
      found != cudaDriverEntryPointSuccess) {
    cudaGetLastError();
    return true;
  }
  unsigned int flags = 0;
  int is_active = 0;
  const auto get_state = reinterpret_cast<PFN_cuDevicePrimaryCtxGetState_v7000>(function);
  return get_state(device, &flags, &is_active) != CUDA_SUCCESS || is_active != 0;
}

}  // namespace

std::string CudaVersion() { return VersionText(CUDART_VERSION); }

std::vector<CudaDevice> ListCudaDevices() {
  std::vector<CudaDevice> devices;
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    cudaGetLastError();
    // Logs only if a driver exists: most machines without a GPU have no driver.
    int driver = 0;
    const bool has_driver = cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0;
    if (has_driver && error != cudaErrorNoDevice) {
      Log(LogLevel::kWarning, "CUDA does not start",
          {{"error", cudaGetErrorString(error)},
           {"driver_for_cuda", VersionText(driver)},
           {"built_with", CudaVersion()}});
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
    devices.push_back(std::move(device));
  }
  return devices;
}

CurrentDeviceGuard::CurrentDeviceGuard() {
  if (cudaGetDevice(&before_) == cudaSuccess) return;
  cudaGetLastError();
  before_ = -1;
}

CurrentDeviceGuard::CurrentDeviceGuard(int device) : CurrentDeviceGuard() {
  status_ = CudaStatus(cudaSetDevice(device), "cudaSetDevice");
}

CurrentDeviceGuard::~CurrentDeviceGuard() {
  int now = -1;
  if (before_ < 0) return;
  if (cudaGetDevice(&now) != cudaSuccess) {
    cudaGetLastError();
  } else if (now != before_ && HasContext(before_)) {
    CudaStatus(cudaSetDevice(before_), "cudaSetDevice").IgnoreError();
  }
}

#else

std::vector<CudaDevice> ListCudaDevices() { return {}; }
std::string CudaVersion() { return ""; }
CurrentDeviceGuard::CurrentDeviceGuard() = default;
CurrentDeviceGuard::CurrentDeviceGuard(int /*device*/) {}
CurrentDeviceGuard::~CurrentDeviceGuard() = default;

#endif

}  // namespace voxserve
