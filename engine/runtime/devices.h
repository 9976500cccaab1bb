#pragma once

// The devices that an engine computes on: GPUs, or the CPU where there is none.

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
  std::string name;                // "NVIDIA H200"; "" for the CPU, as the next
  std::string compute_capability;  // "9.0"
  // Counts the host's memory that contexts of the device compute with; outlives the device. Null: without a limit.
  MemoryBudget* memory_budget = nullptr;
  // Of a GPU; null for the CPU. The pool goes last: streams and contexts hold memory of it.
  std::unique_ptr<DevicePool> pool;
  std::unique_ptr<Stream> loading;       // where weights are copied
  std::unique_ptr<DeviceCopies> copies;  // sweeps that frames to come will want again

  bool is_cuda() const { return pool != nullptr; }
};

// wanted: "" for every GPU, or the CPU where there is none; "cpu"; or GPUs by id, "cuda:0,cuda:2". memory_limit_bytes:
// of each GPU, 0 for all of it. memory_budget: Device::memory_budget of all of them. INVALID_ARGUMENT for an id that
// does not parse or stands twice, NOT_FOUND for a GPU that is not there (naming those that are), FAILED_PRECONDITION
// for one that is named and has no code in this build (unnamed ones are passed over with a warning).
absl::StatusOr<std::vector<Device>> OpenDevices(std::string_view wanted, int64_t memory_limit_bytes,
                                                MemoryBudget* memory_budget = nullptr);

// "cuda:0,cuda:1".
std::string JoinIds(const std::vector<Device>& devices);

// A context of the device's own: on a GPU with its own stream and memory.
absl::StatusOr<ExecutionContext> MakeContext(const Device& device, kernels::ThreadPool* pool,
                                             StreamPriority priority = StreamPriority::kNormal);

}  // namespace voxserve
