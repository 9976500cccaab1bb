#pragma once

// Reads a scan file as a cloud that a server takes. The extension says what a file is:
//
//   .bin            KITTI: float32 x, y, z, intensity (0..1)
//   .pcd.bin        nuScenes: float32 x, y, z, intensity (0..255, scaled to 0..1), ring
//   .pcd            PCD 0.7: ascii, binary or binary_compressed
//   .ply            PLY 1.0: ascii, binary_little_endian or binary_big_endian; element "vertex"
//   .npy            NumPy: [N, C] (columns x, y, z, intensity; more are skipped) or a structured array
//
// Points are not converted: their bytes and a description go to the server. A .bin of another layout needs a field
// spec (field_spec.h), which then describes its points from the first byte to the last. For .npy of shape [N, C] it
// names the columns in order. In files that name their fields (PCD, PLY, structured NPY) an entry gives the scale and
// shift of the field of its name. Types that contradict the file are refused.

#include <string>

#include "absl/status/statusor.h"
#include "client/cpp/api/point_cloud.h"
#include "client/cpp/io/field_spec.h"

namespace voxserve::client {

struct ReadOptions {
  std::string fields = {};  // a field spec; "" for what the extension says
};

// NOT_FOUND; INVALID_ARGUMENT naming the file and what in it is wrong, with both numbers. A broken or hostile header
// never makes it allocate more than the file's size warrants (a compressed PCD: 264 times that).
absl::StatusOr<PointCloud> ReadPointCloud(const std::string& path, const ReadOptions& options = {});

// Whether the extension is one of the above.
bool IsPointCloudFile(const std::string& path);

}  // namespace voxserve::client
