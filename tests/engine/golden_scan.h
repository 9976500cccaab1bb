#pragma once

// A golden scan: a real cloud and what other engines computed for it (tests/golden; its README has their making).

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/compiler/program.h"
#include "engine/model/model_version.h"
#include "engine/tensor/point_cloud.h"

namespace voxserve {

struct GoldenScan {
  PointCloud cloud;             // x, y, z, intensity
  std::vector<float> points;    // [num_points, 4], the same
  std::vector<int32_t> coords;  // [num_voxels, 3] ascending
  std::vector<float> logits;    // [num_voxels, num_classes]
  std::vector<uint8_t> labels;  // [num_points]
  int num_classes = 0;

  int64_t num_points() const { return static_cast<int64_t>(labels.size()); }
  int64_t num_voxels() const { return static_cast<int64_t>(coords.size() / 3); }

  // Row of each point's voxel, found here from the definition: round half to even of x / 0.05 in float32, minus the
  // minimum per axis.
  std::vector<int64_t> PointToVoxel() const;
};

// "pandaset_063" or "pandaset_070".
absl::StatusOr<GoldenScan> LoadGoldenScan(const std::string& name);

// The demo's network and its configuration.
absl::StatusOr<LoadedModel> LoadMinkUNetModel();

// The same, compiled for the CPU by the default plan.
absl::StatusOr<Program> LoadMinkUNet();

}  // namespace voxserve
