#pragma once

// Runs a model from its files on a device, once for each of several plans and precisions (VariantsOf), and compares the
// scores of the points with expected scores. A plan says by which search and dataflow a convolution is computed.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/model/model_loader.h"
#include "tests/engine/device_runner.h"
#include "tests/engine/executor/conv_network.h"
#include "tests/support/model_folder.h"

namespace voxserve {

// Writes the model to a temporary folder and loads it from there, as the server loads a model of its repository.
inline absl::StatusOr<Graph> LoadTestGraph(const support::TestModel& model) {
  const support::TemporaryFolder folder;
  model.WriteTo(folder.path());
  return LoadGraph(folder.path() / "1");
}

// Returns the cloud from which a ConvNetwork makes these voxels: a point in the middle of every voxel, with the voxel's
// features.
inline PointCloud CloudOf(const Rows& voxels, int dimension, int channels) {
  std::vector<std::string> fields(ConvNetwork::kFields, ConvNetwork::kFields + dimension);
  for (int c = 0; c < channels; ++c) fields.push_back(absl::StrCat("f", c));
  std::vector<float> values;
  for (const auto& [site, row] : voxels) {
    for (int axis = 0; axis < dimension; ++axis)
      values.push_back(static_cast<float>(site[static_cast<size_t>(axis)]) + 0.5f);
    for (const double value : row) values.push_back(static_cast<float>(value));
  }
  return *PointCloud::FromFloats(fields, values.data(), voxels.size());
}

// Returns the variants by which ExpectScores runs a model. CPU: each search for neighbours, in float32. GPU: the
// default plan, a plan that groups symmetric offsets (both in float32), and the default plan in float16.
inline std::vector<Variant> VariantsOf(support::Device device) {
  using kernels::MapSearch;
  if (device == support::Device::kCpu) {
    return {{.name = "Merge", .plan = {.map_search = MapSearch::kMerge}},
            {.name = "Hash", .plan = {.map_search = MapSearch::kHash}},
            {.name = "Grid", .plan = {.map_search = MapSearch::kGrid}}};
  }
  Variant hash{.name = "Hash", .device = device, .plan = kDefaultCudaConvPlan};
  Variant symmetric = hash;
  symmetric.name = "Symmetric";
  symmetric.plan.grouping.grouping = kernels::Grouping::kSymmetric;
  Variant half = hash;
  half.name = "Half";
  half.precision = ModelConfig::Precision::kFloat16;
  return {hash, symmetric, half};
}

// A cloud and the expected scores of its points, point after point.
struct ScoredCloud {
  PointCloud cloud;
  std::vector<double> scores;
};

// Expects the scores of all samples, which run as one batch, for every variant of the device. A score may differ by
// 1e-4 (in float16 1e-2) times the largest magnitude of an expected score, or times 1 if that is larger.
inline void ExpectScores(support::Device device, const support::TestModel& model,
                         const std::vector<ScoredCloud>& samples) {
  SCOPED_TRACE(model.graph);
  const absl::StatusOr<Graph> graph = LoadTestGraph(model);
  ASSERT_TRUE(graph.ok()) << graph.status();
  std::vector<const PointCloud*> batch;
  double largest = 1;
  for (const ScoredCloud& sample : samples) {
    batch.push_back(&sample.cloud);
    for (const double value : sample.scores) largest = std::max(largest, std::abs(value));
  }
  const auto runner = DeviceRunner::Create({.device = device});
  ASSERT_TRUE(runner.ok()) << runner.status();
  for (const Variant& variant : VariantsOf(device)) {
    SCOPED_TRACE(variant.name);
    const auto program = (*runner)->Compile(*graph, variant, 2);
    ASSERT_TRUE(program.ok()) << program.status();
    const BatchReport output = (*runner)->Run(*program, batch, true);
    ASSERT_TRUE(output.status.ok()) << output.status;
    const double tolerance = (variant.precision == ModelConfig::Precision::kFloat16 ? 1e-2 : 1e-4) * largest;
    for (size_t i = 0; i < samples.size(); ++i) {
      ASSERT_TRUE(output.samples[i].status.ok()) << output.samples[i].status;
      const absl::Span<const float> scores = output.samples[i].scores();
      ASSERT_EQ(scores.size(), samples[i].scores.size());
      for (size_t j = 0; j < scores.size(); ++j) {
        ASSERT_NEAR(scores[j], samples[i].scores[j], tolerance) << "sample " << i << ", value " << j;
      }
    }
  }
}

}  // namespace voxserve
