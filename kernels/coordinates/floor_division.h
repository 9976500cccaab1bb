#pragma once

// This header divides integers and rounds towards minus infinity. There is one function for any divisor, and one class
// for many divisions by the same divisor.

#include <cstdint>

namespace voxserve::kernels {

// Returns floor(value / divisor) for a divisor above 0. Runs on host and device.
template <typename Integer>
constexpr Integer FloorDivide(Integer value, Integer divisor) {
  const Integer quotient = value / divisor;
  return quotient - (quotient * divisor > value ? 1 : 0);
}

// Divides many numbers by a divisor that is only known at run time, each with one multiplication. CPU loops over keys
// divide every field of a key, and a division instruction takes tens of cycles. Host only.
class FloorDivision {
 public:
  // divisor in [1, 2^31).
  explicit FloorDivision(int32_t divisor = 1)
      : divisor_(divisor),
        // ceil(2^64 / divisor), which gives exact quotients of numerators below 2^64 / divisor. Divisor 1 is a separate
        // case, since 2^64 itself does not fit.
        reciprocal_(divisor == 1 ? 0 : ~uint64_t{0} / static_cast<uint64_t>(divisor) + 1),
        // A multiple of the divisor that is large enough to make every int32 positive.
        lifted_quotient_((int64_t{1} << 31) / divisor + 1),
        lift_(lifted_quotient_ * divisor) {}

  // Returns FloorDivide(value, divisor).
  int32_t Quotient(int32_t value) const {
    if (divisor_ == 1) return value;
    const auto lifted = static_cast<uint64_t>(value + lift_);
    const auto quotient = static_cast<int64_t>(static_cast<unsigned __int128>(lifted) * reciprocal_ >> 64);
    return static_cast<int32_t>(quotient - lifted_quotient_);
  }

 private:
  int32_t divisor_;
  uint64_t reciprocal_;
  int64_t lifted_quotient_;
  int64_t lift_;
};

}  // namespace voxserve::kernels
