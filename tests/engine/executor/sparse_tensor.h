#pragma once

// Compares the engine with sparse tensors that another project computed. The functions write a model whose voxels are
// the other project's input tensor, run the model, and compare the sites and rows of a node with the other project's
// output tensor. A site is the integer coordinate of a row.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/executor/cpu_executor.h"
#include "engine/executor/cuda_executor.h"
#include "kernels/coordinates/morton_key.h"
#include "tests/engine/executor/expected_scores.h"
#include "tests/support/npz.h"
#include "tests/support/test_device.h"

namespace voxserve {

// Reads indices [N, 1 + D], which begin with the sample, and features [N, C] of float. Returns the rows by site for
// each sample. If features is null, C is 0.
template <typename Index>
std::vector<Rows> ReadRows(const support::NpyArray& indices, const support::NpyArray* features, int64_t num_samples) {
  std::vector<Rows> samples(static_cast<size_t>(num_samples));
  for (int64_t row = 0; row < indices.shape[0]; ++row) {
    const Index* const at = indices.data<Index>() + row * indices.shape[1];
    Place site = {0, 0, 0, 0};
    std::copy(at + 1, at + indices.shape[1], site.begin());
    std::vector<double>& values = samples[static_cast<size_t>(at[0])][site];
    if (features == nullptr) continue;
    const float* const first = features->data<float>() + row * features->shape[1];
    values.assign(first, first + features->shape[1]);
  }
  return samples;
}

// A sparse tensor of one or more samples. `shape` has one number per axis; `samples` has the rows of each sample by
// site.
struct SparseTensor {
  int dimension() const { return static_cast<int>(shape.size()); }

