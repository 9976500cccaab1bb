#pragma once

// A scan with its labels or boxes, ready to be counted and looked at.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/api/client.h"

namespace voxserve::client {

// x forward, y left, z up, metres, the sensor at the origin.
struct AnnotatedScan {
  std::vector<float> x, y, z;
  std::vector<uint16_t> labels;  // [num_points]; empty of a scan with boxes
  uint16_t ignore_label = 255;
  std::optional<std::vector<Box>> boxes;  // in place of labels
  std::vector<v1::ClassInfo> classes;

  static absl::StatusOr<AnnotatedScan> WithLabels(const PointCloud& cloud, std::vector<uint16_t> labels,
                                                  const v1::ModelVersion& model);
  static absl::StatusOr<AnnotatedScan> WithBoxes(const PointCloud& cloud, std::vector<Box> boxes,
                                                 const v1::ModelVersion& model);
};

struct ClassCount {
  int id = 0;
  std::string name;
  uint32_t color_rgb = 0;
  uint64_t num_points = 0;
  double share = 0;  // of all points
};

// One entry for every class that has points, most points first; labels that the model does not list are "class N" in
// grey. The ignore label has none.
std::vector<ClassCount> CountClasses(const std::vector<uint16_t>& labels, uint16_t ignore_label,
                                     const std::vector<v1::ClassInfo>& classes);

// The part of the ground that is worth showing, in metres. The sensor lies inside.
struct Extent {
  float min_x = 0, max_x = 0, min_y = 0, max_y = 0;

  float length() const { return max_x - min_x; }  // along x
  float width() const { return max_y - min_y; }
};

// Leaves out the few far points that would make everything small: keeps the bulk of the occupied square metres, each
// weighing the root of its points, because points crowd near the sensor, and every box that can be drawn.
Extent DenseExtent(const AnnotatedScan& scan);

}  // namespace voxserve::client
