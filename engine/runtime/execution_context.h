#pragma once

// What one worker computes with: a device, its threads and its memory. One worker, one context; nothing in it is shared
// but the thread pool.

#include <string>

#include "engine/runtime/arena.h"
#include "kernels/thread_pool.h"

namespace voxserve {

struct ExecutionContext {
  std::string device;                   // "cpu"
  kernels::ThreadPool* pool = nullptr;  // the process's; outlives the context
  Arena input;                          // the batch's points, as the network reads them
  Arena features;                       // the feature pass's buffers
};

}  // namespace voxserve
