#include "engine/runtime/host_memory.h"

#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/base/fault.h"
#include "engine/base/status_macros.h"

namespace voxserve {
namespace {

constexpr size_t kMappedBytes = size_t{4} << 20;  // blocks of this size and more are mapped
constexpr size_t kPageBytes = 4096;
constexpr int64_t kHeapOverhead = 16;  // the heap's own bytes per block
constexpr int64_t kReservedStep = int64_t{1} << 20;

constexpr size_t RoundUp(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

// Returns true if the block is mapped. Strongly aligned blocks are too, since the heap would waste up to the alignment.
bool IsMapped(size_t bytes, size_t alignment) { return bytes >= kMappedBytes || alignment > kPageBytes; }

int64_t CountedBytes(size_t bytes, bool is_mapped) {
  return is_mapped ? static_cast<int64_t>(RoundUp(bytes, kPageBytes)) : static_cast<int64_t>(bytes) + kHeapOverhead;
}

// Returns null if the system has no more memory.
char* Map(size_t bytes, size_t alignment) {
  const size_t wanted = RoundUp(bytes, kPageBytes);
  const size_t spare = alignment > kPageBytes ? alignment : 0;
  void* const mapped = mmap(nullptr, wanted + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(mapped);
  if (spare == 0) return begin;
  const size_t before = (alignment - reinterpret_cast<uintptr_t>(begin) % alignment) % alignment;
  if (before > 0) munmap(begin, before);
  if (before < spare) munmap(begin + before + wanted, spare - before);
  return begin + before;
}

}  // namespace

HostMemory::HostMemory(MemoryBudget* budget) : budget_(budget) {}

void HostMemory::BeginBatch() {
  absl::MutexLock lock(&mutex_);
  peak_bytes_ = held();
  refusal_ = absl::OkStatus();
}

void HostMemory::Settle() {
  malloc_trim(0);
  absl::MutexLock lock(&mutex_);
  most_heap_bytes_ = heap_bytes_;
  Reserve(held()).IgnoreError();  // cannot fail: it is less than before
}

int64_t HostMemory::held_bytes() const {
  absl::MutexLock lock(&mutex_);
  return held();
}

int64_t HostMemory::peak_bytes() const {
  absl::MutexLock lock(&mutex_);
  return peak_bytes_;
}

absl::Status HostMemory::refusal() const {
  absl::MutexLock lock(&mutex_);
  return refusal_;
}

void HostMemory::NoteRefusal(absl::Status why) {
  absl::MutexLock lock(&mutex_);
  refusal_ = std::move(why);
}

void* HostMemory::do_allocate(size_t bytes, size_t alignment) {
  const bool is_mapped = IsMapped(bytes, alignment);
  // Refuses an impossible size here, since the sums below would overflow before the budget refused it.
  if (bytes > size_t{1} << 60) throw std::bad_alloc();
  const int64_t counted = CountedBytes(bytes, is_mapped);
  if (!Take(counted, is_mapped)) throw std::bad_alloc();
  void* block = nullptr;
  if (!FaultAt(FaultSite::kHostMemory)) {
    block = is_mapped ? Map(bytes, alignment) : ::operator new (bytes, std::align_val_t{alignment}, std::nothrow);
  }
  if (block != nullptr) return block;
  GiveBack(counted, is_mapped);
  absl::MutexLock lock(&mutex_);
  refusal_ = OutOfMemoryError(absl::StrCat("the system has no ", bytes, " bytes of memory left"));
  throw std::bad_alloc();
}

void HostMemory::do_deallocate(void* block, size_t bytes, size_t alignment) {
  const bool is_mapped = IsMapped(bytes, alignment);
  if (is_mapped) {
    munmap(block, RoundUp(bytes, kPageBytes));
  } else {
    ::operator delete (block, bytes, std::align_val_t{alignment});
  }
  GiveBack(CountedBytes(bytes, is_mapped), is_mapped);
}

bool HostMemory::Take(int64_t bytes, bool is_mapped) {
  absl::MutexLock lock(&mutex_);
  const int64_t heap_bytes = heap_bytes_ + (is_mapped ? 0 : bytes);
  const int64_t most_heap_bytes = std::max(most_heap_bytes_, heap_bytes);
  const int64_t mapped_bytes = mapped_bytes_ + (is_mapped ? bytes : 0);
  if (absl::Status status = Reserve(mapped_bytes + most_heap_bytes); !status.ok()) {
    refusal_ = std::move(status);
    return false;
  }
  heap_bytes_ = heap_bytes;
  most_heap_bytes_ = most_heap_bytes;
  mapped_bytes_ = mapped_bytes;
  peak_bytes_ = std::max(peak_bytes_, held());
  return true;
}

void HostMemory::GiveBack(int64_t bytes, bool is_mapped) {
  absl::MutexLock lock(&mutex_);
  (is_mapped ? mapped_bytes_ : heap_bytes_) -= bytes;
  Reserve(held()).IgnoreError();  // cannot fail: it is no more than before
}

absl::Status HostMemory::Reserve(int64_t bytes) {
  if (budget_ == nullptr) return absl::OkStatus();
  const int64_t wanted = (bytes + kReservedStep - 1) / kReservedStep * kReservedStep;
  if (wanted == reservation_.bytes()) return absl::OkStatus();
  if (reservation_.bytes() > 0) return reservation_.Resize(wanted);
  ASSIGN_OR_RETURN(reservation_, budget_->Reserve(MemoryBudget::Use::kScratch, wanted));
  return absl::OkStatus();
}

}  // namespace voxserve
