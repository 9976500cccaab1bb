#pragma once

// A number that no other object of the process has had, for caches whose entries outlive what they were made of: an
// address may be taken again, an id is not. Copies and moves keep the id, so a class that changes after it was copied
// must not have one. Thread-safe.

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
