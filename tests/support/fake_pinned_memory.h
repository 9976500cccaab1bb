#pragma once

// Memory of the heap that counts as page-locked: a PinnedPool's source where there is no GPU. Its users link the
// engine's runtime.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/runtime/pinned_pool.h"

namespace voxserve::support {

// Thread-safe. It outlives its pools.
class FakePinnedMemory {
 public:
  PinnedPool::Source Source() {
    return {.allocate = [this](int64_t bytes) { return Allocate(bytes); }, .free = [this](char* data) { Free(data); }};
  }

  // From now on allocations fail, or succeed again.
  void set_is_full(bool is_full) {
    absl::MutexLock lock(&mutex_);
    is_full_ = is_full;
  }

  int64_t num_blocks() const {
    absl::MutexLock lock(&mutex_);
    return static_cast<int64_t>(blocks_.size());
  }
  int64_t num_allocations() const {
    absl::MutexLock lock(&mutex_);
    return num_allocations_;
  }
  // Returns true where the bytes lie within one block.
  bool Holds(const char* data, int64_t bytes) const {
    absl::MutexLock lock(&mutex_);
    return std::any_of(blocks_.begin(), blocks_.end(), [&](const auto& block) {
      return data >= block.first && data + bytes <= block.first + block.second.second;
    });
  }

 private:
  absl::StatusOr<char*> Allocate(int64_t bytes) {
    absl::MutexLock lock(&mutex_);
    if (is_full_) return absl::ResourceExhaustedError("the fake memory is full");
    ++num_allocations_;
    auto block = std::make_unique<char[]>(static_cast<size_t>(bytes));
    char* const data = block.get();
    blocks_.emplace(data, std::pair(std::move(block), bytes));
    return data;
  }
  void Free(char* data) {
    absl::MutexLock lock(&mutex_);
    blocks_.erase(data);
  }

  mutable absl::Mutex mutex_;
  bool is_full_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t num_allocations_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<const char*, std::pair<std::unique_ptr<char[]>, int64_t>> blocks_ ABSL_GUARDED_BY(mutex_);
};

// Makes so many buffers of the pool ready for clouds of so many bytes.
inline void MakeReady(PinnedPool& pool, int64_t bytes, int count, BufferLife life = BufferLife::kRequest) {
  std::vector<HostBuffer> buffers;
  for (int i = 0; i < count; ++i) buffers.push_back(*pool.Take(bytes, life));
  pool.Adjust();
}

}  // namespace voxserve::support
