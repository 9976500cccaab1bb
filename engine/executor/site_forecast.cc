#include "engine/executor/site_forecast.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace voxserve {
namespace {

constexpr double kRoom = 1.125;
constexpr double kForgotten = 0.05;  // of what was more, with every batch
constexpr int kStepsAnOctave = 16;   // sizes of rooms
constexpr int64_t kSmallestStep = 64;

int64_t RoundUp(int64_t sites) {
  const auto octave = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(sites, 1))));
  const int64_t step = std::max(kSmallestStep, octave / kStepsAnOctave);
  return (sites + step - 1) / step * step;
}

// Follows what is more at once and what is less slowly.
void Follow(double seen, double& expected) { expected = std::max(seen, expected + (seen - expected) * kForgotten); }

}  // namespace

size_t SiteForecast::IndexOf(int64_t num_points) {
  return static_cast<size_t>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(num_points, 0))));
}

SiteRooms SiteForecast::Rooms(int64_t num_points) const {
  const Bucket& bucket = BucketOf(num_points);
  SiteRooms rooms;
  if (bucket.max_coordinate > 0) {
    const double farthest = std::ceil(bucket.max_coordinate * kRoom);
    rooms.axis_bits = static_cast<int32_t>(std::bit_width(static_cast<uint64_t>(farthest)));
  }
  for (const double ratio : bucket.sites_per_point) {
    const double expected = std::ceil(ratio * static_cast<double>(num_points) * kRoom);
    rooms.capacities.push_back(RoundUp(static_cast<int64_t>(expected)));
  }
  return rooms;
}

double SiteForecast::Voxels(int64_t num_points) const {
  return BucketOf(num_points).sites_per_point.front() * static_cast<double>(num_points);
}

void SiteForecast::Learn(int64_t num_points, const std::vector<int64_t>& num_sites, int64_t max_coordinate) {
  Bucket& bucket = buckets_[IndexOf(num_points)];
  bucket.sites_per_point.resize(num_sites.size());
  for (size_t level = 0; level < num_sites.size(); ++level) {
    Follow(static_cast<double>(num_sites[level]) / static_cast<double>(num_points), bucket.sites_per_point[level]);
  }
  Follow(static_cast<double>(max_coordinate), bucket.max_coordinate);
}

}  // namespace voxserve
