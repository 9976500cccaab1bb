#include "client/cpp/view/annotated_scan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/view/boxes_from_above.h"

namespace voxserve::client {
namespace {

constexpr uint32_t kUnlistedClassColor = 0x808080;
constexpr float kMaxShownRange = 1000;  // in metres; points farther away are not shown
constexpr float kMinHalfExtent = 6;     // metres around the sensor that are always shown
constexpr double kTail = 0.08;          // share of the weight that is cut off at each end of an axis
constexpr float kRangeMargin = 2;       // in metres

struct Range {
  float min = 0, max = 0;
};

using WeightOfMetre = std::map<int, double>;  // along one axis

Range WithoutTails(const WeightOfMetre& weights) {
  double total = 0;
  for (const auto& [metre, weight] : weights) total += weight;
  Range range = {-kMinHalfExtent, kMinHalfExtent};
  double before = 0;
  for (const auto& [metre, weight] : weights) {
    const double after = before + weight;
    if (after > kTail * total && before < (1 - kTail) * total) {
      range.min = std::min(range.min, static_cast<float>(metre) - kRangeMargin);
      range.max = std::max(range.max, static_cast<float>(metre) + 1 + kRangeMargin);
    }
    before = after;
  }
  return range;
}

absl::StatusOr<AnnotatedScan> WithoutAnswer(const PointCloud& cloud) {
  AnnotatedScan scan;
  for (auto [axis, values] : {std::pair("x", &scan.x), std::pair("y", &scan.y), std::pair("z", &scan.z)}) {
    absl::StatusOr<std::vector<float>> read = FieldValues(cloud, axis);
    if (!read.ok()) return read.status();
    *values = *std::move(read);
  }
  return scan;
}

}  // namespace

absl::StatusOr<AnnotatedScan> AnnotatedScan::WithLabels(const PointCloud& cloud, std::vector<uint16_t> labels,
                                                        const v1::ModelVersion& model) {
  if (labels.size() != cloud.num_points()) {
    return absl::InvalidArgumentError(absl::StrCat(labels.size(), " labels for ", cloud.num_points(), " points"));
  }
  absl::StatusOr<AnnotatedScan> scan = WithoutAnswer(cloud);
  if (!scan.ok()) return scan;
  scan->labels = std::move(labels);
  scan->ignore_label = static_cast<uint16_t>(model.ignore_label());
  scan->classes.assign(model.classes().begin(), model.classes().end());
  return scan;
}

absl::StatusOr<AnnotatedScan> AnnotatedScan::WithBoxes(const PointCloud& cloud, std::vector<Box> boxes,
                                                       const v1::ModelVersion& model) {
  absl::StatusOr<AnnotatedScan> scan = WithoutAnswer(cloud);
  if (scan.ok()) scan->AddBoxes(std::move(boxes), model);
  return scan;
}

void AnnotatedScan::AddBoxes(std::vector<Box> found, const v1::ModelVersion& model) {
  boxes = std::move(found);
  box_classes.assign(model.classes().begin(), model.classes().end());
}

std::vector<ClassCount> CountClasses(const std::vector<uint16_t>& labels, uint16_t ignore_label,
                                     const std::vector<v1::ClassInfo>& classes) {
  std::map<int, ClassCount> by_id;
  for (const uint16_t label : labels) {
    if (label != ignore_label) ++by_id[label].num_points;
  }
  std::vector<ClassCount> counts;
  for (auto& [id, count] : by_id) {
    count.id = id;
    count.name = absl::StrCat("class ", id);
    count.color_rgb = kUnlistedClassColor;
    for (const v1::ClassInfo& info : classes) {
      if (static_cast<int>(info.id()) != id) continue;
      count.name = info.name();
      count.color_rgb = info.color_rgb();
    }
    count.share = static_cast<double>(count.num_points) / static_cast<double>(labels.size());
    counts.push_back(std::move(count));
  }
  std::stable_sort(counts.begin(), counts.end(),
                   [](const ClassCount& a, const ClassCount& b) { return a.num_points > b.num_points; });
  return counts;
}

Extent DenseExtent(const AnnotatedScan& scan) {
  absl::flat_hash_map<std::pair<int, int>, int> cells;  // number of points per square metre
  for (size_t i = 0; i < scan.x.size(); ++i) {
    if (std::abs(scan.x[i]) < kMaxShownRange && std::abs(scan.y[i]) < kMaxShownRange) {
      ++cells[{static_cast<int>(std::floor(scan.x[i])), static_cast<int>(std::floor(scan.y[i]))}];
    }
  }
  WeightOfMetre along_x, along_y;
  for (const auto& [cell, num_points] : cells) {
    const double weight = std::sqrt(num_points);
    along_x[cell.first] += weight;
    along_y[cell.second] += weight;
  }
  Range x = WithoutTails(along_x), y = WithoutTails(along_y);
  if (!scan.boxes) return {x.min, x.max, y.min, y.max};
  for (const DrawnBox& drawn : DrawnBoxes(*scan.boxes)) {
    for (const GroundPoint& corner : drawn.footprint.corners) {
      x = {std::min(x.min, corner.x - kRangeMargin), std::max(x.max, corner.x + kRangeMargin)};
      y = {std::min(y.min, corner.y - kRangeMargin), std::max(y.max, corner.y + kRangeMargin)};
    }
  }
  return {x.min, x.max, y.min, y.max};
}

}  // namespace voxserve::client
