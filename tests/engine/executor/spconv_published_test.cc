// Compares networks with outputs that spconv published (golden_ext_p2v, golden_ext_pool, golden_misc: made by an
// unchanged spconv 2): means of voxels, pooling, a sequence of convolutions, and branches that are joined or added.
// Each network is written as a model and runs through the loader and the engine.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/engine/executor/sparse_tensor.h"
#include "tests/support/array_tree.h"
#include "tests/support/spconv_outputs.h"

namespace voxserve::spconv_published_test {
namespace {

using support::ArrayTree;
using support::NpyArray;

// Converts a weight of spconv 2 [out, kernel..., in] to the engine's layout [cells, in, out].
support::TestTensor ToCells(const NpyArray& weight) {
  const auto out = static_cast<size_t>(weight.shape.front()), in = static_cast<size_t>(weight.shape.back());
  const size_t cells = static_cast<size_t>(weight.num_elements()) / in / out;
  std::vector<float> values(out * cells * in);
  for (size_t o = 0; o < out; ++o) {
    for (size_t k = 0; k < cells; ++k) {
      for (size_t i = 0; i < in; ++i) values[(k * in + i) * out + o] = weight.data<float>()[(o * cells + k) * in + i];
    }
  }
  return support::FloatTensor({static_cast<int64_t>(cells), weight.shape.back(), weight.shape.front()}, values);
}

// Reads spconv's sparse tensor from a case's `input`.
SparseTensor TensorOf(const ArrayTree& value) {
  const NpyArray& features = value.at("features").tensor();
  return {.shape = value.at("spatial_shape").AsInts(),
          .samples = ReadRows<int32_t>(value.at("indices").tensor(), &features, value.at("batch_size").AsInt()),
          .channels = static_cast<int>(features.shape[1])};
}

std::vector<Rows> ExpectedRows(const ArrayTree& one, const SparseTensor& input) {
  return ReadRows<int32_t>(one.at("expect").at("out_indices").tensor(), &one.at("expect").at("out_features").tensor(),
                           static_cast<int64_t>(input.samples.size()));
}

class SpconvPublishedTest : public ::testing::TestWithParam<support::Device> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam()); }

  // Returns the file's cases of a kind.
  static std::vector<ArrayTree> CasesOf(const ArrayTree& file, const std::string& kind) {
    std::vector<ArrayTree> cases;
    for (const ArrayTree& one : file.at("cases").items()) {
      if (one.at("kind").AsString() == kind) cases.push_back(one);
    }
    return cases;
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, SpconvPublishedTest, support::AllDevices(), support::DeviceName);

