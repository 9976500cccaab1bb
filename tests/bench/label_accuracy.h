#pragma once

// Measures how accurate the labels of points are, by intersection over union and by the share of right labels. The
// truth is either the labels that people gave (PandaSet) or the labels of a reference. No GPU is needed.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/tensor/point_cloud.h"

namespace voxserve::bench {

// Counts the points of each class by their label and truth. The counts of several frames add up. Not thread-safe.
class Confusion {
 public:
  explicit Confusion(int num_classes) : counts_(static_cast<size_t>(num_classes)) {}

  // Counts the points of a frame, except those whose truth is not a class id (kNoClass). labels and truth:
  // [num_points].
  void Add(absl::Span<const uint8_t> labels, absl::Span<const uint8_t> truth);

  // Returns true positives / (true positives + false positives + false negatives), or nullopt if no point's truth is
  // the class.
  std::optional<double> IntersectionOverUnion(int class_id) const;
  // Returns the mean over the classes that have points, or 0 if no class has any.
  double MeanIntersectionOverUnion() const;
  // Returns the share of points with the right label, or 0 if there are no points.
  double Accuracy() const;

 private:
  struct Counts {
    int64_t right = 0;   // points of this class with the right label
    int64_t labels = 0;  // points whose label is this class
    int64_t points = 0;  // points whose truth is this class
  };
  std::vector<Counts> counts_;
};

// A frame of PandaSet in the form that the demo's network (deploy/models/minkunet) reads.
struct LabelledFrame {
  PointCloud cloud;            // x, y, z (m, in the spinning sensor's frame), intensity (0..1)
  std::vector<uint8_t> truth;  // [num_points] class ids of the demo's network, or kNoClass
};
inline constexpr uint8_t kNoClass = 255;

// Reads the points of the spinning sensor of a frame ("63", for instance) in pandaset-002 of the shared data. Returns
// NOT_FOUND with the path if a file is missing, and INVALID_ARGUMENT if the content of a file is wrong.
absl::StatusOr<LabelledFrame> ReadPandaSetFrame(const std::string& number);

// Returns the demo network's class for a class of PandaSet (classes.json), or kNoClass.
uint8_t ClassOfPandaSet(uint32_t pandaset_class);

}  // namespace voxserve::bench
