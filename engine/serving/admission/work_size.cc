#include "engine/serving/admission/work_size.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace voxserve {
namespace {

// All fields except the number of requests.
constexpr std::array kSizes = {&WorkSize::points,         &WorkSize::bytes,           &WorkSize::selections,
                               &WorkSize::sampled_points, &WorkSize::selected_points, &WorkSize::unseen_points};

}  // namespace

WorkSize WorkSize::Of(const InferTask& task) {
  WorkSize load{.requests = 1, .points = task.num_points(), .bytes = task.num_bytes()};
  if (!task.sample) return load;
  // Bounds the size of the sample: one that is larger than the cloud is refused, now or when its points are read.
  const auto num_selected = static_cast<int64_t>(
      std::min<uint64_t>(task.sample->num_points, static_cast<uint64_t>(std::max<int64_t>(load.points, 0))));
  load.selections = 1;
  load.sampled_points = load.points;
  load.selected_points = num_selected;
  if (task.sample->restricts_network) load.unseen_points = load.points - num_selected;
  return load;
}

WorkSize& WorkSize::operator+=(const WorkSize& other) {
  requests += other.requests;
  for (const auto size : kSizes) this->*size += other.*size;
  return *this;
}

WorkSize& WorkSize::operator-=(const WorkSize& other) {
  requests -= other.requests;
  for (const auto size : kSizes) this->*size -= other.*size;
  return *this;
}

WorkSize WorkSize::Scaled(double factor) const {
  WorkSize scaled{.requests = std::lround(static_cast<double>(requests) * factor)};
  for (const auto size : kSizes) scaled.*size = static_cast<int64_t>(static_cast<double>(this->*size) * factor);
  // Keeps one sample, since sampled points without a sample would be predicted to take no time.
  if (scaled.sampled_points > 0) scaled.selections = std::max<int64_t>(scaled.selections, 1);
  return scaled;
}

}  // namespace voxserve
