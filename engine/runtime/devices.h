#pragma once

// These functions open the devices on which an engine computes (GPUs, or the CPU if there is no GPU) and make execution
// contexts on them.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/runtime/device_copies.h"
#include "engine/runtime/device_pool.h"
#include "engine/runtime/execution_context.h"
#include "engine/runtime/memory_budget.h"
#include "engine/runtime/stream.h"
#include "kernels/core/thread_pool.h"

namespace voxserve {

struct Device {
  std::string id = "cpu";          // or "cuda:0"
  std::string name;                // "NVIDIA H200"; "" for the CPU
  std::string compute_capability;  // "9.0"; "" for the CPU
  // Counts the host memory that contexts of the device compute with; outlives the device. Null: there is no limit.
  MemoryBudget* memory_budget = nullptr;
  // The three members below are null for the CPU. The pool is declared first, so that it is destroyed after its users.
  std::unique_ptr<DevicePool> pool;
  std::unique_ptr<Stream> loading;       // the stream that copies weights
  std::unique_ptr<DeviceCopies> copies;  // copies of sweeps that later frames may need again

  bool is_cuda() const { return pool != nullptr; }
};

// Opens the devices. wanted: "" for every GPU, or the CPU if there is none; "cpu"; or GPUs by id, "cuda:0,cuda:2".
// memory_limit_bytes: the limit for each GPU; 0: all of its memory. memory_budget: Device::memory_budget of all
// devices. Returns INVALID_ARGUMENT for an id that does not parse or is given twice, and NOT_FOUND for a GPU that does
// not exist (the message lists the devices that do). If this build has no code for a GPU, returns FAILED_PRECONDITION
// if the GPU is named in `wanted`; if `wanted` is empty, skips the GPU with a warning. CUDA's errors are those of
// CudaStatus.
absl::StatusOr<std::vector<Device>> OpenDevices(std::string_view wanted, int64_t memory_limit_bytes,
                                                MemoryBudget* memory_budget = nullptr);

// Returns the devices' ids, joined: "cuda:0,cuda:1".
std::string JoinIds(const std::vector<Device>& devices);

// Makes a context on the device; on a GPU the context gets its own stream and memory.
absl::StatusOr<ExecutionContext> MakeContext(const Device& device, kernels::ThreadPool* pool,
                                             StreamPriority priority = StreamPriority::kNormal);

}  // namespace voxserve
