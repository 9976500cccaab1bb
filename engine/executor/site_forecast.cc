#include "engine/executor/site_forecast.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/algorithm/container.h"
#include "kernels/coordinates/coordinate_key.h"

namespace voxserve {
namespace {

constexpr double kCapacityFactor = 1.125;  // capacities exceed the expected sizes by this factor
// An expected maximum falls (an expected minimum rises) with each batch by this share of its distance to the new value.
constexpr double kForgotten = 0.05;
constexpr double kForgottenBehindPrunes = 0.001;
constexpr int kStepsAnOctave = 16;     // capacities between one power of two and the next
constexpr int64_t kSmallestStep = 64;  // in sites

int64_t RoundUp(int64_t sites) {
  const auto octave = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(sites, 1))));
  const int64_t step = std::max(kSmallestStep, octave / kStepsAnOctave);
  return std::max(step, (sites + step - 1) / step * step);
}

// FollowMost raises an expected maximum at once and lowers it slowly; FollowLeast lowers an expected minimum at once
// and raises it slowly.
void FollowMost(double seen, double& expected, double forgotten = kForgotten) {
  expected = std::max(seen, expected + (seen - expected) * forgotten);
}
void FollowLeast(double seen, double& expected) {
  expected = std::min(seen, expected + (seen - expected) * kForgotten);
}

}  // namespace

size_t SiteForecast::IndexOf(int64_t num_points) {
  return static_cast<size_t>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(num_points, 0))));
}

bool SiteForecast::has_learned(int64_t num_points) const {
  const Bucket& bucket = BucketOf(num_points);
  return !bucket.sites_per_point.empty() && bucket.num_resting == 0;
}

BatchCapacities SiteForecast::CapacitiesFor(int64_t num_points) const {
  const Bucket& bucket = BucketOf(num_points);
  BatchCapacities capacities;
  const auto& farthest = bucket.max_coordinate;
  if (std::any_of(farthest.begin(), farthest.end(), [](double coordinate) { return coordinate > 0; })) {
    std::transform(farthest.begin(), farthest.end(), capacities.axis_bits.begin(), [](double coordinate) {
      return kernels::AxisBitsFor(static_cast<int64_t>(std::ceil(coordinate * kCapacityFactor)));
    });
    const int32_t most = *std::max_element(capacities.axis_bits.begin(), capacities.axis_bits.end());
    for (int32_t& bits : capacities.axis_bits) bits = std::min(bits + 1, most);
  }
  for (const double ratio : bucket.sites_per_point) {
    const double expected = std::ceil(ratio * static_cast<double>(num_points) * kCapacityFactor);
    capacities.sites.push_back(RoundUp(static_cast<int64_t>(expected)));
  }
  return capacities;
}

double SiteForecast::MostVoxels(int64_t num_points) const {
  return BucketOf(num_points).sites_per_point.front() * static_cast<double>(num_points);
}

double SiteForecast::FewestVoxels(int64_t num_points) const {
  return BucketOf(num_points).fewest_voxels_per_point * static_cast<double>(num_points);
}

void SiteForecast::Learn(int64_t num_points, const std::vector<int64_t>& num_sites, const kernels::Axes& max_coordinate,
                         const std::vector<int>& behind_prunes) {
  Bucket& bucket = buckets_[IndexOf(num_points)];
  bucket.num_resting = std::max(0, bucket.num_resting - 1);
  for (size_t axis = 0; axis < max_coordinate.size(); ++axis) {
    FollowMost(static_cast<double>(max_coordinate[axis]), bucket.max_coordinate[axis]);
  }
  if (num_sites.empty()) return;
  const bool is_first = bucket.sites_per_point.size() != num_sites.size();
  if (is_first) bucket.sites_per_point.assign(num_sites.size(), 0);
  for (size_t level = 0; level < num_sites.size(); ++level) {
    if (num_sites[level] == kUnknown) continue;
    const bool is_behind = absl::c_linear_search(behind_prunes, static_cast<int>(level));
    FollowMost(static_cast<double>(num_sites[level]) / static_cast<double>(num_points), bucket.sites_per_point[level],
               is_behind ? kForgottenBehindPrunes : kForgotten);
  }
  const double voxels_per_point = static_cast<double>(num_sites.front()) / static_cast<double>(num_points);
  if (is_first) bucket.fewest_voxels_per_point = voxels_per_point;
  FollowLeast(voxels_per_point, bucket.fewest_voxels_per_point);
}

const SiteForecast* SiteForecasts::Find(UniqueId program) const {
  const auto found = forecasts_.find(program.value());
  return found == forecasts_.end() ? nullptr : &found->second;
}

SiteForecast& SiteForecasts::Of(UniqueId program) {
  if (forecasts_.size() >= kMostPrograms && !forecasts_.contains(program.value())) forecasts_.clear();
  return forecasts_[program.value()];
}

}  // namespace voxserve
