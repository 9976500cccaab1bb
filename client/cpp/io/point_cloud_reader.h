#pragma once

// ReadPointCloud reads a scan file as a cloud for the server. The extension selects the format:
//
//   .bin            KITTI: float32 x, y, z, intensity (0..1)
//   .pcd.bin        nuScenes: float32 x, y, z, intensity (0..255, which the server scales to 0..1), ring
//   .pcd            PCD 0.7: ascii, binary or binary_compressed
//   .ply            PLY 1.0: ascii, binary_little_endian or binary_big_endian; element "vertex"
//   .npy            NumPy: [N, C] (columns x, y, z, intensity; further columns are skipped) or a structured array
//
// The client does not convert values: the server gets the bytes of the file's values, with a description of the fields.
// The description has the scale and shift of each field, which the server applies. In PCD and PLY an intensity or
// reflectivity of uint8 or uint16 gets the scale that makes its type's largest value 1, unless the spec names it.
//
// A field spec (field_spec.h) describes a .bin file of another layout, from the first byte of a point to the last. For
// .npy of shape [N, C] the spec names the columns in order. In files that name their fields (PCD, PLY, structured NPY)
// an entry of the spec sets the scale and shift of the field with the same name. A spec whose types contradict the file
// is refused. An entry NEW=OLD of the spec renames a field of any format.

#include <string>

#include "absl/status/statusor.h"
#include "client/cpp/api/point_cloud.h"
#include "client/cpp/io/field_spec.h"

namespace voxserve::client {

struct ReadOptions {
  std::string fields = {};  // a field spec; "" for the extension's layout
};

// Returns the errors of ReadFile (file.h), and INVALID_ARGUMENT, which names the file and the problem, if the contents
// are bad. A broken or hostile header cannot make the function allocate more than the file's size justifies (for a
// compressed PCD 264 times the size).
absl::StatusOr<PointCloud> ReadPointCloud(const std::string& path, const ReadOptions& options = {});

// Returns true if the path has one of the extensions in the list above.
bool IsPointCloudFile(const std::string& path);

}  // namespace voxserve::client
