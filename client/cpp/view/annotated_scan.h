#pragma once

// AnnotatedScan is a scan with its labels, its boxes or both, ready for counts and pictures.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/api/client.h"

namespace voxserve::client {

// Coordinates are in metres: x forward, y left, z up; the sensor is at the origin.
struct AnnotatedScan {
  std::vector<float> x, y, z;
  std::vector<uint16_t> labels;  // [num_points] class ids; empty for a scan with boxes only
  uint16_t ignore_label = 255;
  std::optional<std::vector<Box>> boxes;   // the boxes, if the scan has any
  std::vector<v1::ClassInfo> classes;      // the classes of the labels
  std::vector<v1::ClassInfo> box_classes;  // the classes of the boxes, which another model may have found

  // Return a scan with the model's answer. They return INVALID_ARGUMENT if the cloud lacks a field x, y or z, or if it
  // does not have as many points as labels.
  static absl::StatusOr<AnnotatedScan> WithLabels(const PointCloud& cloud, std::vector<uint16_t> labels,
                                                  const v1::ModelVersion& model);
  static absl::StatusOr<AnnotatedScan> WithBoxes(const PointCloud& cloud, std::vector<Box> boxes,
                                                 const v1::ModelVersion& model);

  // Adds boxes, which pictures draw over the labels. model: the model that found the boxes.
  void AddBoxes(std::vector<Box> found, const v1::ModelVersion& model);
};

struct ClassCount {
  int id = 0;
  std::string name;
  uint32_t color_rgb = 0;
  uint64_t num_points = 0;
  double share = 0;  // num_points as a share (0 to 1) of all points
};

// Returns one entry for every class that has points, most points first. A label N that `classes` does not list becomes
// "class N" in grey. The ignore label is left out.
std::vector<ClassCount> CountClasses(const std::vector<uint16_t>& labels, uint16_t ignore_label,
                                     const std::vector<v1::ClassInfo>& classes);

// The part of the ground that a picture shows, in metres. It contains the sensor.
struct Extent {
  float min_x = 0, max_x = 0, min_y = 0, max_y = 0;

  float length() const { return max_x - min_x; }  // along x
  float width() const { return max_y - min_y; }
};

// Returns the extent of the scan without the few far points that would make everything else small. Along each axis it
// cuts off 8% of the weight at each end. Each square metre of the ground has as weight the square root of its number of
// points, since points are dense near the sensor. The extent contains every box that can be drawn.
Extent DenseExtent(const AnnotatedScan& scan);

}  // namespace voxserve::client
