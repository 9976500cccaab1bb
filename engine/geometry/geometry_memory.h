#pragma once

// GeometryMemory hands out the memory of a batch's geometry on a GPU:
// - Bounded arrays: the numbers of sites are not known yet, so the numbers of points bound their sizes. They lie in the
//   context's `batch` arena.
// - Sized arrays: the numbers of sites are known. They lie at the bottom of the context's `features` arena, below the
//   features.
// - Scratch: temporary memory of one kernel. It lies in the `features` arena above the sized arrays, where the features
//   will lie later.
//
// A DeviceGeometry has one. All copies are queued on the context's stream. Methods return RESOURCE_EXHAUSTED if memory
// does not suffice. Not thread-safe.

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
  void Begin(CudaContext& context);
  // Keeps the memory that the feature pass has taken so far: sized arrays and scratch lie above it from now on.
  void KeepFeatures() { sized_end_ = context_->features.Top(); }

  // Takes a bounded array.
  template <typename T>
  absl::StatusOr<T*> Take(int64_t count) {
    return context_->batch.TakeArray<T>(count);
  }
  // Takes a sized array. Releases scratch.
  template <typename T>
  absl::StatusOr<T*> TakeSized(int64_t count) {
    ReleaseScratch();
    ASSIGN_OR_RETURN(T * taken, context_->features.TakeArray<T>(count));
    sized_end_ = context_->features.Top();
    return taken;
  }
  // sized_end() is the end of the sized arrays. ReturnTo releases all sized arrays after an earlier end, and scratch.
  // Kernels that are already on the stream may still use them, as later ones run after those.
  DeviceArena::Mark sized_end() const { return sized_end_; }
  void ReturnTo(const DeviceArena::Mark& sized_end);
  // Takes scratch for one kernel. The next TakeScratch releases it, and so do TakeSized, ReturnTo and ReleaseScratch.
  // That is safe because the stream runs kernels in order.
  absl::StatusOr<void*> TakeScratch(size_t bytes);
  void ReleaseScratch() { context_->features.ReturnTo(sized_end_); }

  // Starts a copy from host memory, which must stay unchanged until the caller has waited for the stream.
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
  DeviceArena::Mark sized_end_;
};

}  // namespace voxserve
