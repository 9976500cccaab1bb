#include "engine/serving/admission/load.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace voxserve {
namespace {

// All fields except the number of requests.
constexpr std::array kSizes = {&Load::points,         &Load::bytes,           &Load::samples,
                               &Load::sampled_points, &Load::selected_points, &Load::unseen_points};

}  // namespace

Load Load::Of(const InferTask& task) {
  Load load{.requests = 1, .points = task.num_points(), .bytes = task.num_bytes()};
  if (!task.sample) return load;
  // Bounds the size of the sample: one that is larger than the cloud is refused, now or when its points are read.
  const auto num_selected = static_cast<int64_t>(
      std::min<uint64_t>(task.sample->num_points, static_cast<uint64_t>(std::max<int64_t>(load.points, 0))));
  load.samples = 1;
  load.sampled_points = load.points;
  load.selected_points = num_selected;
  if (task.sample->restricts_network) load.unseen_points = load.points - num_selected;
  return load;
}

Load& Load::operator+=(const Load& other) {
  requests += other.requests;
  for (const auto size : kSizes) this->*size += other.*size;
  return *this;
}

Load& Load::operator-=(const Load& other) {
  requests -= other.requests;
  for (const auto size : kSizes) this->*size -= other.*size;
  return *this;
}

Load Load::Scaled(double factor) const {
  Load scaled{.requests = std::lround(static_cast<double>(requests) * factor)};
  for (const auto size : kSizes) scaled.*size = static_cast<int64_t>(static_cast<double>(this->*size) * factor);
  // Keeps one sample, since sampled points without a sample would be predicted to take no time.
  if (scaled.sampled_points > 0) scaled.samples = std::max<int64_t>(scaled.samples, 1);
  return scaled;
}

}  // namespace voxserve
