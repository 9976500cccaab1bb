#pragma once

// Reads real scans as point clouds. paths.h tells where the files are.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tensor/point_cloud.h"

namespace voxserve::support {

// The layouts of scan files, which hold packed points without a header. ReadScan scales an intensity of 0..255 to 0..1.
enum class ScanFormat {
  kKitti,           // float32 x, y, z, intensity
  kWaymo,           // float32 x, y, z, intensity, elongation
  kNuScenes,        // float32 x, y, z, intensity (0..255), ring: one sweep
  kNuScenesSweeps,  // float16 x, y, z, intensity (0..255), dt (s): 10 sweeps merged into one cloud
};

// Returns the scan's cloud. Returns NOT_FOUND with the path if there is no file, and INVALID_ARGUMENT if the file's
// size is not a whole number of points.
absl::StatusOr<PointCloud> ReadScan(ScanFormat format, const std::string& path);

// Returns the fields that networks read from such a scan, in order: x, y, z, intensity, and elongation or dt.
std::vector<std::string> FeaturesOf(ScanFormat format);

struct RealScan {
  const char* name;  // shown in benchmarks' tables
  ScanFormat format;
  const char* file;  // relative to SharedData()
  int64_t num_points;

  std::string path() const;
};

// This is the scan on which the README's numbers are measured.
inline constexpr RealScan kSemanticKittiScan = {"semantickitti-00/000000", ScanFormat::kKitti,
                                                "semantickitti-00/000000.bin", 124668};
inline constexpr RealScan kNuScenesSweeps = {"nuscenes/10sweeps", ScanFormat::kNuScenesSweeps,
                                             "nuscenes/10sweeps_fp16_xyzit.bin", 271156};
inline constexpr RealScan kNuScenesKeyFrame = {
    "nuscenes/keyframe", ScanFormat::kNuScenes,
    "nuscenes/n008-2018-08-01-15-16-36-0400__LIDAR_TOP__1533151611446636.pcd.bin", 34720};
inline constexpr RealScan kWaymoFrame = {"waymo/frame_100", ScanFormat::kWaymo, "waymo/seq_0_frame_100.bin", 177125};

// Returns the scan above whose name is `name`, or nullopt.
std::optional<RealScan> RealScanNamed(const std::string& name);

// Returns the files, relative to SharedData(), of the two scans that the same vehicle recorded next. Returns none for
// kNuScenesSweeps.
std::vector<std::string> LaterFramesOf(const RealScan& scan);

}  // namespace voxserve::support
