#include "tests/engine/golden_scan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/compiler/compiler.h"
#include "engine/model/model_version.h"
#include "tests/support/npz.h"
#include "tests/support/paths.h"
#include "tests/support/values_file.h"

namespace voxserve {
namespace {

constexpr int kFields = 4;

}  // namespace

const float* GoldenScan::LogitsOf(int64_t voxel) const {
  return voxel % logit_step == 0 ? logits.data() + voxel / logit_step * num_classes : nullptr;
}

std::vector<int64_t> GoldenScan::PointToVoxel() const {
  std::vector<std::array<int32_t, 3>> indices(static_cast<size_t>(num_points()));
  std::array<int32_t, 3> minimum = {INT32_MAX, INT32_MAX, INT32_MAX};
  for (size_t i = 0; i < indices.size(); ++i) {
    for (size_t axis = 0; axis < 3; ++axis) {
      indices[i][axis] = static_cast<int32_t>(std::nearbyint(points[i * kFields + axis] / 0.05f));
      minimum[axis] = std::min(minimum[axis], indices[i][axis]);
    }
  }
  std::map<std::array<int32_t, 3>, int64_t> rows;
  for (std::array<int32_t, 3>& index : indices) {
    for (size_t axis = 0; axis < 3; ++axis) index[axis] -= minimum[axis];
    rows[index] = 0;
  }
  int64_t num_rows = 0;
  for (auto& [index, row] : rows) row = num_rows++;
  std::vector<int64_t> voxels;
  for (const std::array<int32_t, 3>& index : indices) voxels.push_back(rows.at(index));
  return voxels;
}

absl::StatusOr<GoldenScan> LoadGoldenScan(const std::string& name) {
  const std::string folder = support::SourceDir() + "/tests/golden/";
  // The demo's scan is also a golden scan. Its file is in the demo's folder.
  const std::string bin = name == "pandaset_070" ? absl::StrCat(support::SourceDir(), "/deploy/scans/", name, ".bin")
                                                 : absl::StrCat(folder, name, ".bin");
  GoldenScan scan;
  ASSIGN_OR_RETURN(scan.points, support::ReadValues<float>(bin));
  ASSIGN_OR_RETURN(scan.cloud, PointCloud::FromFloats({"x", "y", "z", "intensity"}, scan.points.data(),
                                                      scan.points.size() / kFields));
  ASSIGN_OR_RETURN(const auto arrays, support::ReadNpz(absl::StrCat(folder, name, ".npz")));
  const support::NpyArray &floor = arrays.at("logits_floor"), &fraction = arrays.at("logits_fraction");
  for (int64_t i = 0; i < floor.num_elements(); ++i) {
    scan.logits.push_back(static_cast<float>(floor.data<int8_t>()[i]) +
                          static_cast<float>(fraction.data<uint16_t>()[i]) / 65536);
  }
  for (const uint16_t margin : arrays.at("margin").values<uint16_t>()) {
    scan.margins.push_back(static_cast<float>(margin) / 16384);
  }
  scan.labels = arrays.at("label").values<uint8_t>();
  scan.num_classes = static_cast<int>(floor.shape[1]);
  scan.logit_step = *arrays.at("step").data<int32_t>();
  return scan;
}

absl::StatusOr<LoadedModel> LoadMinkUNetModel() {
  return LoadModelVersion(support::SourceDir() + "/deploy/models/minkunet", 1);
}

absl::StatusOr<Program> LoadMinkUNet() {
  ASSIGN_OR_RETURN(const LoadedModel model, LoadMinkUNetModel());
  return Compile(model.graph, Plan(), {.bytes_per_label = model.config.bytes_per_label()});
}

}  // namespace voxserve
