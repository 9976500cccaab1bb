#pragma once

// Descriptor owns a file descriptor and closes it on destruction. It can be moved, not copied. By default it is empty.

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

  // Gives the descriptor to the caller, who owns it then.
  int Release() { return std::exchange(descriptor_, -1); }
  // Closes its descriptor and owns the new one.
  void Reset(int descriptor = -1) {
    if (descriptor_ >= 0) close(descriptor_);
    descriptor_ = descriptor;
  }

 private:
  int descriptor_ = -1;
};

}  // namespace voxserve
