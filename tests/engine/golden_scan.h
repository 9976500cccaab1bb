#pragma once

// A golden scan is a real cloud and what other engines computed for it. tests/golden/README.md says how they were made
// and stored.

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
  std::vector<float> margins;   // [num_voxels] the best logit minus the second best, and at most 4
  std::vector<uint8_t> labels;  // [num_points]
  int num_classes = 0;
  // Voxels are in ascending order of their coordinates. The logits of voxels 0, logit_step, 2 * logit_step, ... are
  // stored: [stored voxels, num_classes]. The step of pandaset_070 is 1.
  std::vector<float> logits;
  int64_t logit_step = 1;

  int64_t num_points() const { return static_cast<int64_t>(labels.size()); }
  int64_t num_voxels() const { return static_cast<int64_t>(margins.size()); }

  // Returns the num_classes logits of a voxel, or null where they are not stored.
  const float* LogitsOf(int64_t voxel) const;

  // Returns the row of each point's voxel, found here from the definition: round half to even of x / 0.05 in float32,
  // minus the minimum per axis.
  std::vector<int64_t> PointToVoxel() const;
};

// "pandaset_063" or "pandaset_070".
absl::StatusOr<GoldenScan> LoadGoldenScan(const std::string& name);

// Loads the demo's network and its configuration.
absl::StatusOr<LoadedModel> LoadMinkUNetModel();

// Loads the demo's network, compiled for the CPU by the default plan.
absl::StatusOr<Program> LoadMinkUNet();

}  // namespace voxserve