// As in OpenPCDet, a voxel's mean covers only its first points, and only the voxels that come first are kept.
TEST_P(SpconvPublishedTest, VoxelsMeans) {
  OPEN_SPCONV_OUTPUT_OR_SKIP(file, "golden_ext_p2v");
  const std::vector<ArrayTree> cases = CasesOf(file, "p2v_cpu");
  EXPECT_EQ(cases.size(), 3u);
  for (const ArrayTree& one : cases) {
    SCOPED_TRACE(one.at("id").AsString());
    const ArrayTree parameters = one.at("ctor");
    const auto floats = [&](const char* name, size_t first) {
      std::vector<double> values;
      for (size_t axis = 0; axis < 3; ++axis) values.push_back(parameters.at(name).AsFloats()[first + axis]);
      return absl::StrCat("[", absl::StrJoin(values, ", "), "]");
    };
    const int64_t max_points = parameters.at("max_num_points_per_voxel").AsInt();
    support::TestModel model{
        .graph = absl::StrCat(
            "nodes { name: \"voxels\" voxelize { rounding: ROUNDING_FLOOR origin: ORIGIN_RANGE voxel_size: ",
            floats("vsize_xyz", 0), " range_min: ", floats("coors_range_xyz", 0),
            " range_max: ", floats("coors_range_xyz", 3), " reduce: REDUCE_MEAN max_points_per_voxel: ", max_points,
            " features { name: \"x\" } features { name: \"y\" } features { name: \"z\" } features { name: \"f\" } } "
            "}\n",
            Outputs("voxels"))};
    const absl::StatusOr<Graph> graph = LoadTestGraph(model);
    ASSERT_TRUE(graph.ok()) << graph.status();
    const auto runner = DeviceRunner::Create({.device = GetParam()});
    ASSERT_TRUE(runner.ok()) << runner.status();
    const NpyArray& points = one.at("points").tensor();
    const auto num_points = static_cast<size_t>(points.shape[0]);
    const PointCloud cloud = *PointCloud::FromFloats({"x", "y", "z", "f"}, points.data<float>(), num_points);
    const auto program = (*runner)->Compile(*graph, VariantsOf(GetParam())[0]);
    ASSERT_TRUE(program.ok()) << program.status();
    const BatchReport output = (*runner)->Run(*program, {&cloud}, true,
                                              {.max_voxels = parameters.at("max_num_voxels").AsInt(),
                                               .voxel_overflow = ModelConfig::VoxelOverflow::kFirstSeen});
    ASSERT_TRUE(output.status.ok()) << output.status;
    const InferResult& sample = output.samples[0];
    ASSERT_TRUE(sample.status.ok()) << sample.status;
    const ArrayTree expect = one.at("expect");
    EXPECT_EQ(sample.counts.voxels, expect.at("indices").tensor().shape[0]);
    const auto* const voxel_of_point = expect.at("pc_voxel_id").tensor().data<int64_t>();
    const auto* const counts = expect.at("num_per_voxel").tensor().data<int32_t>();
    const auto* const values = expect.at("voxels").tensor().data<float>();  // [voxels, max_points, 4]
    int64_t num_used = 0;
    for (size_t point = 0; point < num_points; ++point) {
      const int64_t voxel = voxel_of_point[point];
      if (voxel < 0) {
        EXPECT_EQ(sample.labels()[point], RunLimits().ignore_label) << point;
        continue;
      }
      ++num_used;
      for (int64_t c = 0; c < 4; ++c) {
        double sum = 0;
        for (int64_t i = 0; i < counts[voxel]; ++i) sum += values[(voxel * max_points + i) * 4 + c];
        ASSERT_NEAR(sample.scores()[point * 4 + static_cast<size_t>(c)], sum / counts[voxel], 1e-5) << point;
      }
    }
    EXPECT_EQ(sample.counts.used, num_used);
  }
}

TEST_P(SpconvPublishedTest, Pooling) {
  OPEN_SPCONV_OUTPUT_OR_SKIP(file, "golden_ext_pool");
  const std::vector<ArrayTree> cases = CasesOf(file, "pipeline");
  EXPECT_EQ(cases.size(), 4u);
  for (const ArrayTree& one : cases) {
    SCOPED_TRACE(one.at("id").AsString());
    const SparseTensor input = TensorOf(one.at("input"));
    ASSERT_EQ(one.at("layers").items().size(), 1u);
    const ArrayTree layer = one.at("layers").items()[0];
    const ArrayTree parameters = layer.at("ctor");
    const bool is_max = layer.at("cls").AsString().find("MaxPool") != std::string::npos;
    const bool is_submanifold = parameters.Has("subm") && parameters.at("subm").AsBool();
    kernels::ConvGeometry geometry{.dimension = 3};
    const auto read = [&](const char* name, kernels::Axes& axes) {
      if (!parameters.Has(name)) return std::string();
      const auto value = static_cast<int32_t>(parameters.at(name).AsInt());
      axes = {value, value, value, 1};
      return absl::StrCat(name, ": [", value, ", ", value, ", ", value, "] ");
    };
    std::string text = read("kernel_size", geometry.kernel_size);
    if (is_submanifold) {
      absl::StrAppend(&text, "kind: KIND_SUBMANIFOLD");
    } else {
      absl::StrAppend(&text, read("stride", geometry.stride), read("padding", geometry.padding),
                      read("dilation", geometry.dilation), "kind: KIND_STRIDED rule: RULE_PADDED");
    }
    support::TestModel model{.graph = absl::StrCat(Voxels(input),
                                                   "nodes { name: \"pool\" inputs: \"voxels\" pool { reduce: ",
                                                   is_max ? "REDUCE_MAX " : "REDUCE_AVERAGE ", text, " } }\n")};
    std::string head = "pool";
    if (is_max) {  // spconv computes a maximum from 0 upwards
      model.graph += "nodes { name: \"relu\" inputs: \"pool\" activation { function: FUNCTION_RELU } }\n";
      head = "relu";
    }
    const std::vector<Rows> expected = ExpectedRows(one, input);
    if (is_submanifold) {
      ASSERT_NO_FATAL_FAILURE(ExpectAtVoxels(GetParam(), model, head, input, expected));
    } else {
      ASSERT_NO_FATAL_FAILURE(
          ExpectThroughVoxels(GetParam(), model, head, input, geometry, MadeBy::kStrided, input.channels, expected));
    }
  }
}

