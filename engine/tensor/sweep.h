#pragma once

// A sweep is one cloud of a moving sensor, with the sensor's pose and the time. Some networks run several sweeps as one
// cloud, called a frame: the points of the older sweeps are then transformed to the newest sweep's coordinates. All
// types here are plain values.

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

// Returns INVALID_ARGUMENT (BAD_POSE) if a value is not finite, the quaternion is 0, or x, y or z is beyond 1e9 m.
absl::Status CheckPose(const Pose& pose);

// A rigid transform as a row-major [3, 4] matrix m: x' = m[0] x + m[1] y + m[2] z + m[3], and so on for y' and z'.
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
  std::shared_ptr<const void> reservation;  // counts the cloud's memory in the memory budget; null: not counted
};

// A sweep as part of a frame that runs. Its points are transformed in float32, with every product and sum rounded
// separately:
//  x' = ((m[0] * x + m[1] * y) + m[2] * z) + m[3], and so on for y' and z'.
// A frame has the points of all its sweeps, the newest sweep first, in each sweep's own order. The newest sweep, at
// index 0, is not transformed.
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
  kAxes,        // the network's axes are not x, y and z, in any order
  kAgeFeature,  // the network has no feature with the given name, or the feature is an axis
};

// Returns the reason why a network with these axes cannot run several sweeps; kNone if it can. age_features: the
// network's AgeFeatures. age_feature: the name of the feature that is to hold each point's age; "" if none is.
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
