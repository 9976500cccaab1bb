#pragma once

// GeometryMemory hands out the memory of a batch's geometry on a GPU:
// - arrays that the batch's points bound, since nobody knows how many sites there will be: in the context's `batch`
//   arena;
// - arrays of known numbers of sites: at the bottom of its `features` arena, below the features;
// - scratch: in the `features` arena above those, where the features will lie.
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
  void Begin(CudaContext& context);
  // The feature pass has begun: what it has taken stays, and from now on sized arrays and scratch stand above it.
  void KeepFeatures() { sized_end_ = context_->features.Top(); }

  // For arrays that the batch's points bound.
  template <typename T>
  absl::StatusOr<T*> Take(int64_t count) {
    return context_->batch.TakeArray<T>(count);
  }
  // For arrays of known numbers of sites. Takes scratch back.
  template <typename T>
  absl::StatusOr<T*> TakeSized(int64_t count) {
    ReleaseScratch();
    ASSIGN_OR_RETURN(T * taken, context_->features.TakeArray<T>(count));
    sized_end_ = context_->features.Top();
    return taken;
  }
  // The end of the sized arrays, and the way back to an earlier one: the arrays behind it are given back, in the order
  // of the stream, and so is scratch.
  DeviceArena::Mark sized_end() const { return sized_end_; }
  void ReturnTo(const DeviceArena::Mark& sized_end);
  // For one kernel: the next call of this, or of another that says so, takes it back. The stream keeps the order.
  absl::StatusOr<void*> TakeScratch(size_t bytes);
  void ReleaseScratch() { context_->features.ReturnTo(sized_end_); }

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
  DeviceArena::Mark sized_end_;
};

}  // namespace voxserve
