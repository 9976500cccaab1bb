#include "engine/calibration/value_histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <mutex>

namespace voxserve {
namespace {

constexpr uint32_t kMagnitude = 0x7FFF'FFFF;
constexpr uint32_t kInfinity = 0x7F80'0000;

// Returns the integral over t from 0 to x of (t - n(t))^2, where n(t) is t rounded to the nearest integer, at most
// `largest`. Each whole cell around an integer adds 1/12.
double ErrorUpTo(double x, int largest) {
  const double n = std::min(std::round(x), static_cast<double>(largest));
  return n / 12 + (x - n) * (x - n) * (x - n) / 3;
}

// Calls visit(range) for the largest range and smaller ones, each `ratio` times the one before, down to `least`.
template <typename Visit>
void ForRanges(double largest, double least, double ratio, const Visit& visit) {
  for (double range = largest; range >= least; range *= ratio) visit(range);
}

}  // namespace

void ValueHistogram::Add(const kernels::ConstRows& rows, kernels::ThreadPool& pool) {
  std::mutex mutex;
  const int64_t grain = (rows.capacity + pool.num_threads() - 1) / pool.num_threads();
  pool.ParallelFor(rows.capacity, std::max<int64_t>(grain, 1), [&](int64_t begin, int64_t end) {
    std::vector<int64_t> counts(kNumBins);
    int64_t num_not_finite = 0;
    uint32_t largest = 0;
    bool has_negative = false;
    for (int64_t row = begin; row < end; ++row) {
      const float* const values = rows.floats(row);
      for (int32_t channel = 0; channel < rows.channels; ++channel) {
        const auto bits = std::bit_cast<uint32_t>(values[channel]);
        const uint32_t magnitude = bits & kMagnitude;
        if (magnitude == 0) continue;
        if (magnitude >= kInfinity) {
          ++num_not_finite;
          continue;
        }
        ++counts[magnitude >> kBinShift];
        largest = std::max(largest, magnitude);
        has_negative |= bits != magnitude;
      }
    }
    const std::scoped_lock lock(mutex);
    std::transform(counts.begin(), counts.end(), counts_.begin(), counts_.begin(), std::plus<>());
    num_not_finite_ += num_not_finite;
    largest_ = std::max(largest_, std::bit_cast<float>(largest));
    has_negative_ |= has_negative;
  });
  num_values_ += rows.capacity * rows.channels;
}

double ValueHistogram::SquaredError(double scale, int largest_integer) const {
  double sum = 0;
  for (size_t bin = 0; bin < kNumBins; ++bin) {
    if (counts_[bin] == 0) continue;
    const auto value_at = [](size_t b) { return double{std::bit_cast<float>(static_cast<uint32_t>(b << kBinShift))}; };
    const double begin = value_at(bin) / scale;
    // Behind the last bin are the bits of infinity, which stand for 2^128.
    const double end = (bin + 1 == kNumBins ? std::ldexp(1.0, 128) : value_at(bin + 1)) / scale;
    const double mean = (ErrorUpTo(end, largest_integer) - ErrorUpTo(begin, largest_integer)) / (end - begin);
    sum += static_cast<double>(counts_[bin]) * mean;
  }
  const int64_t num_finite = num_values_ - num_not_finite_;
  return num_finite == 0 ? 0 : sum * scale * scale / static_cast<double>(num_finite);
}

float LeastErrorScale(const ValueHistogram& histogram, int largest_integer) {
  double best_range = histogram.largest(), least_error = std::numeric_limits<double>::infinity();
  const auto try_range = [&](double range) {
    const double error = histogram.SquaredError(range / largest_integer, largest_integer);
    if (error >= least_error) return;
    least_error = error;
    best_range = range;
  };
  // No smaller range is worth a step that is 4,096 times finer. First in coarse steps, then around the best.
  const double largest = histogram.largest();
  ForRanges(largest, largest / 4096, std::exp2(-1.0 / 8), try_range);
  const double center = best_range;
  ForRanges(std::min(largest, center * std::exp2(1.0 / 8)), center * std::exp2(-1.0 / 8), std::exp2(-1.0 / 128),
            try_range);
  return std::max(static_cast<float>(best_range / largest_integer), std::numeric_limits<float>::min());
}

}  // namespace voxserve
