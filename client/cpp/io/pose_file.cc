#include "client/cpp/io/pose_file.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cpp/io/file.h"
#include "client/cpp/io/text.h"

namespace voxserve::client {
namespace {

constexpr double kRotationTolerance = 1e-3;  // limit for R * R^T and det R, since files have few digits
constexpr size_t kNumValues = 12;

using Matrix = std::array<double, kNumValues>;  // [3, 4], row after row

bool IsRotation(const Matrix& m) {
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) {
      double dot = 0;
      for (int k = 0; k < 3; ++k) dot += m[i * 4 + k] * m[j * 4 + k];
      if (!(std::abs(dot - (i == j ? 1 : 0)) <= kRotationTolerance)) return false;
    }
  }
  const double determinant =
      m[0] * (m[5] * m[10] - m[6] * m[9]) - m[1] * (m[4] * m[10] - m[6] * m[8]) + m[2] * (m[4] * m[9] - m[5] * m[8]);
  return determinant > 0;
}

// Computes the largest component of the quaternion first, so that no component is the root of a small difference.
Pose FromMatrix(const Matrix& m) {
  Pose pose = {.x = m[3], .y = m[7], .z = m[11]};
  const double r00 = m[0], r11 = m[5], r22 = m[10];
  const double w = 1 + r00 + r11 + r22, x = 1 + r00 - r11 - r22, y = 1 - r00 + r11 - r22, z = 1 - r00 - r11 + r22;
  const double largest = std::max({w, x, y, z});
  const double root = std::sqrt(largest), scale = 0.5 / root;
  const double wx = (m[9] - m[6]) * scale, wy = (m[2] - m[8]) * scale, wz = (m[4] - m[1]) * scale;
  const double xy = (m[4] + m[1]) * scale, xz = (m[2] + m[8]) * scale, yz = (m[9] + m[6]) * scale;
  if (largest == w) {
    pose.qw = root / 2, pose.qx = wx, pose.qy = wy, pose.qz = wz;
  } else if (largest == x) {
    pose.qw = wx, pose.qx = root / 2, pose.qy = xy, pose.qz = xz;
  } else if (largest == y) {
    pose.qw = wy, pose.qx = xy, pose.qy = root / 2, pose.qz = yz;
  } else {
    pose.qw = wz, pose.qx = xz, pose.qy = yz, pose.qz = root / 2;
  }
  return pose;
}

absl::StatusOr<FramePose> ParseLine(absl::string_view line) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  if (words.size() != kNumValues && words.size() != kNumValues + 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(words.size(), " values, must be ", kNumValues, ", or a frame's name and ", kNumValues));
  }
  const size_t first = words.size() - kNumValues;
  Matrix matrix;
  for (size_t i = 0; i < kNumValues; ++i) {
    if (!absl::SimpleAtod(words[first + i], &matrix[i]) || !std::isfinite(matrix[i])) {
      return absl::InvalidArgumentError(absl::StrCat("'", words[first + i], "' is no finite number"));
    }
  }
  if (!IsRotation(matrix)) return absl::InvalidArgumentError("the matrix is no rotation");
  return FramePose{first > 0 ? std::string(words[0]) : std::string(), FromMatrix(matrix)};
}

}  // namespace

absl::StatusOr<std::vector<FramePose>> ReadPoses(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return text.status();
  std::vector<FramePose> poses;
  LineReader lines(*text);
  while (const std::optional<absl::string_view> line = lines.Next()) {
    if (line->find_first_not_of(" \t") == absl::string_view::npos) continue;
    absl::StatusOr<FramePose> pose = ParseLine(*line);
    if (!pose.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": line ", lines.num_lines(), ": ", pose.status().message()));
    }
    poses.push_back(*std::move(pose));
  }
  if (poses.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": the file has no poses"));
  return poses;
}

}  // namespace voxserve::client
