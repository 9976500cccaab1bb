#pragma once

// Loads golden scans: a golden scan is a real cloud with the logits and labels that TorchSparse and NumPy computed for
// it with the demo's MinkUNet. tests/golden/README.md says how the golden scans were made and stored.

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
  std::vector<float> points;    // [num_points, 4], the values of `cloud`
  std::vector<float> margins;   // [num_voxels] the best logit minus the second best, and at most 4
  std::vector<uint8_t> labels;  // [num_points]
  int num_classes = 0;
  // Voxels are in ascending order of their coordinates. The logits of voxels 0, logit_step, 2 * logit_step, ... are
  // stored: [stored voxels, num_classes]. The step of pandaset_070 is 1.
  std::vector<float> logits;
  int64_t logit_step = 1;

  int64_t num_points() const { return static_cast<int64_t>(labels.size()); }
  int64_t num_voxels() const { return static_cast<int64_t>(margins.size()); }

  // Returns the num_classes logits of a voxel, or null if the file does not have them.
  const float* LogitsOf(int64_t voxel) const;

  // Returns the row of each point's voxel, [num_points]. It is computed here, without the engine: the voxel is x / 0.05
  // in float32, rounded half to even, minus the minimum of each axis.
  std::vector<int64_t> PointToVoxel() const;
};

// Loads the golden scan "pandaset_063" or "pandaset_070". Returns the error of the file that cannot be read.
absl::StatusOr<GoldenScan> LoadGoldenScan(const std::string& name);

// Loads the demo's network and its configuration.
absl::StatusOr<LoadedModel> LoadMinkUNetModel();

// Loads the demo's network, compiled for the CPU by the default plan.
absl::StatusOr<Program> LoadMinkUNet();

}  // namespace voxserve
