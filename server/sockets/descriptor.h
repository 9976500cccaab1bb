#pragma once

// Descriptor owns a file descriptor and closes it when it ends. Moves, does not copy. A default one is empty.

#include <unistd.h>

#include <utility>

namespace voxserve {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}  // negative: empty
  Descriptor(Descriptor&& other) noexcept : descriptor_(other.Release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    Reset(other.Release());
    return *this;
  }
  ~Descriptor() { Reset(); }

  int get() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }

  // The caller owns it from now on.
  int Release() { return std::exchange(descriptor_, -1); }
  // Closes what it has, and owns another.
  void Reset(int descriptor = -1) {
    if (descriptor_ >= 0) close(descriptor_);
    descriptor_ = descriptor;
  }

 private:
  int descriptor_ = -1;
};

}  // namespace voxserve
