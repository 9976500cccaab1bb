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

SiteRooms SiteForecast::Rooms(int64_t num_points) const {
  SiteRooms rooms;
  if (max_coordinate_ > 0) {
    rooms.axis_bits = static_cast<int32_t>(std::bit_width(static_cast<uint64_t>(std::ceil(max_coordinate_ * kRoom))));
  }
  for (const double ratio : sites_per_point_) {
    const double expected = std::ceil(ratio * static_cast<double>(num_points) * kRoom);
    rooms.capacities.push_back(RoundUp(static_cast<int64_t>(expected)));
  }
  return rooms;
}

double SiteForecast::Voxels(int64_t num_points) const {
  return sites_per_point_.front() * static_cast<double>(num_points);
}

void SiteForecast::Learn(int64_t num_points, const std::vector<int64_t>& num_sites, int64_t max_coordinate) {
  sites_per_point_.resize(num_sites.size());
  for (size_t level = 0; level < num_sites.size(); ++level) {
    Follow(static_cast<double>(num_sites[level]) / static_cast<double>(num_points), sites_per_point_[level]);
  }
  Follow(static_cast<double>(max_coordinate), max_coordinate_);
}

}  // namespace voxserve
