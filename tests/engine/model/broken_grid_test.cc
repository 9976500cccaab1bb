// Tests the error messages for networks with broken dense grids, and the graphs that the loader makes of valid ones.

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/model/broken_model.h"

namespace voxserve::broken_grid_test {
namespace {

using support::FilledTensor;
using support::TestModel;

class BrokenGridTest : public ::testing::TestWithParam<BrokenModel> {};

TEST_P(BrokenGridTest, IsToldExactly) { ExpectToldExactly(GetParam()); }

// Adds the nodes "cells" (32 x 32 x 8 cells, 4 channels), "bev" (32 x 32 cells, 32 channels) and "global", and a node
// "next" with these inputs.
std::function<void(TestModel&)> Next(const std::string& inputs, const std::string& op,
                                     std::vector<int64_t> weight_shape = {}) {
  return [=](TestModel& model) {
    model.graph += absl::StrCat(
        "nodes { name: \"cells\" inputs: \"relu\" to_dense {} } nodes { name: \"bev\" inputs: \"relu\" to_bev {} } "
        "nodes { name: \"global\" inputs: \"relu\" global_pool { reduce: REDUCE_SUM } } nodes { name: \"next\" inputs: "
        "[",
        inputs, "] ", op, " }");
    if (!weight_shape.empty()) model.weights["next.weight"] = FilledTensor(weight_shape);
  };
}
std::function<void(TestModel&)> Conv(const std::string& parameters, std::vector<int64_t> weight_shape = {}) {
  return Next("\"bev\"", absl::StrCat("conv2d { ", parameters, " }"), std::move(weight_shape));
}
std::function<void(TestModel&)> Transposed(const std::string& parameters, std::vector<int64_t> weight_shape = {}) {
  return Next("\"bev\"", absl::StrCat("conv_transpose2d { ", parameters, " }"), std::move(weight_shape));
}

// Adds a node "next" to a network whose voxels have no range.
std::function<void(TestModel&)> WithoutShape(const std::string& op) {
  return [=](TestModel& model) {
    model.Replace("origin: ORIGIN_RANGE", "origin: ORIGIN_ZERO");
    model.graph += absl::StrCat("nodes { name: \"next\" inputs: \"relu\" ", op, " }");
  };
}

constexpr char kNoShape[] =
    "node \"next\": needs a spatial shape: a voxelize with ORIGIN_RANGE, and no RULE_EXPAND or KIND_GENERATIVE in "
    "between";

std::function<void(TestModel&)> MaxPool(const std::string& parameters, const std::string& input = "bev") {
  return Next(absl::StrCat("\"", input, "\""), absl::StrCat("max_pool2d { ", parameters, " }"));
}

INSTANTIATE_TEST_SUITE_P(
    MaxPools, BrokenGridTest,
    ::testing::Values(
        BrokenModel{"NoWindow", MaxPool(""), {"node \"next\": has no kernel_size"}},
        BrokenModel{"WindowBeyondLimit",
                    MaxPool("kernel_size: 16"),
                    {"node \"next\": kernel_size[0] is 16; it must be 1 to 15"}},
        BrokenModel{"WindowOfThreeAxes",
                    MaxPool("kernel_size: [2, 2, 2]"),
                    {"node \"next\": kernel_size has 3 values; an image has rows and columns"}},
        BrokenModel{"StrideOfNone",
                    MaxPool("kernel_size: 2 stride: 0"),
                    {"node \"next\": stride[0] is 0; it must be 1 to 128"}},
        BrokenModel{"PaddingAboveHalf",
                    MaxPool("kernel_size: [4, 3] padding: [2, 2]"),
                    {"node \"next\": padding is 2 and kernel_size 3; it must be at most half of the kernel"}},
        BrokenModel{"PoolOfCells",
                    MaxPool("kernel_size: 2", "cells"),
                    {"node \"next\": its input \"cells\" has cells of 3 axes; it needs an image, as to_bev makes"}},
        BrokenModel{"PoolOfSites",
                    MaxPool("kernel_size: 2", "relu"),
                    {"node \"next\": its input \"relu\" has one row per site; it needs an image, as to_bev makes"}},
        BrokenModel{"NothingLeftOfThePool",
                    [](TestModel& model) {
                      MaxPool("kernel_size: 9", "small")(model);
                      model.graph += "nodes { name: \"small\" inputs: \"bev\" max_pool2d { kernel_size: 8 } }";
                    },
                    {"node \"next\": its kernel of 9 x 9 leaves nothing of its input's 4 x 4 cells"}}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Cells, BrokenGridTest,
    ::testing::Values(
        BrokenModel{"DenseWithoutShape", WithoutShape("to_dense {}"), {kNoShape}},
        BrokenModel{"BevWithoutShape", WithoutShape("to_bev {}"), {kNoShape}},
        BrokenModel{"DenseOfLabels",
                    Next("\"best\"", "to_dense {}"),
                    {"node \"next\": its input \"best\" computes labels; only voxel_to_point reads those"}},
        BrokenModel{"DenseOfSamples",
                    Next("\"global\"", "to_dense {}"),
                    {"node \"next\": its input \"global\" has one row per sample; it needs sites"}},
        BrokenModel{"BevOfAnImage",
                    Next("\"bev\"", "to_bev {}"),
                    {"node \"next\": its input \"bev\" has one row per cell; it needs sites"}},
        BrokenModel{
            "DenseOfTwo", Next("\"relu\", \"conv\"", "to_dense {}"), {"node \"next\": has 2 inputs; it needs 1"}},
        BrokenModel{"TooManyCells",
                    [](TestModel& model) {
                      model.Replace("voxel_size: [0.5, 0.5, 1]", "voxel_size: [0.0078125, 0.0078125, 0.0078125]");
                      Append("nodes { name: \"next\" inputs: \"relu\" to_dense {} }")(model);
                    },
                    {"node \"next\": its result has 2048 x 2048 x 1024 cells of 4 channels per sample; at most "
                     "2147483647 values are possible"}},
        BrokenModel{"TooManyChannels",
                    [](TestModel& model) {
                      Append(
                          "nodes { name: \"wide\" inputs: \"relu\" linear { out_channels: 16384 } } nodes { name: "
                          "\"next\" inputs: \"wide\" to_bev {} }")(model);
                      model.weights["wide.weight"] = FilledTensor({16384, 4});
                    },
                    {"node \"next\": has 16384 channels at 8 heights; at most 65536 channels are possible"}},
        BrokenModel{"PointsOfCells",
                    Next("\"bev\", \"voxels\"", "voxel_to_point {}"),
                    {"node \"next\": its first input \"bev\" is not on the voxelize's sites"}},
        BrokenModel{"BroadcastOfCells",
                    Next("\"relu\", \"cells\"", "broadcast { function: FUNCTION_ADD }"),
                    {"node \"next\": its second input \"cells\" has one row per cell; it needs one per sample, as "
                     "global_pool makes"}},
        BrokenModel{"GlobalPoolOfCells",
                    Next("\"cells\"", "global_pool { reduce: REDUCE_MAX }"),
                    {"node \"next\": its input \"cells\" has one row per cell; it needs sites"}}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Back, BrokenGridTest,
    ::testing::Values(
        BrokenModel{"NoSites", Next("\"cells\"", "from_dense {}"), {"node \"next\": needs sites_of"}},
        BrokenModel{"UnknownSites",
                    Next("\"cells\"", "from_dense { sites_of: \"nowhere\" }"),
                    {"node \"next\": sites_of \"nowhere\" does not exist"}},
        BrokenModel{"OtherShape",
                    Next("\"cells\"", "from_dense { sites_of: \"down\" }"),
                    {"node \"next\": the sites of \"down\" are in a shape of 16 x 16 x 4; the cells of \"cells\" are "
                     "32 x 32 x 8"}},
        BrokenModel{"AnImage",
                    Next("\"bev\"", "from_dense { sites_of: \"relu\" }"),
                    {"node \"next\": the sites of \"relu\" are in a shape of 32 x 32 x 8; the cells of \"bev\" are "
                     "32 x 32"}},
        BrokenModel{"SitesOfSamples",
                    Next("\"cells\"", "from_dense { sites_of: \"global\" }"),
                    {"node \"next\": sites_of \"global\" has one row per sample; sites are those of voxels"}},
        BrokenModel{"SitesOfPoints",
                    Next("\"cells\"", "from_dense { sites_of: \"labels\" }"),
                    {"node \"next\": sites_of \"labels\" has one row per point; sites are those of voxels"}},
        BrokenModel{"SitesWithoutShape",
                    [](TestModel& model) {
                      Next("\"cells\"", "from_dense { sites_of: \"made\" }")(model);
                      Append(
                          "nodes { name: \"made\" inputs: \"relu\" sparse_conv { kind: KIND_GENERATIVE kernel_size: "
                          "[2, 2, 2] stride: [2, 2, 2] out_channels: 1 } }")(model);
                      model.weights["made.weight"] = FilledTensor({8, 4, 1});
                    },
                    {"node \"next\": the sites of \"made\" have no spatial shape"}},
        BrokenModel{"OfSites",
                    Next("\"relu\"", "from_dense { sites_of: \"relu\" }"),
                    {"node \"next\": its input \"relu\" has one row per site; it needs cells, as to_dense makes"}},
        BrokenModel{"OfSamples",
                    Next("\"global\"", "from_dense { sites_of: \"relu\" }"),
                    {"node \"next\": its input \"global\" has one row per sample; it needs cells, as to_dense makes"}}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Images, BrokenGridTest,
    ::testing::Values(
        BrokenModel{"ConvOfSites",
                    Next("\"relu\"", "conv2d { out_channels: 2 kernel_size: 3 }", {2, 4, 3, 3}),
                    {"node \"next\": its input \"relu\" has one row per site; it needs an image, as to_bev makes"}},
        BrokenModel{"ConvOfThreeAxes",
                    Next("\"cells\"", "conv2d { out_channels: 2 kernel_size: 3 }", {2, 4, 3, 3}),
                    {"node \"next\": its input \"cells\" has cells of 3 axes; it needs an image, as to_bev makes"}},
        BrokenModel{"TransposeOfSamples",
                    Next("\"global\"", "conv_transpose2d { out_channels: 2 kernel_size: 3 }", {4, 2, 3, 3}),
                    {"node \"next\": its input \"global\" has one row per sample; it needs an image, as to_bev makes"}},
        BrokenModel{"NoChannels",
                    Conv("kernel_size: 3", {2, 32, 3, 3}),
                    {"node \"next\": out_channels is 0; it must be 1 to 65536"}},
        BrokenModel{"NoKernel", Conv("out_channels: 2", {2, 32, 3, 3}), {"node \"next\": has no kernel_size"}},
        BrokenModel{"KernelBeyondLimit",
                    Conv("out_channels: 2 kernel_size: [3, 8]", {2, 32, 3, 8}),
                    {"node \"next\": kernel_size[1] is 8; it must be 1 to 7"}},
        BrokenModel{"KernelOfNothing",
                    Conv("out_channels: 2 kernel_size: 0", {2, 32, 1, 1}),
                    {"node \"next\": kernel_size[0] is 0; it must be 1 to 7"}},
        BrokenModel{"ThreeStrides",
                    Conv("out_channels: 2 kernel_size: 3 stride: [1, 2, 3]", {2, 32, 3, 3}),
                    {"node \"next\": stride has 3 values; an image has rows and columns"}},
        BrokenModel{
            "AllBeyondLimits",
            Conv("out_channels: 2 kernel_size: 3 stride: [1, 0] padding: 129 dilation: [129, 1]", {2, 32, 3, 3}),
            {"node \"next\": stride[1] is 0; it must be 1 to 128",
             "node \"next\": padding[0] is 129; it must be 0 to 128",
             "node \"next\": dilation[0] is 129; it must be 1 to 128"}},
        BrokenModel{"GroupsDoNotDivide",
                    Conv("out_channels: 6 kernel_size: 3 groups: 4", {6, 8, 3, 3}),
                    {"node \"next\": groups is 4; it must divide its 32 input and 6 output channels"}},
        BrokenModel{"WeightOfGroups",
                    Conv("out_channels: 8 kernel_size: 3 groups: 4", {8, 32, 3, 3}),
                    {"tensor \"next.weight\": has shape [8, 32, 3, 3]; node \"next\" needs [8, 8, 3, 3]"}},
        BrokenModel{"WeightOfTheOther",
                    Transposed("out_channels: 8 kernel_size: [2, 3]", {8, 32, 2, 3}),
                    {"tensor \"next.weight\": has shape [8, 32, 2, 3]; node \"next\" needs [32, 8, 2, 3]"}},
        BrokenModel{"NoBias",
                    Conv("out_channels: 8 kernel_size: 1 bias: true", {8, 32, 1, 1}),
                    {"tensor \"next.bias\": is missing; node \"next\" needs it with shape [8]"}},
        BrokenModel{"KernelBeyondImage",
                    Conv("out_channels: 2 kernel_size: 7 dilation: 6 padding: [0, 3]", {2, 32, 7, 7}),
                    {"node \"next\": its kernel of 7 x 7 leaves nothing of its input's 32 x 32 cells"}},
        BrokenModel{"PaddingTakesAll",
                    Transposed("out_channels: 2 kernel_size: 3 padding: [20, 1]", {32, 2, 3, 3}),
                    {"node \"next\": its kernel of 3 x 3 leaves nothing of its input's 32 x 32 cells"}},
        BrokenModel{"OutputPadding",
                    Transposed("out_channels: 2 kernel_size: 3 stride: [2, 1] output_padding: 1", {32, 2, 3, 3}),
                    {"node \"next\": output_padding is 1 and stride 1; it must be below the stride"}},
        BrokenModel{"ImageTooLarge",
                    Transposed("out_channels: 256 kernel_size: 1 stride: 128", {32, 256, 1, 1}),
                    {"node \"next\": its result has 3969 x 3969 cells of 256 channels per sample; at most 2147483647 "
                     "values are possible"}},
        BrokenModel{"AddOfSitesAndCells",
                    Next("\"relu\", \"cells\"", "add {}"),
                    {"node \"next\": its inputs \"relu\" and \"cells\" have different rows"}},
        BrokenModel{"ConcatOfTwoGrids",
                    Next("\"bev\", \"cells\"", "concat {}"),
                    {"node \"next\": its inputs \"bev\" and \"cells\" have different rows"}}),
    CaseName);

// Returns a network of images: 2 axes, 8 x 6 voxels of 2 channels.
TestModel ImageModel(const std::string& nodes) {
  TestModel model;
  model.graph = absl::StrCat(R"(dimension: 2
nodes {
  name: "voxels"
  voxelize {
    voxel_size: [1, 1]
    rounding: ROUNDING_FLOOR
    origin: ORIGIN_RANGE
    range_min: [0, 0]
    range_max: [8, 6]
    reduce: REDUCE_FIRST
    features { name: "x" unit: "m" }
    features { name: "y" unit: "m" }
    axes: ["x", "y"]
  }
}
)",
                             nodes, R"(
nodes { name: "best" inputs: "back" argmax {} }
nodes { name: "labels" inputs: ["best", "voxels"] voxel_to_point {} }
outputs { kind: KIND_LABELS node: "labels" }
)");
  return model;
}

TEST(GridModelTest, SizesAndDefaultsAreKnown) {
  TestModel model = ImageModel(R"(
nodes { name: "image" inputs: "voxels" to_dense {} }
nodes { name: "conv" inputs: "image" conv2d { out_channels: 4 kernel_size: [3, 1] stride: 2 padding: [1, 0] groups: 2 bias: true } }
nodes { name: "relu" inputs: "conv" activation { function: FUNCTION_RELU } }
nodes { name: "up" inputs: "relu" conv_transpose2d { out_channels: 3 kernel_size: 2 stride: 2 } }
nodes { name: "back" inputs: "up" from_dense { sites_of: "voxels" } }
)");
  model.weights = {{"conv.weight", FilledTensor({4, 1, 3, 1})},
                   {"conv.bias", FilledTensor({4})},
                   {"up.weight", FilledTensor({4, 3, 2, 2})}};
  const absl::StatusOr<Graph> graph = Load(model);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto node = [&](const std::string& name) {
    const auto found = std::find_if(graph->nodes.begin(), graph->nodes.end(),
                                    [&](const GraphNode& each) { return each.name == name; });
    return found == graph->nodes.end() ? GraphNode() : *found;
  };
  EXPECT_EQ(node("image").grid, (GridShape{.dimension = 2, .size = {8, 6, 1, 1}}));
  EXPECT_EQ(node("image").level, kSampleLevel);
  EXPECT_EQ(node("image").rows_per_sample(), 48);
  EXPECT_EQ(node("relu").grid, (GridShape{.dimension = 2, .size = {4, 3, 1, 1}}));
  EXPECT_EQ(node("relu").channels, 4);
  EXPECT_EQ(node("up").grid, node("image").grid);
  EXPECT_EQ(node("back").level, 0);
  EXPECT_FALSE(node("back").grid);
  const auto conv = std::get<Conv2dOp>(node("conv").op);
  EXPECT_EQ(conv.geometry,
            (kernels::Conv2dGeometry{.kernel_size = {3, 1}, .stride = {2, 2}, .padding = {1, 0}, .groups = 2}));
  EXPECT_EQ(conv.in_channels, 2);
  EXPECT_NE(conv.bias, nullptr);
  const auto up = std::get<Conv2dOp>(node("up").op);
  EXPECT_TRUE(up.geometry.is_transposed);
  EXPECT_EQ(up.bias, nullptr);
}

// The second axis becomes the rows of the image.
TEST(GridModelTest, AnImageOfTwoAxes) {
  TestModel model = ImageModel(R"(
outputs { kind: KIND_TENSOR node: "bev" name: "image" }
nodes { name: "bev" inputs: "voxels" to_bev {} }
nodes { name: "back" inputs: "voxels" batch_norm {} }
)");
  for (const char* part : {"weight", "bias", "running_mean", "running_var"}) {
    model.weights[absl::StrCat("back.", part)] = FilledTensor({2});
  }
  const absl::StatusOr<Graph> graph = Load(model);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto bev =
      std::find_if(graph->nodes.begin(), graph->nodes.end(), [](const GraphNode& node) { return node.name == "bev"; });
  ASSERT_NE(bev, graph->nodes.end());
  EXPECT_EQ(bev->grid, (GridShape{.dimension = 2, .size = {6, 8, 1, 1}}));
  EXPECT_EQ(bev->channels, 2);
}

TEST(GridModelTest, BevNeedsTwoOrThreeAxes) {
  TestModel model;
  model.graph = R"(dimension: 1
nodes { name: "voxels" voxelize { voxel_size: 1 rounding: ROUNDING_FLOOR origin: ORIGIN_RANGE range_min: 0 range_max: 8
                                  reduce: REDUCE_FIRST axes: "x" features { name: "x" unit: "m" } } }
nodes { name: "bev" inputs: "voxels" to_bev {} }
outputs { kind: KIND_TENSOR node: "bev" name: "image" }
)";
  const absl::StatusOr<Graph> graph = Load(model);
  EXPECT_THAT(ProblemsOf(graph.status()),
              ::testing::ElementsAre("node \"bev\": to_bev needs 2 or 3 axes; the network has 1"));
}

}  // namespace
}  // namespace voxserve::broken_grid_test
