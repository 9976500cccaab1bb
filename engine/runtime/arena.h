#pragma once

// One block of memory that grows to the largest request seen and is used again for every one, so that a request
// allocates nothing once the context is warm. 64-byte aligned, on huge pages where the system gives them.
//
// Not thread-safe: an execution context owns it.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"

namespace voxserve {

class Arena {
 public:
  static constexpr int64_t kAlignment = 64;

  // Makes data() hold at least `bytes`; what was there is lost. RESOURCE_EXHAUSTED (OUT_OF_MEMORY) where the system
  // has no more; the arena is empty then.
  absl::Status Reserve(int64_t bytes);

  char* data() const { return data_.get(); }
  int64_t capacity() const { return capacity_; }

 private:
  struct Free {
    void operator()(char* data) const;
  };
  std::unique_ptr<char[], Free> data_;
  int64_t capacity_ = 0;
};

}  // namespace voxserve
