#include "engine/serving/admission/line_fit.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

namespace voxserve {
namespace {

constexpr double kForgetting = 0.9;      // weight of a batch relative to the next one
constexpr size_t kMaxObservations = 32;  // the oldest has the weight 0.04
constexpr double kFarOff = 2;            // ratio of actual to expected time, or its inverse, that is a surprise
constexpr double kKnownRange = 4;        // larger requests count as this many times the largest observed request
constexpr double kStiffness = 0.3;       // the weight of the old coefficients, in batches
constexpr int kMaxSweeps = 200;          // sweeps of the fit, which ends earlier when nothing moves
constexpr double kDefaultRatio = 1.25;   // the least ratio of the bound until there are enough ratios
constexpr size_t kEnoughRatios = 16;
constexpr size_t kMaxRatios = 128;
constexpr double kLargestRatio = 2.5;  // the largest ratio of the bound: a few stalls must not refuse all requests
constexpr size_t kMaxDensities = 64;

// The assumed parts of a first batch's time: a fixed part, points, voxels, requests.
constexpr std::array<double, 4> kFirstShares = {0.25, 0.45, 0.15, 0.15};

void PushBounded(std::deque<double>& values, double value, size_t most) {
  values.push_back(value);
  if (values.size() > most) values.pop_front();
}

// Returns the n-th largest value. index 0: the largest.
double NthLargest(const std::deque<double>& values, size_t index) {
  std::vector<double> sorted(values.begin(), values.end());
  const auto nth = sorted.begin() + static_cast<std::ptrdiff_t>(std::min(index, sorted.size() - 1));
  std::nth_element(sorted.begin(), nth, sorted.end(), std::greater<>());
  return *nth;
}

double Dot(const std::array<double, 4>& a, const std::array<double, 4>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

bool LineFit::Observe(const BatchSize& size, absl::Duration device_time, Voxels voxels) {
  const double seconds = absl::ToDoubleSeconds(device_time);
  if (size.requests < 1 || size.points < 0 || size.voxels < 0 || !(seconds > 0) || !std::isfinite(seconds))
    return false;
  const Observation observation{.size = {1, static_cast<double>(size.points), static_cast<double>(size.voxels),
                                         static_cast<double>(size.requests)},
                                .seconds = seconds,
                                .counted = seconds};
  bool forgot = false;
  absl::MutexLock lock(&mutex_);
  if (!is_seeded_) {
    is_seeded_ = true;
    double shares = 0;
    for (size_t i = 0; i < kNumCoefficients; ++i) shares += observation.size[i] > 0 ? kFirstShares[i] : 0;
    for (size_t i = 0; i < kNumCoefficients; ++i) {
      if (observation.size[i] > 0) coefficients_[i] = kFirstShares[i] / shares * seconds / observation.size[i];
    }
    observations_.push_back(observation);
    bound_ratio_ = kDefaultRatio;
  } else {
    // Compares with the time that was expected before the batch ran, when its voxels were not known.
    BatchSize estimated = size;
    if (voxels != Voxels::kKnownBefore) {
      estimated.voxels = static_cast<int64_t>(static_cast<double>(size.points) * voxels_per_point_);
    }
    const double expected = Predict(estimated);
    forgot = AddObservation(observation, expected > 0 ? seconds / expected : 1);
  }
  const bool learns_voxels = voxels == Voxels::kEstimated && size.points > 0;
  if (learns_voxels) UpdateVoxels(static_cast<double>(size.voxels) / static_cast<double>(size.points));
  UpdateLargest();
  return forgot;
}

void LineFit::ObserveVoxels(int64_t points, int64_t voxels) {
  if (points < 1 || voxels < 0) return;
  absl::MutexLock lock(&mutex_);
  UpdateVoxels(static_cast<double>(voxels) / static_cast<double>(points));
}

bool LineFit::AddObservation(Observation observation, double ratio) {
  const int surprise = ratio > kFarOff ? 1 : ratio < 1 / kFarOff ? -1 : 0;
  const bool forgets = surprise != 0 && surprise == outlier_sign_;
  if (forgets) {
    observations_.erase(observations_.begin(), observations_.end() - 1);
    observations_.back().counted = observations_.back().seconds;
    ratios_.clear();
    bound_ratio_ = kDefaultRatio;
  } else {
    if (surprise != 0) observation.counted *= (surprise > 0 ? kFarOff : 1 / kFarOff) / ratio;
    UpdateRatio(ratio);
  }
  outlier_sign_ = surprise;
  observations_.push_back(observation);
  if (observations_.size() > kMaxObservations) observations_.pop_front();
  Fit();
  return forgets;
}

// Minimises sum w (t - x.theta)^2 + kStiffness * sum_i (mean(x_i^2) (theta_i - old_i)^2), theta >= 0, by coordinate
// descent. Scales the old coefficients to the current times first, since most often the device's speed has changed.
void LineFit::Fit() {
  std::array<Vector, kNumCoefficients> xx{};  // sums of products
  Vector xt{};
  double sum_weights = 0, sum_seconds = 0, sum_expected = 0, weight = 1;
  for (auto it = observations_.rbegin(); it != observations_.rend(); ++it, weight *= kForgetting) {
    for (size_t i = 0; i < kNumCoefficients; ++i) {
      for (size_t j = 0; j < kNumCoefficients; ++j) xx[i][j] += weight * it->size[i] * it->size[j];
      xt[i] += weight * it->size[i] * it->counted;
    }
    sum_weights += weight;
    sum_seconds += weight * it->counted;
    sum_expected += weight * Dot(coefficients_, it->size);
  }
  Vector old = coefficients_;
  for (double& coefficient : old) coefficient *= sum_seconds / sum_expected;
  coefficients_ = old;
  for (int sweep = 0; sweep < kMaxSweeps; ++sweep) {
    double largest_change = 0;  // effect on a batch's time, in seconds
    for (size_t i = 0; i < kNumCoefficients; ++i) {
      if (xx[i][i] <= 0) continue;
      const double stiffness = kStiffness * xx[i][i] / sum_weights;
      const double rest = xt[i] - Dot(xx[i], coefficients_) + xx[i][i] * coefficients_[i] + stiffness * old[i];
      const double value = std::max(0.0, rest / (xx[i][i] + stiffness));
      largest_change = std::max(largest_change, std::abs(value - coefficients_[i]) * std::sqrt(xx[i][i] / sum_weights));
      coefficients_[i] = value;
    }
    if (largest_change < 1e-4 * sum_seconds / sum_weights) break;
  }
}

void LineFit::UpdateRatio(double ratio) {
  PushBounded(ratios_, std::min(ratio, kLargestRatio), kMaxRatios);
  const double least = ratios_.size() < kEnoughRatios ? kDefaultRatio : 1;
  bound_ratio_ = std::max(least, NthLargest(ratios_, 1));
}

void LineFit::UpdateVoxels(double voxels_per_point) {
  PushBounded(densities_, voxels_per_point, kMaxDensities);
  voxels_per_point_ = NthLargest(densities_, densities_.size() / 20);
}

void LineFit::UpdateLargest() {
  largest_ = {};
  for (const Observation& observation : observations_) {
    for (const size_t i : {1, 2}) largest_[i] = std::max(largest_[i], observation.size[i] / observation.size[3]);
  }
}

double LineFit::Predict(const BatchSize& size) const {
  const auto requests = static_cast<double>(size.requests);
  const auto within = [&](size_t i, int64_t value) {
    return std::min(static_cast<double>(value), kKnownRange * largest_[i] * requests);
  };
  return Dot(coefficients_,
             {static_cast<double>(size.batches), within(1, size.points), within(2, size.voxels), requests});
}

void LineFit::StartAs(const LineFit& other) {
  if (&other == this) return;
  absl::MutexLock other_lock(&other.mutex_);
  absl::MutexLock lock(&mutex_);
  is_seeded_ = other.is_seeded_;
  coefficients_ = other.coefficients_;
  observations_ = other.observations_;
  largest_ = other.largest_;
  outlier_sign_ = other.outlier_sign_;
  ratios_ = other.ratios_;
  densities_ = other.densities_;
  bound_ratio_ = other.bound_ratio_;
  voxels_per_point_ = other.voxels_per_point_;
}

absl::Duration LineFit::Expected(const BatchSize& size) const {
  absl::ReaderMutexLock lock(&mutex_);
  return absl::Seconds(Predict(size));
}

bool LineFit::Knows(const BatchSize& size) const {
  const auto requests = static_cast<double>(size.requests);
  absl::ReaderMutexLock lock(&mutex_);
  return is_seeded_ && static_cast<double>(size.points) <= kKnownRange * largest_[1] * requests &&
         static_cast<double>(size.voxels) <= kKnownRange * largest_[2] * requests;
}

absl::Duration LineFit::Bound(const BatchSize& size) const {
  absl::ReaderMutexLock lock(&mutex_);
  return absl::Seconds(Predict(size) * bound_ratio_);
}

int64_t LineFit::EstimateVoxels(int64_t points) const {
  absl::ReaderMutexLock lock(&mutex_);
  return static_cast<int64_t>(std::ceil(static_cast<double>(points) * voxels_per_point_));
}

double LineFit::voxels_per_point() const {
  absl::ReaderMutexLock lock(&mutex_);
  return voxels_per_point_;
}

}  // namespace voxserve
