#include "tests/support/failing_heap.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

thread_local int64_t allocations_left = -1;  // before one fails; negative: none fails

bool Fails() {
  if (allocations_left < 0) return false;
  return allocations_left-- == 0;
}

}  // namespace

namespace voxserve::support {

void FailAllocation(int64_t num_before) { allocations_left = num_before; }

bool HasFailed() { return allocations_left < 0; }

}  // namespace voxserve::support

void* operator new(size_t size) {
  void* const block = Fails() ? nullptr : std::malloc(std::max<size_t>(size, 1));
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

void* operator new(size_t size, const std::nothrow_t& /*tag*/) noexcept {
  return Fails() ? nullptr : std::malloc(std::max<size_t>(size, 1));
}

void operator delete(void* block) noexcept { std::free(block); }

void operator delete(void* block, size_t /*size*/) noexcept { std::free(block); }

// The standard library's operators of arrays, and those that throw nothing, call the functions above. Those of the
// sanitizers' libraries do not.
void* operator new[](size_t size) { return operator new(size); }

void* operator new[](size_t size, const std::nothrow_t& /*tag*/) noexcept { return operator new(size, std::nothrow); }

void operator delete[](void* block) noexcept { std::free(block); }

void operator delete[](void* block, size_t /*size*/) noexcept { std::free(block); }
