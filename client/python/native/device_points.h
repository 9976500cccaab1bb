#pragma once

// DevicePoints copies points that another library computed on a GPU (a DLPack tensor) to host memory, where every
// request's cloud begins.
//
// - Streams: the library that owns the tensor makes stream() wait for its own work (__dlpack__(stream=...)). The copy
//   is queued on that stream, so it waits for that work and for no other.
// - Threads: thread-safe. Copies of one device follow each other. The calling thread's current GPU stays as it is.
// - A build without CUDA returns UNIMPLEMENTED.

#include <cstdint>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/runtime/stream.h"

namespace voxserve {

class DevicePoints {
 public:
  // Returns the stream of a device (CUDA's ordinal) that Copy uses, as the number that DLPack exchanges.
  absl::StatusOr<uintptr_t> stream(int device) ABSL_LOCKS_EXCLUDED(mutex_);
  // Copies `bytes` bytes from the device's memory, and waits until they have arrived. Call stream(device) before.
  absl::Status Copy(int device, const void* from, int64_t bytes, void* to) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Mutex mutex_;
#ifdef VOXSERVE_CUDA
  std::map<int, Stream> streams_ ABSL_GUARDED_BY(mutex_);
#endif
};

}  // namespace voxserve
