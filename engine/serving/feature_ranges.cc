#include "engine/serving/feature_ranges.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>

namespace voxserve {
namespace {

constexpr uint64_t kBlockPoints = 64;
constexpr uint64_t kMaxBlocks = 64;
constexpr float kSlack = 0.05f;        // of the range's width
constexpr double kMostOutside = 0.01;  // of the values

FeatureWarning LookAt(const InputFeature& feature, const PointField& field, const PointCloud& cloud) {
  const ValueRange& range = *feature.range;
  const float slack = kSlack * (range.high - range.low);
  FeatureWarning found = {.feature = feature.name, .range = range};
  const uint64_t num_points = cloud.num_points();
  const uint64_t spacing = std::max(kBlockPoints, num_points / kMaxBlocks);  // from one block to the next
  std::array<float, kBlockPoints> values;
  for (uint64_t block = 0; block < kMaxBlocks && block * spacing < num_points; ++block) {
    const uint64_t begin = block * spacing;
    const uint64_t end = std::min(num_points, begin + kBlockPoints);
    cloud.ReadField(field, begin, end, values.data(), 1);
    for (uint64_t i = 0; i < end - begin; ++i) {
      const float value = values[i];
      if (!std::isfinite(value)) continue;
      found.smallest = found.num_checked == 0 ? value : std::min(found.smallest, value);
      found.largest = found.num_checked == 0 ? value : std::max(found.largest, value);
      ++found.num_checked;
      if (value < range.low - slack || value > range.high + slack) ++found.num_outside;
    }
  }
  return found;
}

}  // namespace

std::vector<FeatureWarning> FindFeatureWarnings(const VoxelizeOp& op, const PointCloud& cloud) {
  std::vector<FeatureWarning> warnings;
  for (const InputFeature& feature : op.features) {
    if (!feature.range.has_value()) continue;
    const PointField* const field = cloud.FindField(feature.name);
    if (field == nullptr) continue;
    FeatureWarning found = LookAt(feature, *field, cloud);
    if (static_cast<double>(found.num_outside) > kMostOutside * static_cast<double>(found.num_checked)) {
      warnings.push_back(std::move(found));
    }
  }
  return warnings;
}

}  // namespace voxserve
