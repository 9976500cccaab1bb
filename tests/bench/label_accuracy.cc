#include "tests/bench/label_accuracy.h"

#include <array>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "tests/support/paths.h"
#include "tests/support/values_file.h"

namespace voxserve::bench {
namespace {

// A rigid motion as three rows [rotation | shift], the shift in m.
using Pose = std::array<std::array<double, 4>, 3>;

// Maps from the frames of the files to the Pandar64's own frame (x forward, y left, z up), in which the demo's network
// was trained. The origin and the axes are those of the network's model card. The numbers are fitted to scan 063, which
// the golden files have in that frame; the two agree within 8e-6 m.
constexpr Pose kToSensor = {{{-3.92428e-06, 0.999876778, 0.0156980634, -0.807989862},
                             {-0.999999875, 3.92427e-06, -4.99938e-04, 1.12642821e-03},
                             {-4.99938e-04, -0.0156980634, 0.999876653, -1.84674335}}};

}  // namespace

void Confusion::Add(absl::Span<const uint8_t> labels, absl::Span<const uint8_t> truth) {
  for (size_t i = 0; i < truth.size(); ++i) {
    if (truth[i] >= counts_.size()) continue;
    ++counts_[truth[i]].points;
    if (labels[i] < counts_.size()) ++counts_[labels[i]].labels;
    if (labels[i] == truth[i]) ++counts_[truth[i]].right;
  }
}

std::optional<double> Confusion::IntersectionOverUnion(int class_id) const {
  const Counts& counts = counts_[static_cast<size_t>(class_id)];
  if (counts.points == 0) return std::nullopt;
  return static_cast<double>(counts.right) / static_cast<double>(counts.points + counts.labels - counts.right);
}

double Confusion::MeanIntersectionOverUnion() const {
  double sum = 0;
  int num_classes = 0;
  for (int c = 0; c < static_cast<int>(counts_.size()); ++c) {
    if (const std::optional<double> iou = IntersectionOverUnion(c)) {
      sum += *iou;
      ++num_classes;
    }
  }
  return num_classes == 0 ? 0 : sum / num_classes;
}

double Confusion::Accuracy() const {
  int64_t right = 0, points = 0;
  for (const Counts& counts : counts_) {
    right += counts.right;
    points += counts.points;
  }
  return points == 0 ? 0 : static_cast<double>(right) / static_cast<double>(points);
}

uint8_t ClassOfPandaSet(uint32_t pandaset_class) {
  // The network's class for each of PandaSet's classes: 0 road, 1 sidewalk, 2 vegetation, 3 building, 4 other-static, 5
  // car, 6 truck, 7 other-vehicle, 8 two-wheeler, 9 pedestrian, 10 sign, 11 cone-barrier.
  constexpr uint8_t kNone = kNoClass;
  constexpr uint8_t kClasses[] = {kNone, kNone, kNone, kNone, kNone, 2,  1,  0,  0,  0,  0,  1, 1, 5, 6,
                                  6,     6,     6,     8,     7,     7,  8,  7,  7,  8,  8,  8, 7, 7, 7,
                                  9,     9,     kNone, kNone, 11,    11, 10, 11, 11, 11, 11, 3, 4};
  return pandaset_class < std::size(kClasses) ? kClasses[pandaset_class] : kNone;
}

absl::StatusOr<LabelledFrame> ReadPandaSetFrame(const std::string& number) {
  constexpr size_t kFields = 5;  // x, y, z, intensity (0..255), sensor; sensor 0 is the spinning one
  const std::string path = absl::StrCat(support::SharedData(), "/pandaset-002/", number);
  ASSIGN_OR_RETURN(const std::vector<float> points, support::ReadValues<float>(path + ".bin"));
  ASSIGN_OR_RETURN(const std::vector<uint32_t> classes, support::ReadValues<uint32_t>(path + ".label"));
  if (points.size() != classes.size() * kFields) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has ", points.size(), " values for ", classes.size(),
                                                   " labels, which makes no ", kFields, " a point"));
  }
  LabelledFrame frame;
  std::vector<float> values;
  for (size_t i = 0; i < classes.size(); ++i) {
    const float* const point = &points[i * kFields];
    if (point[4] != 0) continue;
    for (const auto& row : kToSensor) {
      values.push_back(static_cast<float>(row[0] * point[0] + row[1] * point[1] + row[2] * point[2] + row[3]));
    }
    values.push_back(point[3] / 255);
    frame.truth.push_back(ClassOfPandaSet(classes[i]));
  }
  ASSIGN_OR_RETURN(frame.cloud,
                   PointCloud::FromFloats({"x", "y", "z", "intensity"}, values.data(), frame.truth.size()));
  return frame;
}

}  // namespace voxserve::bench