// The network is a submanifold convolution, a batch norm in training mode, ReLU and a strided convolution. Such a norm
// uses the statistics of the batch. A served norm uses stored statistics, so the test stores those of the batch.
TEST_P(SpconvPublishedTest, SequenceOfConvolutions) {
  OPEN_SPCONV_OUTPUT_OR_SKIP(file, "golden_misc");
  const std::vector<ArrayTree> cases = CasesOf(file, "pipeline");
  ASSERT_EQ(cases.size(), 1u);
  const ArrayTree& one = cases[0];
  const SparseTensor input = TensorOf(one.at("input"));
  const std::vector<ArrayTree> layers = one.at("layers").items()[0].at("children").items();
  support::TestModel model{.graph = Voxels(input) +
                                    R"(nodes { name: "first" inputs: "voxels"
                          sparse_conv { kind: KIND_SUBMANIFOLD kernel_size: [3, 3] out_channels: 16 } }
                  nodes { name: "norm" inputs: "first" batch_norm { epsilon: 1e-5 } }
                  nodes { name: "relu" inputs: "norm" activation { function: FUNCTION_RELU } }
                  nodes { name: "second" inputs: "relu"
                          sparse_conv { kind: KIND_STRIDED rule: RULE_PADDED kernel_size: [3, 3] stride: [2, 2]
                                        padding: [1, 1] out_channels: 16 bias: true } }
)"};
  const auto parameter = [&](size_t layer, const char* name) -> const NpyArray& {
    return layers[layer].at("params").at(name).tensor();
  };
  model.weights["first.weight"] = ToCells(parameter(0, "weight"));
  model.weights["second.weight"] = ToCells(parameter(3, "weight"));
  const auto keep = [&](const std::string& name, const std::vector<float>& values) {
    model.weights[name] = support::FloatTensor({static_cast<int64_t>(values.size())}, values);
  };
  keep("second.bias", parameter(3, "bias").values<float>());
  keep("norm.weight", parameter(1, "weight").values<float>());
  keep("norm.bias", parameter(1, "bias").values<float>());

  ReferenceConv first{.dimension = 2, .out_channels = 16};
  first.deltas = BoxDeltas(2, {3, 3, 1, 1}, {1, 1, 1, 1}, {1, 1, 0, 0});
  const std::string& bytes = model.weights["first.weight"].bytes;
  first.weight.resize(bytes.size() / sizeof(float));
  std::copy_n(bytes.data(), bytes.size(), reinterpret_cast<char*>(first.weight.data()));
  std::vector<double> sum(16), squares(16);
  double num_rows = 0;
  for (const Rows& sample : input.samples) {
    for (const auto& [site, row] : Convolve(first, sample, SitesOf(sample))) {
      ++num_rows;
      for (size_t c = 0; c < row.size(); ++c) {
        sum[c] += row[c];
        squares[c] += row[c] * row[c];
      }
    }
  }
  std::vector<float> mean, variance;
  for (size_t c = 0; c < sum.size(); ++c) {
    mean.push_back(static_cast<float>(sum[c] / num_rows));
    variance.push_back(static_cast<float>(squares[c] / num_rows - sum[c] / num_rows * (sum[c] / num_rows)));
  }
  keep("norm.running_mean", mean);
  keep("norm.running_var", variance);
  const kernels::ConvGeometry geometry{
      .dimension = 2, .kernel_size = {3, 3, 1, 1}, .stride = {2, 2, 1, 1}, .padding = {1, 1, 0, 0}};
  ExpectThroughVoxels(GetParam(), model, "second", input, geometry, MadeBy::kStrided, 16, ExpectedRows(one, input));
}

