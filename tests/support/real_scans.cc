#include "tests/support/real_scans.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "tests/support/paths.h"
#include "tests/support/zip.h"

namespace voxserve::support {
namespace {

// Returns the layout of points whose fields all have one type and follow each other without gaps.
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

std::optional<RealScan> RealScanNamed(const std::string& name) {
  for (const RealScan& scan : {kSemanticKittiScan, kNuScenesSweeps, kNuScenesKeyFrame, kWaymoFrame}) {
    if (name == scan.name) return scan;
  }
  return std::nullopt;
}

std::vector<std::string> LaterFramesOf(const RealScan& scan) {
  switch (scan.format) {
    case ScanFormat::kKitti:
      return {"semantickitti-00/000001.bin", "semantickitti-00/000002.bin"};
    case ScanFormat::kWaymo:
      return {"waymo/seq_0_frame_101.bin", "waymo/seq_0_frame_102.bin"};
    case ScanFormat::kNuScenes:
      return {"nuscenes/n008-2018-08-01-15-16-36-0400__LIDAR_TOP__1533151611896734.pcd.bin",
              "nuscenes/n008-2018-08-01-15-16-36-0400__LIDAR_TOP__1533151612397179.pcd.bin"};
    case ScanFormat::kNuScenesSweeps:
      break;
  }
  return {};
}

}  // namespace voxserve::support
