#pragma once

// ValueHistogram counts the magnitudes of the values that a layer computes, over all rows and channels, and from them
// computes what it would cost to store the values as integers. Values arrive scan by scan, and none is kept.
//
// - Bins: a magnitude's bin is its first 15 bits as a float32 (8 of exponent and 7 of mantissa), so a bin is at most
//   1/128 of its values wide, and bins need no range in advance. Zeros are in no bin: no scale makes an error of them.
// - Errors within a bin are computed as if its values were spread evenly over it.
// - Threads: one at a time.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve {

class ValueHistogram {
 public:
  ValueHistogram() : counts_(kNumBins) {}

  // Counts all values of the rows, which are float32 in host memory. Works on the pool's threads.
  void Add(const kernels::ConstRows& rows, kernels::ThreadPool& pool);

  int64_t num_values() const { return num_values_; }          // all that were added
  int64_t num_not_finite() const { return num_not_finite_; }  // NaN and infinities, which are in no bin
  bool has_negative() const { return has_negative_; }
  float largest() const { return largest_; }  // the largest finite magnitude; 0: all are 0, or there is none

  // Returns the mean over all finite values of (value - scale * integer)^2, where integer is value / scale rounded to
  // the nearest integer and then limited to -largest_integer to largest_integer. scale: more than 0.
  double SquaredError(double scale, int largest_integer) const;

 private:
  static constexpr int kBinShift = 16;                                  // from a magnitude's bits to its bin
  static constexpr size_t kNumBins = size_t{0x7F80'0000} >> kBinShift;  // the bins of finite magnitudes

  std::vector<int64_t> counts_;  // by bin; zeros are not counted
  int64_t num_values_ = 0;
  int64_t num_not_finite_ = 0;
  bool has_negative_ = false;
  float largest_ = 0;
};

// Returns the scale by which the values are stored with the least squared error: the range that is kept is either the
// largest magnitude, so that no value is clipped, or a smaller one, where finer steps gain more than clipping loses.
// (The entropy of the distribution is no criterion: it clips the few large values that decide, and ruins LiDAR
// networks; LiDAR-PTQ, ICLR 2024.) largest_integer: 255 for u8, 127 for s8. The histogram has a value that is not 0.
float LeastErrorScale(const ValueHistogram& histogram, int largest_integer);

}  // namespace voxserve
