#pragma once

// FakePinnedMemory is a source of memory for a PinnedPool on a machine without a GPU. It allocates from the heap and
// acts as if the memory were page-locked (pinned). Link voxserve_engine_runtime to use this header.

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

// Counts the blocks that it has allocated. Thread-safe. A pool that uses the Source() of an object may outlive the
// object.
class FakePinnedMemory {
 public:
  PinnedPool::Source Source() {
    return {.allocate = [state = state_](int64_t bytes) { return state->Allocate(bytes); },
            .free = [state = state_](char* data) { state->Free(data); }};
  }

  // Makes later calls of Allocate fail with RESOURCE_EXHAUSTED (true), or succeed again (false).
  void set_is_full(bool is_full) {
    absl::MutexLock lock(&state_->mutex);
    state_->is_full = is_full;
  }

  // Returns the number of blocks that are allocated now.
  int64_t num_blocks() const {
    absl::MutexLock lock(&state_->mutex);
    return static_cast<int64_t>(state_->blocks.size());
  }
  // Returns the number of allocations so far.
  int64_t num_allocations() const {
    absl::MutexLock lock(&state_->mutex);
    return state_->num_allocations;
  }
  // Returns true if the `bytes` bytes from `data` on lie within one allocated block.
  bool Holds(const char* data, int64_t bytes) const {
    absl::MutexLock lock(&state_->mutex);
    return std::any_of(state_->blocks.begin(), state_->blocks.end(), [&](const auto& block) {
      return data >= block.first && data + bytes <= block.first + block.second.size();
    });
  }

 private:
  struct State {
    absl::StatusOr<char*> Allocate(int64_t bytes) {
      absl::MutexLock lock(&mutex);
      if (is_full) return absl::ResourceExhaustedError("the fake memory is full");
      ++num_allocations;
      std::vector<char> block(static_cast<size_t>(bytes));
      char* const data = block.data();
      blocks.emplace(data, std::move(block));
      return data;
    }
    void Free(char* data) {
      absl::MutexLock lock(&mutex);
      blocks.erase(data);
    }

    absl::Mutex mutex;
    bool is_full ABSL_GUARDED_BY(mutex) = false;
    int64_t num_allocations ABSL_GUARDED_BY(mutex) = 0;
    std::map<const char*, std::vector<char>> blocks ABSL_GUARDED_BY(mutex);
  };

  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Makes the pool hold `count` free buffers of `bytes` bytes, so that later requests of this size need no allocation.
inline void MakeReady(PinnedPool& pool, int64_t bytes, int count) {
  std::vector<HostBuffer> buffers;
  for (int i = 0; i < count; ++i) buffers.push_back(*pool.Take(bytes, BufferLife::kRequest));
  pool.Adjust();
}

}  // namespace voxserve::support
