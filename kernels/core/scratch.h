#pragma once

// Vectors of what a batch computes with, in memory that the caller names. The engine counts that memory against the
// process's budget; a kernel knows no more of it than the standard library's interface.
//
// - Values are not initialised: whoever grows such a vector writes all of it.
// - Errors: std::bad_alloc where the memory has no more. Vectors keep what they held, or are empty.

#include <cstddef>
#include <memory_resource>
#include <new>
#include <type_traits>
#include <vector>

namespace voxserve::kernels {

template <typename T>
class ScratchAllocator {
 public:
  using value_type = T;
  // Vectors move with their memory, and never copy where they could move.
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;

  // memory: outlives all that is allocated. By default the heap's.
  ScratchAllocator(std::pmr::memory_resource* memory = std::pmr::get_default_resource()) noexcept  // NOLINT
      : memory_(memory) {}
  template <typename U>
  ScratchAllocator(const ScratchAllocator<U>& other) noexcept : memory_(other.memory()) {}  // NOLINT

  T* allocate(size_t count) { return static_cast<T*>(memory_->allocate(count * sizeof(T), alignof(T))); }
  void deallocate(T* values, size_t count) { memory_->deallocate(values, count * sizeof(T), alignof(T)); }

  // For a value that nothing is said of: leaves it as it is.
  template <typename U>
  void construct(U* value) noexcept {
    ::new (static_cast<void*>(value)) U;
  }

  std::pmr::memory_resource* memory() const { return memory_; }
  template <typename U>
  bool operator==(const ScratchAllocator<U>& other) const {
    return memory_ == other.memory();
  }

 private:
  std::pmr::memory_resource* memory_;
};

template <typename T>
using ScratchVector = std::vector<T, ScratchAllocator<T>>;

// Gives the vector's memory back.
template <typename T>
void Free(ScratchVector<T>& values) {
  ScratchVector<T>(values.get_allocator()).swap(values);
}

// Makes the vector hold `count` values, none of which is defined. Where it must grow, its old memory goes first, so
// that the two never stand side by side.
template <typename T>
void Renew(ScratchVector<T>& values, size_t count) {
  if (values.capacity() < count) {
    Free(values);
    values.reserve(count);
  }
  values.resize(count);
}

}  // namespace voxserve::kernels
