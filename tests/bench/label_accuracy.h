#pragma once

// How right the labels of points are: intersection over union against people's labels, and the labels that differ from
// those of a reference. Plain arithmetic.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/tensor/point_cloud.h"

namespace voxserve::bench {

// Counts of points by class; frames are added up.
class Confusion {
 public:
  explicit Confusion(int num_classes) : counts_(static_cast<size_t>(num_classes)) {}

  // Points whose truth is no class are left out. labels and truth have one size.
  void Add(absl::Span<const uint8_t> labels, absl::Span<const uint8_t> truth);

  // True positives over true positives, false positives and false negatives. Nothing where no point is of the class.
  std::optional<double> IntersectionOverUnion(int class_id) const;
  // The mean over the classes that points are of; 0 where there are none.
  double MeanIntersectionOverUnion() const;
  // The share of points with the right label; 0 where there are none.
  double Accuracy() const;

 private:
  struct Counts {
    int64_t right = 0;   // labels that are the truth
    int64_t labels = 0;  // points labelled so
    int64_t points = 0;  // points that are of the class
  };
  std::vector<Counts> counts_;
};

// A frame of PandaSet as the demo's network takes it.
struct LabelledFrame {
  PointCloud cloud;            // x, y, z (m, in the spinning sensor's frame), intensity (0..1)
  std::vector<uint8_t> truth;  // [num_points] classes of the demo's network; kNoClass
};
inline constexpr uint8_t kNoClass = 255;

// The points of the spinning sensor of frame "63" or another in pandaset-002 of the shared data. NOT_FOUND names the
// file that is missing; INVALID_ARGUMENT says what is wrong with it.
absl::StatusOr<LabelledFrame> ReadPandaSetFrame(const std::string& number);

// The class of the demo's network for a class of PandaSet (classes.json), or kNoClass.
uint8_t ClassOfPandaSet(uint32_t pandaset_class);

}  // namespace voxserve::bench
