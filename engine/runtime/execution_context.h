#pragma once

// An ExecutionContext holds all that one worker needs to compute: a device, threads and memory. Each worker has its own
// context, and only one thread uses a context at a time. Contexts share only the thread pool and, on a GPU, the
// device's memory pool and its cache of copies.

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

// The GPU's part of a context. Contexts of one GPU run side by side, each on its own stream.
struct CudaContext {
  static constexpr int kNumStages = 6;  // Stage::kCopyIn to Stage::kHead

  static absl::StatusOr<std::unique_ptr<CudaContext>> Create(DevicePool* pool,
                                                             StreamPriority priority = StreamPriority::kNormal);
  ~CudaContext();

  // Makes the device current for the calling thread. A thread calls it before its first use of the context.
  absl::Status MakeCurrent() const;

  // Returns `gemm`, ready to multiply. The first call allocates its workspace; networks in 16 bits seldom need one. The
  // errors are those of DevicePool::Allocate.
  absl::StatusOr<kernels::cuda::Gemm*> ReadyGemm();

  // Returns the arenas' memory to the pool. Called while no batch runs.
  void ReleaseArenas();
  // Does the same as ReleaseArenas, and forgets the device's cached copies. Later batches make copies again if they
  // need them.
  void ReleaseMemory();

  DevicePool* pool = nullptr;      // the device's; outlives the context
  DeviceCopies* copies = nullptr;  // the device's; outlives the context; null: no copies are kept
  Stream stream;
  DeviceBuffer gemm_workspace;                   // empty until ReadyGemm
  std::unique_ptr<kernels::cuda::Gemm> gemm;     // for its settings; to multiply, call ReadyGemm
  DeviceArena batch;                             // points and geometry of the batch under way
  DeviceArena features;                          // the feature pass's buffers and scratch
  PinnedBuffer upload;                           // staged copies to the device
  PinnedBuffer sizes;                            // row counts, which are copied back before the results
  PinnedBuffer download;                         // results; counts in the budget
  PinnedBuffer not_finite;                       // counts of results that are not finite, incremented by kernels
  std::array<Event, kNumStages + 1> stage_ends;  // the start, and the end of each stage

 private:
  explicit CudaContext(Stream s) : stream(std::move(s)) {}
};

struct ExecutionContext {
  std::string device;                   // "cpu", "cuda:0"
  kernels::ThreadPool* pool = nullptr;  // the process's; outlives the context
  // The host memory that batches compute with. It outlives everything that is allocated from it.
  std::unique_ptr<HostMemory> memory = std::make_unique<HostMemory>();
  Arena input = Arena(memory.get());            // the batch's points, as the network reads them, in host memory
  Arena features = Arena(memory.get());         // the feature pass's buffers on the CPU
  std::unique_ptr<CudaContext> cuda = nullptr;  // null on the CPU
};

}  // namespace voxserve
