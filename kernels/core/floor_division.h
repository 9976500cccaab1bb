#pragma once

// Division that rounds towards minus infinity: by the way, and by one divisor for many values. Pure functions, host and
// device.

#include <cstdint>

namespace voxserve::kernels {

// floor(value / divisor), divisor above 0.
template <typename Integer>
constexpr Integer FloorDivide(Integer value, Integer divisor) {
  const Integer quotient = value / divisor;
  return quotient - (quotient * divisor > value ? 1 : 0);
}

// The same by a number that is known only at run time, as one multiplication: CPUs' loops over keys divide every field,
// and a division takes tens of cycles there. Host alone.
class FloorDivision {
 public:
  // divisor in [1, 2^31).
  explicit FloorDivision(int32_t divisor = 1)
      : divisor_(divisor),
        // ceil(2^64 / divisor); exact for numerators below 2^64 / divisor. 2^64 itself is not representable, so 1 is
        // asked about apart.
        reciprocal_(divisor == 1 ? 0 : ~uint64_t{0} / static_cast<uint64_t>(divisor) + 1),
        // A multiple of the divisor that lifts every int32 above 0.
        lifted_quotient_((int64_t{1} << 31) / divisor + 1),
        lift_(lifted_quotient_ * divisor) {}

  // FloorDivide(value, divisor).
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
