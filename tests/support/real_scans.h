#pragma once

// Real scans as clouds, each in the layout of its files. Where they lie: paths.h.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tensor/point_cloud.h"

namespace voxserve::support {

// Packed points without a header. Fields in their canonical units: an intensity of 0..255 carries a scale.
enum class ScanFormat {
  kKitti,           // float32 x, y, z, intensity
  kWaymo,           // float32 x, y, z, intensity, elongation
  kNuScenes,        // float32 x, y, z, intensity (0..255), ring: one key frame
  kNuScenesSweeps,  // float16 x, y, z, intensity (0..255), dt (s): 10 sweeps in one cloud
};

// NOT_FOUND names the file; INVALID_ARGUMENT where its size is no number of points.
absl::StatusOr<PointCloud> ReadScan(ScanFormat format, const std::string& path);

// The fields that networks take from such a scan, in order: x, y, z, intensity, and elongation or dt.
std::vector<std::string> FeaturesOf(ScanFormat format);

struct RealScan {
  const char* name;  // in benchmarks' tables
  ScanFormat format;
  const char* file;  // under SharedData()
  int64_t num_points;

  std::string path() const;
};

// What the numbers of the README are measured on.
inline constexpr RealScan kSemanticKittiScan = {"semantickitti-00/000000", ScanFormat::kKitti,
                                                "semantickitti-00/000000.bin", 124668};
inline constexpr RealScan kNuScenesSweeps = {"nuscenes/10sweeps", ScanFormat::kNuScenesSweeps,
                                             "nuscenes/10sweeps_fp16_xyzit.bin", 271156};
inline constexpr RealScan kNuScenesKeyFrame = {
    "nuscenes/keyframe", ScanFormat::kNuScenes,
    "nuscenes/n008-2018-08-01-15-16-36-0400__LIDAR_TOP__1533151611446636.pcd.bin", 34720};
inline constexpr RealScan kWaymoFrame = {"waymo/frame_100", ScanFormat::kWaymo, "waymo/seq_0_frame_100.bin", 177125};

// The scan of that name, or nothing.
std::optional<RealScan> RealScanNamed(const std::string& name);

// The files, under SharedData(), of the frames that follow the scan in its drive.
std::vector<std::string> LaterFramesOf(const RealScan& scan);

}  // namespace voxserve::support
