#include "engine/runtime/devices.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/base/logging.h"
#include "engine/base/numbers.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_devices.h"
#include "kernels/core/device_code.h"

namespace voxserve {
namespace {

constexpr int64_t kSweepsShare = 4;  // sweeps may hold a quarter of a GPU's memory

absl::StatusOr<Device> OpenGpu([[maybe_unused]] const CudaDevice& gpu, [[maybe_unused]] int64_t memory_limit_bytes) {
  if constexpr (kernels::kHasCuda) {
    Device device{.id = gpu.id(), .name = gpu.name, .compute_capability = gpu.compute_capability};
    ASSIGN_OR_RETURN(device.pool, DevicePool::Create({.device = gpu.ordinal, .limit_bytes = memory_limit_bytes}));
    ASSIGN_OR_RETURN(Stream stream, Stream::CreateOn(gpu.ordinal));
    device.loading = std::make_unique<Stream>(std::move(stream));
    ASSIGN_OR_RETURN(device.copies, DeviceCopies::Create(device.pool.get(), device.pool->limit_bytes() / kSweepsShare));
    return device;
  } else {
    return absl::InternalError("this build has no CUDA");
  }
}

bool HasCodeFor([[maybe_unused]] const CudaDevice& gpu) {
  if constexpr (kernels::kHasCuda) return kernels::cuda::HasCodeFor(gpu.ordinal);
  return false;
}

absl::StatusOr<std::vector<CudaDevice>> Select(std::string_view wanted, const std::vector<CudaDevice>& gpus) {
  std::vector<CudaDevice> selected;
  for (const absl::string_view piece : absl::StrSplit(absl::string_view(wanted.data(), wanted.size()), ',')) {
    const std::string id(piece);
    int ordinal = 0;
    if (id.rfind("cuda:", 0) != 0 || !ParseInteger(id.substr(5), &ordinal) || id != absl::StrCat("cuda:", ordinal) ||
        ordinal < 0) {
      return absl::InvalidArgumentError(absl::StrCat("device \"", id, "\" is neither cpu nor cuda:<number>"));
    }
    const auto is_wanted = [&](const CudaDevice& gpu) { return gpu.id() == id; };
    if (std::any_of(selected.begin(), selected.end(), is_wanted)) {
      return absl::InvalidArgumentError(absl::StrCat("device \"", id, "\" appears twice"));
    }
    const auto found = std::find_if(gpus.begin(), gpus.end(), is_wanted);
    if (found == gpus.end()) {
      const std::string there = absl::StrJoin(gpus, ", ", [](std::string* out, const CudaDevice& gpu) {
        absl::StrAppend(out, gpu.id(), " (", gpu.name, ")");
      });
      return absl::NotFoundError(absl::StrCat("there is no device \"", id, "\" that this build can use; there are: cpu",
                                              there.empty() ? "" : ", ", there));
    }
    selected.push_back(*found);
  }
  return selected;
}

}  // namespace

absl::StatusOr<std::vector<Device>> OpenDevices(std::string_view wanted, int64_t memory_limit_bytes,
                                                MemoryBudget* memory_budget) {
  std::vector<Device> devices;
  if (wanted != "cpu") {
    std::vector<CudaDevice> gpus = ListCudaDevices();
    if (!wanted.empty()) {
      ASSIGN_OR_RETURN(gpus, Select(wanted, gpus));
    }
    for (const CudaDevice& gpu : gpus) {
      if (!HasCodeFor(gpu)) {
        const std::string reason = absl::StrCat(gpu.id(), " (", gpu.name, ", compute capability ",
                                                gpu.compute_capability, ") does not run this build's kernels");
        if (!wanted.empty()) return absl::FailedPreconditionError(reason);
        Log(LogLevel::kWarning, "GPU passed over", {{"reason", reason}});
        continue;
      }
      ASSIGN_OR_RETURN(Device device, OpenGpu(gpu, memory_limit_bytes));
      devices.push_back(std::move(device));
    }
  }
  if (devices.empty()) devices.emplace_back();
  for (Device& device : devices) device.memory_budget = memory_budget;
  return devices;
}

std::string JoinIds(const std::vector<Device>& devices) {
  return absl::StrJoin(devices, ",", [](std::string* out, const Device& device) { out->append(device.id); });
}

absl::StatusOr<ExecutionContext> MakeContext(const Device& device, kernels::ThreadPool* pool,
                                             [[maybe_unused]] StreamPriority priority) {
  ExecutionContext context{
      .device = device.id, .pool = pool, .memory = std::make_unique<HostMemory>(device.memory_budget)};
  if constexpr (kernels::kHasCuda) {
    if (device.is_cuda()) {
      ASSIGN_OR_RETURN(context.cuda, CudaContext::Create(device.pool.get(), priority));
      context.cuda->copies = device.copies.get();
    }
  }
  return context;
}

}  // namespace voxserve
