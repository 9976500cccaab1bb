#pragma once

// Arena is one block of memory that grows to the largest request so far and is reused for every later one, so that a
// request allocates nothing once the context is warm. The block is 64-byte aligned, on huge pages if the system has
// them.
//
// Not thread-safe: an execution context owns it.

#include <cstddef>
#include <cstdint>
#include <memory_resource>

#include "absl/status/status.h"

namespace voxserve {

class Arena {
 public:
  static constexpr int64_t kAlignment = 64;

  // memory: outlives the arena.
  explicit Arena(std::pmr::memory_resource* memory = std::pmr::get_default_resource()) : memory_(memory) {}
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&&) = delete;
  ~Arena() { Release(); }

  // Makes data() hold at least `bytes`; earlier contents are lost. Returns RESOURCE_EXHAUSTED (OUT_OF_MEMORY) if the
  // memory resource throws std::bad_alloc; the arena is empty then.
  absl::Status Reserve(int64_t bytes);
  // Gives the block back.
  void Release();

  char* data() const { return data_; }
  int64_t capacity() const { return capacity_; }

 private:
  std::pmr::memory_resource* memory_;
  char* data_ = nullptr;
  int64_t capacity_ = 0;
};

}  // namespace voxserve
