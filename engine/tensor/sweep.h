#pragma once

// The sweeps of a moving sensor, and their positions in another sweep's coordinates: the input of networks that combine
// several sweeps.

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/tensor/point_cloud.h"

namespace voxserve {

// The pose of a cloud in a frame that does not move: p_world = rotation * p_cloud + (x, y, z), in metres. The
// quaternion is normalised before use.
struct Pose {
  double x = 0;
  double y = 0;
  double z = 0;
  double qw = 1;
  double qx = 0;
  double qy = 0;
  double qz = 0;
};

// INVALID_ARGUMENT (BAD_POSE) if a value is not finite, the quaternion is 0, or a position is beyond 1e9 m.
absl::Status CheckPose(const Pose& pose);

// Row-major [3, 4]: p' = (m[0] x + m[1] y + m[2] z + m[3], ...).
using Transform = std::array<float, 12>;
inline constexpr Transform kIdentity = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0};

// Returns the transform from `from`'s coordinates to `to`'s: inverse(to) * from, computed in double and rounded once.
// Both poses must have passed CheckPose.
Transform RelativeTransform(const Pose& from, const Pose& to);

// One sweep. It is immutable and shared by the frames that contain it.
struct Sweep {
  PointCloud cloud;
  Pose pose;
  absl::Time stamp;
  std::shared_ptr<const void> reservation;  // accounts for the cloud's memory; null: nothing does
};

// A sweep as part of a frame that runs. Its points are moved in float32, with every product and sum rounded separately:
//  x' = ((m[0] * x + m[1] * y) + m[2] * z) + m[3], and so on for y' and z'.
// A frame's points are those of its sweeps, the newest sweep first, in each sweep's own order. The newest sweep, at
// index 0, is not moved.
struct PlacedSweep {
  std::shared_ptr<const Sweep> sweep;
  Transform transform = kIdentity;  // from the cloud's coordinates to the newest sweep's
  float age_seconds = 0;            // age relative to the newest sweep
};

// Returns the number of points in all sweeps.
uint64_t NumPoints(absl::Span<const PlacedSweep> sweeps);

// The reasons why a network cannot run several sweeps as one cloud.
enum class SweepObstacle {
  kNone,
  kAxes,        // its axes are not x, y and z, in any order
  kAgeFeature,  // it has no such age feature, or an axis has that name
};

// age_features: AgeFeatures of the same network. age_feature: "" if the network does not need a point's age.
SweepObstacle ObstacleToSweeps(absl::Span<const std::string> axes, absl::Span<const std::string> age_features,
                               std::string_view age_feature);

// Returns the names of the features that are not axes: each of them can hold a point's age.
template <typename Feature>
std::vector<std::string> AgeFeatures(const std::vector<std::string>& axes, const std::vector<Feature>& features) {
  std::vector<std::string> names;
  for (const Feature& feature : features) {
    if (std::find(axes.begin(), axes.end(), feature.name) == axes.end()) names.push_back(feature.name);
  }
  return names;
}

}  // namespace voxserve
