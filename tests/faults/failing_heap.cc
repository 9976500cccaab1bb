// Replaces operator new, so that allocations of the server's own code fail as the site "heap" says. An allocation
// belongs to the program if its caller's code lies in the executable; gRPC and other shared libraries, which end the
// process where they find no memory, get theirs.

#include <cstdlib>
#include <new>

#include "tests/faults/fault.h"

// The executable's code, by the linker.
extern "C" char __executable_start;  // NOLINT(bugprone-reserved-identifier)
extern "C" char etext;

namespace {

bool Fails(size_t size, const void* caller) {
  const bool is_own = caller >= &__executable_start && caller < &etext;
  return is_own && voxserve::HeapFaultAt(size);
}

// Returns null where there is no memory.
void* Allocate(size_t size, size_t alignment, const void* caller) {
  if (Fails(size, caller)) return nullptr;
  if (alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__) return std::malloc(size == 0 ? 1 : size);
  return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

void* AllocateOrThrow(size_t size, size_t alignment, const void* caller) {
  void* const block = Allocate(size, alignment, caller);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

constexpr size_t kDefault = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

}  // namespace

#define CALLER __builtin_return_address(0)

void* operator new(size_t size) { return AllocateOrThrow(size, kDefault, CALLER); }
void* operator new[](size_t size) { return AllocateOrThrow(size, kDefault, CALLER); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return Allocate(size, kDefault, CALLER); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return Allocate(size, kDefault, CALLER); }
void* operator new(size_t size, std::align_val_t to) { return AllocateOrThrow(size, static_cast<size_t>(to), CALLER); }
void* operator new[](size_t size, std::align_val_t to) {
  return AllocateOrThrow(size, static_cast<size_t>(to), CALLER);
}
void* operator new(size_t size, std::align_val_t to, const std::nothrow_t&) noexcept {
  return Allocate(size, static_cast<size_t>(to), CALLER);
}
void* operator new[](size_t size, std::align_val_t to, const std::nothrow_t&) noexcept {
  return Allocate(size, static_cast<size_t>(to), CALLER);
}

void operator delete(void* block) noexcept { std::free(block); }
void operator delete[](void* block) noexcept { std::free(block); }
void operator delete(void* block, size_t) noexcept { std::free(block); }
void operator delete[](void* block, size_t) noexcept { std::free(block); }
void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }
void operator delete[](void* block, std::align_val_t) noexcept { std::free(block); }
void operator delete(void* block, size_t, std::align_val_t) noexcept { std::free(block); }
void operator delete[](void* block, size_t, std::align_val_t) noexcept { std::free(block); }
