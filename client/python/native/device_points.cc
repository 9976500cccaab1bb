#include "client/python/native/device_points.h"

#ifdef VOXSERVE_CUDA
#include <cuda_runtime.h>

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_devices.h"
#include "engine/runtime/cuda_status.h"
#endif

namespace voxserve {

#ifdef VOXSERVE_CUDA
absl::StatusOr<uintptr_t> DevicePoints::stream(int device) {
  const CurrentDeviceGuard guard;
  absl::MutexLock lock(&mutex_);
  auto found = streams_.find(device);
  if (found == streams_.end()) {
    ASSIGN_OR_RETURN(Stream made, Stream::CreateOn(device));
    found = streams_.emplace(device, std::move(made)).first;
  }
  return reinterpret_cast<uintptr_t>(found->second.view().get());
}

absl::Status DevicePoints::Copy(int device, const void* from, int64_t bytes, void* to) {
  absl::MutexLock lock(&mutex_);
  const auto found = streams_.find(device);
  if (found == streams_.end()) return absl::FailedPreconditionError("no stream was asked for on this device");
  const CurrentDeviceGuard guard(device);
  RETURN_IF_ERROR(guard.status());
  const StreamView view = found->second.view();
  RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, view.get()));
  return view.Synchronize();
}
#else
absl::StatusOr<uintptr_t> DevicePoints::stream(int /*device*/) {
  return absl::UnimplementedError(
      "the points are on a GPU, and this build of voxserve is without CUDA; copy them to "
      "host memory first (tensor.cpu())");
}

absl::Status DevicePoints::Copy(int device, const void* /*from*/, int64_t /*bytes*/, void* /*to*/) {
  return stream(device).status();
}
#endif

}  // namespace voxserve
