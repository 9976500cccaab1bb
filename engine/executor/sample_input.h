#pragma once

// What one sample of a batch brings: a cloud, or several sweeps that count as one.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "engine/tensor/farthest_points.h"
#include "engine/tensor/point_cloud.h"
#include "engine/tensor/sweep.h"

namespace voxserve {

struct SampleInput {
  const PointCloud* cloud = nullptr;  // of the first sweep, where there are sweeps
  bool return_scores = false;
  // Newest first. Empty: the cloud alone. All points go through the network as one cloud's; the labels and scores are
  // of the first sweep's points.
  absl::Span<const PlacedSweep> sweeps = {};
  std::string_view age_feature = {};  // of the network: every point of a sweep has its age_seconds there; "": none
  std::optional<FarthestPoints> sample = {};  // not of several sweeps

  int64_t num_points() const { return static_cast<int64_t>(sweeps.empty() ? cloud->num_points() : NumPoints(sweeps)); }
  // The first so many are answered.
  int64_t num_answers() const {
    return static_cast<int64_t>(sweeps.empty() ? cloud->num_points() : sweeps.front().sweep->cloud.num_points());
  }
};

// One cloud of a sample, as it is read.
struct CloudPart {
  const PointCloud* cloud = nullptr;
  const PlacedSweep* placed = nullptr;  // the sweep whose cloud it is; null: none
  bool is_moved = false;                // by placed->transform
  std::string_view age_feature = {};    // "": none

  int64_t num_points() const { return static_cast<int64_t>(cloud->num_points()); }
};

// In the order of the sample's points. The parts refer to the input.
std::vector<CloudPart> PartsOf(const SampleInput& input);

}  // namespace voxserve