  std::vector<int64_t> shape;
  std::vector<Rows> samples = {};
  int channels = 0;
};

inline std::string AxesText(const std::vector<int64_t>& values) {
  return absl::StrCat("[", absl::StrJoin(values, ", "), "]");
}
template <typename Axes>
std::string AxesText(const Axes& values, int dimension) {
  return AxesText(std::vector<int64_t>(values.begin(), values.begin() + dimension));
}

// Returns the text of kernel_size, stride, dilation and padding for a node of a model file.
inline std::string GeometryText(const kernels::ConvGeometry& geometry) {
  return absl::StrCat("kernel_size: ", AxesText(geometry.kernel_size, geometry.dimension),
                      " stride: ", AxesText(geometry.stride, geometry.dimension),
                      " dilation: ", AxesText(geometry.dilation, geometry.dimension),
                      " padding: ", AxesText(geometry.padding, geometry.dimension));
}

// Returns the beginning of a model file: the dimension and the node "voxels", whose sites and features are the tensor's
// if the cloud is CloudOf its rows.
inline std::string Voxels(const SparseTensor& input) {
  std::vector<std::string> fields, features;
  for (int axis = 0; axis < input.dimension(); ++axis) {
    fields.push_back(absl::StrCat("\"", ConvNetwork::kFields[axis], "\""));
  }
  for (int c = 0; c < input.channels; ++c) features.push_back(absl::StrCat("features { name: \"f", c, "\" }"));
  const std::vector<int64_t> zeros(input.shape.size(), 0), ones(input.shape.size(), 1);
  return absl::StrCat("dimension: ", input.dimension(),
                      "\nnodes { name: \"voxels\" voxelize { voxel_size: ", AxesText(ones),
                      " rounding: ROUNDING_FLOOR origin: ORIGIN_RANGE range_min: ", AxesText(zeros),
                      " range_max: ", AxesText(input.shape), " reduce: REDUCE_FIRST axes: [",
                      absl::StrJoin(fields, ", "), "] ", absl::StrJoin(features, " "), " } }\n");
}

// Returns the end of a model file: the scores of a point are the row of node `node` at the point's voxel. The node must
// have the voxels' sites.
inline std::string Outputs(const std::string& node) {
  return absl::StrCat(
      "nodes { name: \"best\" inputs: \"", node, "\" argmax {} }\n",
      "nodes { name: \"labels\" inputs: [\"best\", \"voxels\"] voxel_to_point {} }\n",
      "nodes { name: \"scores\" inputs: [\"", node, "\", \"voxels\"] voxel_to_point {} }\n",
      "outputs { kind: KIND_LABELS node: \"labels\" } outputs { kind: KIND_SCORES node: \"scores\" }\n");
}

// Expects that the rows of node `node`, which has the voxels' sites, are `expected`.
inline void ExpectAtVoxels(support::Device device, support::TestModel model, const std::string& node,
                           const SparseTensor& input, const std::vector<Rows>& expected) {
  model.graph += Outputs(node);
  std::vector<ScoredCloud> samples;
  for (size_t i = 0; i < input.samples.size(); ++i) {
    ASSERT_EQ(SitesOf(expected[i]), SitesOf(input.samples[i]));
    samples.push_back({.cloud = CloudOf(input.samples[i], input.dimension(), input.channels)});
    for (const auto& [site, row] : expected[i]) {
      samples.back().scores.insert(samples.back().scores.end(), row.begin(), row.end());
    }
  }
  ExpectScores(device, model, samples);
}

// Returns the keys of a level's sites in the last batch, in ascending order: CoordinateKeys on the CPU, MortonKeys on a
// GPU.
inline std::vector<uint64_t> KeysOf(support::Device device, DeviceRunner& runner, int level) {
  if (device == support::Device::kCpu) {
    const auto& made = static_cast<CpuExecutor&>(runner.executor()).geometry().keys(level);
    return {made.begin(), made.end()};
  }
  const DeviceGeometry& geometry = static_cast<CudaExecutor&>(runner.executor()).geometry();
  std::vector<uint64_t> keys(static_cast<size_t>(geometry.num_sites()[static_cast<size_t>(level)]));
  support::CopyFromDevice(device, keys.data(), geometry.keys(level), keys.size() * sizeof(uint64_t));
  return keys;
}

// Expects that the sites of a node are exactly those of `expected`.
inline void ExpectSites(support::Device device, const support::TestModel& model, const std::string& node,
                        const SparseTensor& input, const std::vector<Rows>& expected) {
  SCOPED_TRACE(model.graph);
  const absl::StatusOr<Graph> graph = LoadTestGraph(model);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto runner = DeviceRunner::Create({.device = device});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const auto program = (*runner)->Compile(*graph, VariantsOf(device)[0]);
  ASSERT_TRUE(program.ok()) << program.status();
  std::vector<PointCloud> clouds;
  for (const Rows& sample : input.samples) clouds.push_back(CloudOf(sample, input.dimension(), input.channels));
  std::vector<const PointCloud*> batch;
  for (const PointCloud& cloud : clouds) batch.push_back(&cloud);
  const BatchReport output = (*runner)->Run(*program, batch, true);
  ASSERT_TRUE(output.status.ok()) << output.status;

  const kernels::CoordinateKey layout(input.dimension());
  std::vector<uint64_t> keys;
  for (size_t i = 0; i < expected.size(); ++i) {
    for (const auto& [site, row] : expected[i]) {
      const uint64_t key = layout.Pack(static_cast<int32_t>(i), site);
      keys.push_back(device == support::Device::kCpu ? key : kernels::ToMortonKey(layout, key));
    }
  }
  std::sort(keys.begin(), keys.end());
  const auto at = std::find_if(graph->nodes.begin(), graph->nodes.end(),
                               [&](const GraphNode& other) { return other.name == node; });
  ASSERT_NE(at, graph->nodes.end());
  EXPECT_EQ(KeysOf(device, **runner, at->level), keys);
}

// Tells by which convolution the sites of a node are made from the voxels.
enum class MadeBy { kStrided, kTransposed };

// Expects the sites and rows of a node whose sites a convolution with `geometry` made from the voxels. Scores belong to
// points, so the rows must come back to the voxels: one more convolution, in the opposite direction, with `geometry`
// and random weights, reads the node's rows. A row at a wrong site changes the result of this convolution.
inline void ExpectThroughVoxels(support::Device device, support::TestModel model, const std::string& node,
                                const SparseTensor& input, const kernels::ConvGeometry& geometry, MadeBy made_by,
                                int channels, const std::vector<Rows>& expected) {
  constexpr int kOut = 3;
  ReferenceConv back{.dimension = input.dimension(), .stride = geometry.stride, .out_channels = kOut};
  back.deltas = BoxDeltas(input.dimension(), geometry.kernel_size, geometry.dilation, geometry.padding);
  std::mt19937 random(1);
  std::uniform_real_distribution<float> unit(-1, 1);
  for (size_t i = 0; i < back.deltas.size() * static_cast<size_t>(channels * kOut); ++i) {
    back.weight.push_back(unit(random));
  }
  const bool is_coarse = made_by == MadeBy::kStrided;
  absl::StrAppend(&model.graph, "nodes { name: \"back\" inputs: \"", node,
                  "\" sparse_conv { kind: ", is_coarse ? "KIND_TRANSPOSED" : "KIND_STRIDED", " sites_of: \"voxels\" ",
                  GeometryText(geometry), " out_channels: ", kOut, " } }\n");
  model.weights["back.weight"] =
      support::FloatTensor({static_cast<int64_t>(back.deltas.size()), channels, kOut}, back.weight);
  std::vector<Rows> at_voxels;
  for (size_t i = 0; i < input.samples.size(); ++i) {
    const std::set<Place> sites = SitesOf(input.samples[i]);
    at_voxels.push_back(is_coarse ? ConvolveTransposed(back, expected[i], sites) : Convolve(back, expected[i], sites));
  }
  ASSERT_NO_FATAL_FAILURE(ExpectAtVoxels(device, model, "back", input, at_voxels));
  model.graph += Outputs("back");
  ExpectSites(device, model, node, input, expected);
}

}  // namespace voxserve
