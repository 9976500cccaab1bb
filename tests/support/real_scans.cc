#include "tests/support/real_scans.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "tests/support/paths.h"
#include "tests/support/zip.h"

namespace voxserve::support {
namespace {

// Fields side by side, of one type.
PointCloudLayout Packed(PointFieldType type, const std::vector<std::string>& names, double intensity_scale) {
  PointCloudLayout layout;
  for (const std::string& name : names) {
    layout.fields.push_back({.name = name,
                             .offset = layout.point_step,
                             .type = type,
                             .scale = name == "intensity" ? intensity_scale : 1.0});
    layout.point_step += static_cast<uint32_t>(SizeOf(type));
  }
  return layout;
}

PointCloudLayout LayoutOf(ScanFormat format) {
  constexpr double kByteScale = 1.0 / 255;
  switch (format) {
    case ScanFormat::kKitti:
      return Packed(PointFieldType::kFloat32, {"x", "y", "z", "intensity"}, 1);
    case ScanFormat::kWaymo:
      return Packed(PointFieldType::kFloat32, {"x", "y", "z", "intensity", "elongation"}, 1);
    case ScanFormat::kNuScenes:
      return Packed(PointFieldType::kFloat32, {"x", "y", "z", "intensity", "ring"}, kByteScale);
    case ScanFormat::kNuScenesSweeps:
      break;
  }
  return Packed(PointFieldType::kFloat16, {"x", "y", "z", "intensity", "dt"}, kByteScale);
}

}  // namespace

absl::StatusOr<PointCloud> ReadScan(ScanFormat format, const std::string& path) {
  ASSIGN_OR_RETURN(std::string bytes, ReadFile(path));
  PointCloudLayout layout = LayoutOf(format);
  if (bytes.size() % layout.point_step != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", bytes.size(), " bytes, no multiple of ", layout.point_step));
  }
  layout.num_points = bytes.size() / layout.point_step;
  return PointCloud::Create(std::move(layout), std::move(bytes));
}

std::vector<std::string> FeaturesOf(ScanFormat format) {
  std::vector<std::string> features = {"x", "y", "z", "intensity"};
  if (format == ScanFormat::kWaymo) features.push_back("elongation");
  if (format == ScanFormat::kNuScenesSweeps) features.push_back("dt");
  return features;
}

std::string RealScan::path() const { return absl::StrCat(SharedData(), "/", file); }

}  // namespace voxserve::support
