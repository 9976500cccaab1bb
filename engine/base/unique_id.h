#pragma once

// A UniqueId is a number that no other object of the process has or had. It is a key for caches whose entries may
// outlive the object that they were made from: a new object may get the address of a deleted one, but never its id.
// Copies and moves keep the id. So a class whose objects change after they were copied must not have a UniqueId.
// Thread-safe.

#include <atomic>
#include <cstdint>

namespace voxserve {

class UniqueId {
 public:
  UniqueId() {
    static std::atomic<uint64_t> last{0};
    value_ = last.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  uint64_t value() const { return value_; }  // above 0

 private:
  uint64_t value_ = 0;
};

}  // namespace voxserve
