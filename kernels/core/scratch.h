#pragma once

// ScratchVector is a vector for intermediate results of a batch on the CPU. The caller provides its memory. The engine
// charges that memory to the process's budget; kernels only see the standard library's memory_resource.
//
// - New values are not initialised: code that grows a vector must write all of them.
// - A vector throws std::bad_alloc if the memory is used up. It then keeps its old contents or is empty.

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
  // A vector that is moved takes its allocator and memory along. So a move never copies the values, even if the two
  // vectors have different memory.
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;

  // `memory` must outlive all vectors that allocate from it. The default is the heap.
  ScratchAllocator(std::pmr::memory_resource* memory = std::pmr::get_default_resource()) noexcept  // NOLINT
      : memory_(memory) {}
  template <typename U>
  ScratchAllocator(const ScratchAllocator<U>& other) noexcept : memory_(other.memory()) {}  // NOLINT

  T* allocate(size_t count) { return static_cast<T*>(memory_->allocate(count * sizeof(T), alignof(T))); }
  void deallocate(T* values, size_t count) { memory_->deallocate(values, count * sizeof(T), alignof(T)); }

  // Leaves a default-constructed value uninitialised.
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

// Frees the vector's memory.
template <typename T>
void Free(ScratchVector<T>& values) {
  ScratchVector<T>(values.get_allocator()).swap(values);
}

// Makes the vector hold `count` undefined values. If it must grow, it frees its old memory first, so that old and new
// memory never exist together.
template <typename T>
void Renew(ScratchVector<T>& values, size_t count) {
  if (values.capacity() < count) {
    Free(values);
    values.reserve(count);
  }
  values.resize(count);
}

}  // namespace voxserve::kernels
