#pragma once

// Single sweeps of a sensor that moves, and where they stand in another sweep's coordinates: what a network gets that
// wants several of them at once.

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

// Of a cloud's coordinates in a frame that stands still: p_world = rotation * p_cloud + (x, y, z), in metres. The
// quaternion counts normalised.
struct Pose {
  double x = 0;
  double y = 0;
  double z = 0;
  double qw = 1;
  double qx = 0;
  double qy = 0;
  double qz = 0;
};

// INVALID_ARGUMENT (BAD_POSE) where a value is not finite, the quaternion is all 0, or a position is beyond 1e9 m.
absl::Status CheckPose(const Pose& pose);

// Row-major [3, 4]: p' = (m[0] x + m[1] y + m[2] z + m[3], ...).
using Transform = std::array<float, 12>;
inline constexpr Transform kIdentity = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0};

// From `from`'s coordinates into `to`'s: inverse(to) * from, in double, rounded once. Both have passed CheckPose.
Transform RelativeTransform(const Pose& from, const Pose& to);

// Immutable, shared by the frames that it is part of.
struct Sweep {
  PointCloud cloud;
  Pose pose;
  absl::Time stamp;
  std::shared_ptr<const void> reservation;  // of the cloud's memory, where somebody counts it; goes with the sweep
};

// A sweep as a frame runs it. Points are moved as follows, in float32, every product and sum rounded by itself:
//   x' = ((m[0] * x + m[1] * y) + m[2] * z) + m[3], and so on for y' and z'.
// A frame's points are those of its sweeps, newest first, each sweep's in its own order. The newest, at index 0, is
// taken as it is.
struct PlacedSweep {
  std::shared_ptr<const Sweep> sweep;
  Transform transform = kIdentity;  // from the cloud's coordinates into the newest sweep's
  float age_seconds = 0;            // before the newest
};

// Of all of them.
uint64_t NumPoints(absl::Span<const PlacedSweep> sweeps);

// Why a network cannot run several sweeps as one cloud.
enum class SweepObstacle {
  kNone,
  kAxes,        // its axes are not x, y and z, in whatever order
  kAgeFeature,  // it has no feature of the age feature's name, or an axis has that name
};

// age_features: AgeFeatures of the same network. age_feature: "" where the network is not told a point's age.
SweepObstacle ObstacleToSweeps(absl::Span<const std::string> axes, absl::Span<const std::string> age_features,
                               std::string_view age_feature);

// The names of the features that are no axes: each can tell the network a point's age.
template <typename Feature>
std::vector<std::string> AgeFeatures(const std::vector<std::string>& axes, const std::vector<Feature>& features) {
  std::vector<std::string> names;
  for (const Feature& feature : features) {
    if (std::find(axes.begin(), axes.end(), feature.name) == axes.end()) names.push_back(feature.name);
  }
  return names;
}

}  // namespace voxserve