// Concatenates or adds the results of two branches on the same sites (spconv's JoinTable and AddTable).
TEST_P(SpconvPublishedTest, Tables) {
  OPEN_SPCONV_OUTPUT_OR_SKIP(file, "golden_misc");
  const std::vector<ArrayTree> cases = CasesOf(file, "tables");
  EXPECT_EQ(cases.size(), 2u);
  for (const ArrayTree& one : cases) {
    SCOPED_TRACE(one.at("id").AsString());
    const SparseTensor input = TensorOf(one.at("input"));
    support::TestModel model{.graph = Voxels(input)};
    for (const char* const branch : {"left", "right"}) {
      const ArrayTree spec = one.at("branch_specs").items()[branch == std::string("left") ? 0 : 1];
      absl::StrAppend(&model.graph, "nodes { name: \"", branch, "\" inputs: \"voxels\" sparse_conv { kind: ",
                      "KIND_SUBMANIFOLD kernel_size: [3, 3] out_channels: 8 } }\n");
      model.weights[absl::StrCat(branch, ".weight")] = ToCells(spec.at("params").at("weight").tensor());
    }
    absl::StrAppend(&model.graph, "nodes { name: \"table\" inputs: [\"left\", \"right\"] ",
                    one.at("table").AsString() == "JoinTable" ? "concat" : "add", " {} }\n");
    ASSERT_NO_FATAL_FAILURE(ExpectAtVoxels(GetParam(), model, "table", input, ExpectedRows(one, input)));
  }
}

// Returns the weight of a linear layer that copies `count` channels, beginning with `first`.
support::TestTensor Taking(int first, int count, int channels) {
  std::vector<float> values(static_cast<size_t>(count * channels), 0.0f);
  for (int row = 0; row < count; ++row) values[static_cast<size_t>(row * channels + first + row)] = 1;
  return support::FloatTensor({count, channels}, values);
}

// Adds tensors on different sites. The cloud has the sites of both, their features side by side, and two columns that
// say to which tensor a site belongs. Pruning by these columns gives the two tensors.
TEST_P(SpconvPublishedTest, SumsAcrossSites) {
  OPEN_SPCONV_OUTPUT_OR_SKIP(file, "golden_misc");
  const std::vector<ArrayTree> cases = CasesOf(file, "sparse_add");
  EXPECT_EQ(cases.size(), 3u);
  for (const ArrayTree& one : cases) {
    SCOPED_TRACE(one.at("id").AsString());
    const SparseTensor inputs[] = {TensorOf(one.at("inputs").items()[0]), TensorOf(one.at("inputs").items()[1])};
    const int channels = inputs[0].channels;
    SparseTensor both;
    both.shape = inputs[0].shape;
    both.samples.resize(inputs[0].samples.size());
    both.channels = 2 * channels + 2;
    for (int side = 0; side < 2; ++side) {
      for (size_t i = 0; i < both.samples.size(); ++i) {
        for (const auto& [site, row] : inputs[side].samples[i]) {
          std::vector<double>& values = both.samples[i][site];
          values.resize(static_cast<size_t>(both.channels), 0.0);
          std::copy(row.begin(), row.end(), values.begin() + side * channels);
          values[static_cast<size_t>(2 * channels + side)] = 1;
        }
      }
    }
    support::TestModel model{.graph = Voxels(both)};
    for (int side = 0; side < 2; ++side) {
      absl::StrAppend(&model.graph, "nodes { name: \"features", side,
                      "\" inputs: \"voxels\" linear { out_channels: ", channels, " } }\nnodes { name: \"is_there", side,
                      "\" inputs: \"voxels\" linear { out_channels: 1 } }\nnodes { name: \"tensor", side,
                      "\" inputs: [\"features", side, "\", \"is_there", side, "\"] prune { threshold: 0.5 } }\n");
      model.weights[absl::StrCat("features", side, ".weight")] = Taking(side * channels, channels, both.channels);
      model.weights[absl::StrCat("is_there", side, ".weight")] = Taking(2 * channels + side, 1, both.channels);
    }
    absl::StrAppend(&model.graph,
                    "nodes { name: \"sum\" inputs: [\"tensor0\", \"tensor1\"] add { sites: SITES_UNION } }\n"
                    "nodes { name: \"back\" inputs: \"sum\" sparse_conv { kind: KIND_STRIDED sites_of: \"voxels\" "
                    "kernel_size: [1, 1, 1] out_channels: ",
                    channels, " } }\n");
    model.weights["back.weight"] = Taking(0, channels, channels);
    model.weights["back.weight"].shape.insert(model.weights["back.weight"].shape.begin(), 1);
    ASSERT_NO_FATAL_FAILURE(ExpectAtVoxels(GetParam(), model, "back", both, ExpectedRows(one, both)));
  }
}

}  // namespace
}  // namespace voxserve::spconv_published_test
