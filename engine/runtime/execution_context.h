#pragma once

// What one worker computes with: a device, its threads and its memory. One worker, one context; nothing in it is shared
// but the thread pool and, on a GPU, the device's memory pool.

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/runtime/arena.h"
#include "engine/runtime/device_copies.h"
#include "engine/runtime/device_pool.h"
#include "engine/runtime/host_memory.h"
#include "engine/runtime/pinned_buffer.h"
#include "engine/runtime/stream.h"
#include "kernels/core/gemm_cuda.h"
#include "kernels/core/thread_pool.h"

namespace voxserve {

// The GPU's part. Contexts of one GPU work side by side, each on its own stream.
struct CudaContext {
  static constexpr int kNumStages = 6;  // of a batch's run on the device

  static absl::StatusOr<std::unique_ptr<CudaContext>> Create(DevicePool* pool,
                                                             StreamPriority priority = StreamPriority::kNormal);
  ~CudaContext();

  // Makes the device the calling thread's; before a thread's first use of the context.
  absl::Status MakeCurrent() const;

  // Returns `gemm`, ready to multiply: takes its workspace where it has none, which networks of 16 bits seldom need.
  // RESOURCE_EXHAUSTED as in DevicePool.
  absl::StatusOr<kernels::cuda::Gemm*> ReadyGemm();

  // Gives the arenas' memory back to the pool. No batch runs.
  void ReleaseArenas();
  // The same with all memory of batches, and that of the device's copies, which are made again where need be.
  void ReleaseMemory();

  DevicePool* pool = nullptr;      // the device's; outlives the context, as does the next
  DeviceCopies* copies = nullptr;  // likewise; null: none are kept
  Stream stream;
  DeviceBuffer gemm_workspace;                   // empty until ReadyGemm
  std::unique_ptr<kernels::cuda::Gemm> gemm;     // its settings; who multiplies asks ReadyGemm
  DeviceArena batch;                             // points and geometry of the batch under way
  DeviceArena features;                          // the feature pass's buffers and scratch
  PinnedBuffer upload;                           // what goes to the device
  PinnedBuffer sizes;                            // numbers of rows, which come back before the results
  PinnedBuffer download;                         // what comes back; counts in the budget
  PinnedBuffer not_finite;                       // counts of results that are not, which kernels add to in place
  std::array<Event, kNumStages + 1> stage_ends;  // the start, and the end of each stage

 private:
  explicit CudaContext(Stream s) : stream(std::move(s)) {}
};

struct ExecutionContext {
  std::string device;                   // "cpu", "cuda:0"
  kernels::ThreadPool* pool = nullptr;  // the process's; outlives the context
  // That batches compute with on the host. It outlives all that is allocated of it.
  std::unique_ptr<HostMemory> memory = std::make_unique<HostMemory>();
  Arena input = Arena(memory.get());            // the batch's points, as the network reads them, in host memory
  Arena features = Arena(memory.get());         // the feature pass's buffers on the CPU
  std::unique_ptr<CudaContext> cuda = nullptr;  // null on the CPU
};

}  // namespace voxserve
