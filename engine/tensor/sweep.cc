#include "engine/tensor/sweep.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"

namespace voxserve {
namespace {

// Larger than any frame on Earth; a double still resolves 0.1 um there.
constexpr double kMaxPosition = 1e9;

using Matrix = std::array<std::array<double, 3>, 3>;

Matrix RotationOf(const Pose& pose) {
  // The largest value is divided out first, since squares of very large or small values would leave a double's range.
  const double largest = std::max({std::abs(pose.qw), std::abs(pose.qx), std::abs(pose.qy), std::abs(pose.qz)});
  double w = pose.qw / largest, x = pose.qx / largest, y = pose.qy / largest, z = pose.qz / largest;
  const double length = std::sqrt(w * w + x * x + y * y + z * z);
  w /= length;
  x /= length;
  y /= length;
  z /= length;
  return {{{1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)},
           {2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)},
           {2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)}}};
}

absl::Status BadPose(const Pose& pose, const char* what) {
  return WithReason(
      absl::InvalidArgumentError(absl::StrCat("the pose ", what, ": x ", pose.x, ", y ", pose.y, ", z ", pose.z,
                                              ", qw ", pose.qw, ", qx ", pose.qx, ", qy ", pose.qy, ", qz ", pose.qz)),
      error_reason::kBadPose);
}

}  // namespace

absl::Status CheckPose(const Pose& pose) {
  const std::array<double, 3> position = {pose.x, pose.y, pose.z};
  const std::array<double, 4> rotation = {pose.qw, pose.qx, pose.qy, pose.qz};
  const auto is_finite = [](double value) { return std::isfinite(value); };
  if (!std::all_of(position.begin(), position.end(), is_finite) ||
      !std::all_of(rotation.begin(), rotation.end(), is_finite)) {
    return BadPose(pose, "is not finite");
  }
  if (std::all_of(rotation.begin(), rotation.end(), [](double value) { return value == 0; })) {
    return BadPose(pose, "has a quaternion of 0");
  }
  if (std::any_of(position.begin(), position.end(), [](double value) { return std::abs(value) > kMaxPosition; })) {
    return BadPose(pose, "is beyond 1e9 m");
  }
  return absl::OkStatus();
}

Transform RelativeTransform(const Pose& from, const Pose& to) {
  const Matrix from_rotation = RotationOf(from), to_rotation = RotationOf(to);
  const std::array<double, 3> moved = {from.x - to.x, from.y - to.y, from.z - to.z};
  Transform transform;
  for (size_t row = 0; row < 3; ++row) {
    // The inverse of a rotation is its transpose.
    const std::array<double, 3> axis = {to_rotation[0][row], to_rotation[1][row], to_rotation[2][row]};
    const auto dot = [&](double x, double y, double z) {
      return static_cast<float>(axis[0] * x + axis[1] * y + axis[2] * z);
    };
    for (size_t column = 0; column < 3; ++column) {
      transform[row * 4 + column] = dot(from_rotation[0][column], from_rotation[1][column], from_rotation[2][column]);
    }
    transform[row * 4 + 3] = dot(moved[0], moved[1], moved[2]);
  }
  return transform;
}

uint64_t NumPoints(absl::Span<const PlacedSweep> sweeps) {
  uint64_t num_points = 0;
  for (const PlacedSweep& placed : sweeps) num_points += placed.sweep->cloud.num_points();
  return num_points;
}

SweepObstacle ObstacleToSweeps(absl::Span<const std::string> axes, absl::Span<const std::string> age_features,
                               std::string_view age_feature) {
  constexpr std::string_view kSpatial[] = {"x", "y", "z"};
  if (!std::is_permutation(axes.begin(), axes.end(), std::begin(kSpatial), std::end(kSpatial))) {
    return SweepObstacle::kAxes;
  }
  const bool is_told =
      age_feature.empty() || std::find(age_features.begin(), age_features.end(), age_feature) != age_features.end();
  return is_told ? SweepObstacle::kNone : SweepObstacle::kAgeFeature;
}

}  // namespace voxserve
