#pragma once

// A scan with its labels, its boxes or both, ready for counts and pictures.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/api/client.h"

namespace voxserve::client {

// x forward, y left, z up, in metres; the sensor is at the origin.
struct AnnotatedScan {
  std::vector<float> x, y, z;
  std::vector<uint16_t> labels;  // [num_points]; empty for a scan with boxes alone
  uint16_t ignore_label = 255;
  std::optional<std::vector<Box>> boxes;   // alone, or over the labels
  std::vector<v1::ClassInfo> classes;      // of the labels
  std::vector<v1::ClassInfo> box_classes;  // of the boxes, which may be another model's

  static absl::StatusOr<AnnotatedScan> WithLabels(const PointCloud& cloud, std::vector<uint16_t> labels,
                                                  const v1::ModelVersion& model);
  static absl::StatusOr<AnnotatedScan> WithBoxes(const PointCloud& cloud, std::vector<Box> boxes,
                                                 const v1::ModelVersion& model);

  // Puts boxes over the labels.
  void AddBoxes(std::vector<Box> found, const v1::ModelVersion& model);
};

struct ClassCount {
  int id = 0;
  std::string name;
  uint32_t color_rgb = 0;
  uint64_t num_points = 0;
  double share = 0;  // share of all points
};

// Returns one entry for every class that has points, most points first. A label that the model does not list becomes
// "class N" in grey. The ignore label is left out.
std::vector<ClassCount> CountClasses(const std::vector<uint16_t>& labels, uint16_t ignore_label,
                                     const std::vector<v1::ClassInfo>& classes);

// The part of the ground to show, in metres. It contains the sensor.
struct Extent {
  float min_x = 0, max_x = 0, min_y = 0, max_y = 0;

  float length() const { return max_x - min_x; }  // along x
  float width() const { return max_y - min_y; }
};

// Returns the extent without the few far points that would make everything small. It keeps most of the occupied square
// metres, and every box that can be drawn. A square metre weighs the square root of its points, since points are dense
// near the sensor.
Extent DenseExtent(const AnnotatedScan& scan);

}  // namespace voxserve::client
