#pragma once

// The memory of a batch's geometry on a GPU. What steps read later lies in the context's `batch` arena. Scratch lies in
// its `features` arena, which is free until the feature pass begins.
//
// A DeviceGeometry has one. All copies go on the context's stream. RESOURCE_EXHAUSTED for memory. Not thread-safe.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/execution_context.h"

namespace voxserve {

class GeometryMemory {
 public:
  // Begins a batch.
  void Begin(CudaContext& context) {
    context_ = &context;
    keeps_features_ = false;
  }
  // The feature pass has begun: from now on scratch stands beside the features.
  void KeepFeatures() { keeps_features_ = true; }

  template <typename T>
  absl::StatusOr<T*> Take(int64_t count) {
    return context_->batch.TakeArray<T>(count);
  }
  // For one kernel: the next call takes it back. The stream keeps the order.
  absl::StatusOr<void*> TakeScratch(size_t bytes);

  // Starts a copy from host memory, which stays as it is until the stream has been waited for.
  absl::Status Upload(void* to, const void* from, size_t bytes);
  template <typename T>
  absl::StatusOr<T*> TakeUploaded(const T* from, size_t count) {
    ASSIGN_OR_RETURN(T * taken, Take<T>(static_cast<int64_t>(count)));
    RETURN_IF_ERROR(Upload(taken, from, count * sizeof(T)));
    return taken;
  }

  CudaContext& context() const { return *context_; }
  StreamView stream() const { return context_->stream.view(); }

 private:
  CudaContext* context_ = nullptr;
  bool keeps_features_ = false;
};

}  // namespace voxserve
