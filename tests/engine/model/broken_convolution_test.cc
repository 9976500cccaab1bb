// Tests the error messages for networks with broken convolutions.

#include <functional>
#include <string>
#include <vector>

#include "tests/engine/model/broken_model.h"

namespace voxserve::broken_convolution_test {
namespace {

using support::FilledTensor;
using support::TestModel;

class BrokenConvolutionTest : public ::testing::TestWithParam<BrokenModel> {};

TEST_P(BrokenConvolutionTest, IsToldExactly) { ExpectToldExactly(GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    SparseConv, BrokenConvolutionTest,
    ::testing::Values(
        BrokenModel{"NoKind",
                    Text("kind: KIND_SUBMANIFOLD", ""),
                    {"node \"conv\": kind must be KIND_SUBMANIFOLD, KIND_STRIDED, KIND_INVERSE, KIND_TRANSPOSED or "
                     "KIND_GENERATIVE"}},
        BrokenModel{"KernelLength",
                    Text("kernel_size: [3, 3, 3]", "kernel_size: [3]"),
                    {"node \"conv\": kernel_size has 1 values; the network has 3 axes"}},
        BrokenModel{"KernelZero",
                    Text("kernel_size: [3, 3, 3]", "kernel_size: [3, 0, 3]"),
                    {"node \"conv\": kernel_size[1] is 0; it must be 1 to 128"}},
        BrokenModel{"KernelHuge",
                    Text("kernel_size: [3, 3, 3]", "kernel_size: [3, 4294967295, 3]"),
                    {"node \"conv\": kernel_size[1] is 4294967295; it must be 1 to 128"}},
        BrokenModel{"KernelCells",
                    Text("kernel_size: [3, 3, 3]", "kernel_size: [17, 17, 17]"),
                    {"node \"conv\": its kernel has 4913 cells; at most 4096 are possible"}},
        BrokenModel{"Reach",
                    Text("kernel_size: [3, 3, 3]", "kernel_size: [3, 3, 4] dilation: [1, 128, 43]"),
                    {"node \"conv\": its kernel reaches 129 sites on axis 2; at most 128 are possible"}},
        BrokenModel{"StrideZero",
                    Text("stride: [2, 2, 2]", "stride: [2, 2, 0]"),
                    {"node \"down\": stride[2] is 0; it must be 1 to 128"}},
        BrokenModel{"SubmanifoldStride",
                    Text("KIND_SUBMANIFOLD", "KIND_SUBMANIFOLD stride: [1, 2, 1]"),
                    {"node \"conv\": KIND_SUBMANIFOLD has stride 1"}},
        BrokenModel{"SubmanifoldExtras",
                    Text("KIND_SUBMANIFOLD",
                         "KIND_SUBMANIFOLD rule: RULE_FLOOR padding: [1, 1, 1] paired_with: \"down\" "
                         "lower_bound: [0, 0, 0]"),
                    {"model.textproto: nodes form a cycle, each depending on the next: \"conv\" -> \"down\" -> "
                     "\"relu\" -> \"norm\" -> \"conv\"",
                     "node \"conv\": rule belongs to KIND_STRIDED, not to KIND_SUBMANIFOLD",
                     "node \"conv\": paired_with belongs to KIND_INVERSE alone",
                     "node \"conv\": lower_bound belongs to RULE_EXPAND alone",
                     "node \"conv\": padding belongs to boxes of RULE_PADDED, KIND_TRANSPOSED or sites_of alone"}},
        BrokenModel{"NoRule",
                    Text("rule: RULE_FLOOR", ""),
                    {"node \"down\": rule must be RULE_FLOOR, RULE_PADDED or RULE_EXPAND"}},
        BrokenModel{"PaddingOfFloor",
                    Text("rule: RULE_FLOOR", "rule: RULE_FLOOR padding: [0, 0, 0]"),
                    {"node \"down\": padding belongs to boxes of RULE_PADDED, KIND_TRANSPOSED or sites_of alone"}},
        BrokenModel{
            "PaddedWithoutShape",
            [](TestModel& model) { model.Replace("RULE_FLOOR", "RULE_PADDED").Replace("ORIGIN_RANGE", "ORIGIN_ZERO"); },
            {"node \"down\": RULE_PADDED needs a spatial shape: a voxelize with ORIGIN_RANGE, and no RULE_EXPAND "
             "in between"}},
        BrokenModel{
            "PaddedOnABrokenVoxelize",
            [](TestModel& model) { model.Replace("RULE_FLOOR", "RULE_PADDED").Replace("[8, 8, 4]", "[8, 8, -4]"); },
            {"node \"voxels\": axis 2 has the range -4 to -4; it must be finite and not empty"}},
        BrokenModel{"PaddedTooSmall",
                    Text("rule: RULE_FLOOR kernel_size: [2, 2, 2]",
                         "rule: RULE_PADDED kernel_size: [2, 2, 2] dilation: [1, 1, 8]"),
                    {"node \"down\": its kernel of 2 x 2 x 2 does not fit into its input's 32 x 32 x 8 sites"}},
        BrokenModel{"Bounds",
                    Text("rule: RULE_FLOOR kernel_size: [2, 2, 2]",
                         "rule: RULE_EXPAND kernel_size: [3, 3, 3] lower_bound: [0, 0, 0, 0] upper_bound: [1, 2, 3]"),
                    {"node \"down\": lower_bound has 4 values; the network has 3 axes"}},
        BrokenModel{"BoundsCross",
                    [](TestModel& model) {
                      model.Replace(
                          "rule: RULE_FLOOR kernel_size: [2, 2, 2]",
                          "rule: RULE_EXPAND kernel_size: [3, 3, 3] lower_bound: [0, 3, 0] upper_bound: [1, 2, "
                          "3]");
                      model.weights["down.weight"] = FilledTensor({27, 4, 3});
                    },
                    {"node \"down\": lower_bound[1] 3 is above upper_bound[1] 2"}},
        BrokenModel{"BoundsWithoutEffect",
                    Text("rule: RULE_FLOOR", "rule: RULE_EXPAND lower_bound: [0, 0, 0]"),
                    {"node \"down\": bounds have no effect: RULE_EXPAND with stride 1 or kernel_size on every axis is "
                     "RULE_FLOOR"}},
        BrokenModel{"NoPartner", Text("paired_with: \"down\" ", ""), {"node \"up\": KIND_INVERSE needs paired_with"}},
        BrokenModel{"UnknownPartner",
                    Text("paired_with: \"down\"", "paired_with: \"dawn\""),
                    {"node \"up\": paired_with \"dawn\" does not exist"}},
        BrokenModel{"PartnerNotStrided",
                    Text("paired_with: \"down\"", "paired_with: \"conv\""),
                    {"node \"up\": paired_with \"conv\" is not a pool or sparse_conv of KIND_STRIDED"}},
        BrokenModel{"PartnerNotAConvolution",
                    Text("paired_with: \"down\"", "paired_with: \"relu\""),
                    {"node \"up\": paired_with \"relu\" is not a pool or sparse_conv of KIND_STRIDED"}},
        BrokenModel{"PartnerOnOtherSites",
                    Text("name: \"up\" inputs: [\"down\"]", "name: \"up\" inputs: [\"relu\"]"),
                    {"node \"up\": its input \"relu\" is not on the sites that \"down\" makes",
                     "tensor \"up.weight\": has shape [8, 3, 4]; node \"up\" needs [?, 4, 4]"}},
        BrokenModel{"InverseExtras",
                    Text("paired_with: \"down\"", "paired_with: \"down\" kernel_size: [2, 2, 2] rule: RULE_FLOOR"),
                    {"node \"up\": rule belongs to KIND_STRIDED, not to KIND_INVERSE",
                     "node \"up\": kernel_size comes from the node in paired_with; leave it out"}},
        BrokenModel{"NoOutChannels",
                    Text("out_channels: 4 bias: true", "out_channels: 0 bias: true"),
                    {"node \"conv\": out_channels is 0; it must be 1 to 65536"}}),
    CaseName);

// Adds a convolution "beside" that reads the two channels of "voxels" and that no other node reads.
std::function<void(TestModel&)> Beside(const std::string& conv, std::vector<int64_t> weight_shape) {
  return [=](TestModel& model) {
    model.graph += "nodes { name: \"beside\" inputs: \"voxels\" sparse_conv { " + conv + " out_channels: 4 } }";
    model.weights["beside.weight"] = FilledTensor(weight_shape);
  };
}

INSTANTIATE_TEST_SUITE_P(
    NewAndGivenSites, BrokenConvolutionTest,
    ::testing::Values(
        BrokenModel{
            "TransposedWithoutShape",
            [](TestModel& model) {
              model.Replace("KIND_STRIDED rule: RULE_FLOOR", "KIND_TRANSPOSED").Replace("ORIGIN_RANGE", "ORIGIN_ZERO");
            },
            {"node \"down\": KIND_TRANSPOSED needs a spatial shape: a voxelize with ORIGIN_RANGE, and no "
             "RULE_EXPAND or KIND_GENERATIVE in between"}},
        BrokenModel{
            "TransposedToNothing",
            Beside("kind: KIND_TRANSPOSED kernel_size: [2, 2, 2] stride: [2, 2, 2] padding: [128, 0, 0]", {8, 2, 4}),
            {"node \"beside\": its output would have -192 x 64 x 16 sites; 1 to 130944 on an axis are "
             "possible"}},
        BrokenModel{
            "TransposedBeyondTheKey",
            [](TestModel& model) {
              model.graph +=
                  "nodes { name: \"wide\" inputs: \"voxels\" sparse_conv { kind: KIND_TRANSPOSED kernel_size: "
                  "[1, 1, 1] stride: [128, 1, 1] out_channels: 1 } } nodes { name: \"wider\" inputs: \"wide\" "
                  "sparse_conv { kind: KIND_TRANSPOSED kernel_size: [1, 1, 1] stride: [128, 1, 1] out_channels: "
                  "1 } }";
              model.weights["wide.weight"] = FilledTensor({1, 2, 1});
              model.weights["wider.weight"] = FilledTensor({1, 1, 1});
            },
            {"node \"wider\": its output would have 507905 x 32 x 8 sites; 1 to 130944 on an axis are "
             "possible"}},
        BrokenModel{"TransposedExtras",
                    Beside("kind: KIND_TRANSPOSED rule: RULE_FLOOR paired_with: \"down\" lower_bound: [0, 0, 0] "
                           "kernel_size: [2, 2, 2] output_padding: [1, 1]",
                           {8, 2, 4}),
                    {"node \"beside\": rule belongs to KIND_STRIDED, not to KIND_TRANSPOSED",
                     "node \"beside\": paired_with belongs to KIND_INVERSE alone",
                     "node \"beside\": lower_bound belongs to RULE_EXPAND alone",
                     "node \"beside\": output_padding has 2 values; the network has 3 axes"}},
        BrokenModel{"GenerativeExtras",
                    Beside("kind: KIND_GENERATIVE rule: RULE_FLOOR sites_of: \"voxels\" kernel_size: [2, 2, 2] "
                           "output_padding: [1, 1, 1] padding: [1, 1, 1]",
                           {8, 2, 4}),
                    {"node \"beside\": rule belongs to KIND_STRIDED, not to KIND_GENERATIVE",
                     "node \"beside\": sites_of belongs to KIND_STRIDED and KIND_TRANSPOSED alone",
                     "node \"beside\": output_padding belongs to KIND_TRANSPOSED without sites_of alone",
                     "node \"beside\": padding belongs to boxes of RULE_PADDED, KIND_TRANSPOSED or sites_of alone"}},
        BrokenModel{"InverseOfATransposed",
                    Text("KIND_STRIDED rule: RULE_FLOOR", "KIND_TRANSPOSED"),
                    {"node \"up\": paired_with \"down\" is not a pool or sparse_conv of KIND_STRIDED"}},
        BrokenModel{"SitesOfNothing",
                    Beside("kind: KIND_STRIDED sites_of: \"nowhere\" kernel_size: [1, 1, 1]", {1, 2, 4}),
                    {"node \"beside\": sites_of \"nowhere\" does not exist"}},
        BrokenModel{"SitesOfSamples",
                    [](TestModel& model) {
                      Beside("kind: KIND_STRIDED sites_of: \"all\" kernel_size: [1, 1, 1]", {1, 2, 4})(model);
                      model.graph += "nodes { name: \"all\" inputs: \"voxels\" global_pool { reduce: REDUCE_MAX } }";
                    },
                    {"node \"beside\": sites_of \"all\" has one row per sample; sites are those of voxels"}},
        BrokenModel{"SitesOfPoints",
                    Beside("kind: KIND_STRIDED sites_of: \"labels\" kernel_size: [1, 1, 1]", {1, 2, 4}),
                    {"node \"beside\": sites_of \"labels\" has one row per point; sites are those of voxels"}},
        BrokenModel{"SitesAndRule",
                    Beside("kind: KIND_STRIDED rule: RULE_FLOOR sites_of: \"down\" kernel_size: [2, 2, 2] stride: [2, "
                           "2, 2] output_padding: [1, 1, 1]",
                           {8, 2, 4}),
                    {"node \"beside\": output_padding belongs to KIND_TRANSPOSED without sites_of alone",
                     "node \"beside\": sites_of replaces a rule; leave one out"}},
        BrokenModel{"SitesOfAnotherUnit",
                    Beside("kind: KIND_STRIDED sites_of: \"down\" kernel_size: [2, 2, 2] stride: [2, 1, 2]", {8, 2, 4}),
                    {"node \"beside\": its stride of 2 x 1 x 2 does not lead from the sites of \"voxels\" to those of "
                     "\"down\""}},
        BrokenModel{
            "TransposedOntoCoarserSites",
            Beside("kind: KIND_TRANSPOSED sites_of: \"down\" kernel_size: [2, 2, 2] stride: [2, 2, 2]", {8, 2, 4}),
            {"node \"beside\": its stride of 2 x 2 x 2 does not lead from the sites of \"down\" to those of "
             "\"voxels\""}},
        BrokenModel{"GivenSitesInACycle",
                    Text("rule: RULE_FLOOR", "sites_of: \"up\""),
                    {"model.textproto: nodes form a cycle, each depending on the next: \"down\" -> \"up\" -> "
                     "\"down\""}}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Kernels, BrokenConvolutionTest,
    ::testing::Values(
        BrokenModel{"Groups",
                    Beside("kind: KIND_SUBMANIFOLD kernel_size: [1, 1, 1] groups: 4", {1, 1, 4}),
                    {"node \"beside\": groups is 4; it must divide its 2 input and 4 output channels"}},
        BrokenModel{"GroupsOfAWholeWeight",
                    Beside("kind: KIND_SUBMANIFOLD kernel_size: [1, 1, 1] groups: 2", {1, 2, 4}),
                    {"tensor \"beside.weight\": has shape [1, 2, 4]; node \"beside\" needs [1, 1, 4]"}},
        BrokenModel{"GroupsThatSpreadTooFar",
                    [](TestModel& model) {
                      model.graph +=
                          "nodes { name: \"wide\" inputs: \"voxels\" linear { out_channels: 4096 } } nodes { name: "
                          "\"deep\" inputs: \"wide\" sparse_conv { kind: KIND_SUBMANIFOLD kernel_size: [3, 3, 3] "
                          "out_channels: 4096 groups: 4096 } }";
                      model.weights["wide.weight"] = FilledTensor({4096, 2});
                      model.weights["deep.weight"] = FilledTensor({27, 1, 4096});
                    },
                    {"node \"deep\": its weight takes 452984832 values once its groups are spread; at most 268435456 "
                     "are possible"}},
        BrokenModel{"OffsetsLength",
                    Beside("kind: KIND_SUBMANIFOLD offsets: [0, 0, 0, 1]", {1, 2, 4}),
                    {"node \"beside\": offsets has 4 values; 3 make an offset"}},
        BrokenModel{"OffsetTwice",
                    Beside("kind: KIND_SUBMANIFOLD offsets: [0, 0, 0, 1, 0, 0, 0, 0, 0]", {3, 2, 4}),
                    {"node \"beside\": offset number 2 appears twice"}},
        BrokenModel{"OffsetsAndKernel",
                    Beside("kind: KIND_SUBMANIFOLD kernel_size: [1, 1, 1] offsets: [0, 0, 0]", {1, 2, 4}),
                    {"node \"beside\": offsets replace kernel_size and kernel_shape; leave those out"}},
        BrokenModel{"OffsetFarAway",
                    Beside("kind: KIND_SUBMANIFOLD offsets: [0, 0, -65] dilation: [1, 1, 2]", {1, 2, 4}),
                    {"node \"beside\": its kernel reaches 130 sites on axis 2; at most 128 are possible"}},
        BrokenModel{"OffsetsFarApart",
                    Beside("kind: KIND_SUBMANIFOLD offsets: [0, -100, 0, 0, 100, 0]", {2, 2, 4}),
                    {"node \"beside\": its offsets span 201 sites on axis 1; at most 128 are possible"}},
        BrokenModel{"UnknownShape",
                    Beside("kind: KIND_SUBMANIFOLD kernel_size: [3, 3, 3] kernel_shape: 7", {27, 2, 4}),
                    {"node \"beside\": kernel_shape must be KERNEL_SHAPE_BOX or KERNEL_SHAPE_CROSS"}},
        BrokenModel{"PaddingOfAListOntoGivenSites",
                    Beside("kind: KIND_STRIDED sites_of: \"conv\" kernel_size: [3, 3, 3] kernel_shape: "
                           "KERNEL_SHAPE_CROSS padding: [1, 1, 1]",
                           {7, 2, 4}),
                    {"node \"beside\": padding belongs to boxes of RULE_PADDED, KIND_TRANSPOSED or sites_of alone"}},
        BrokenModel{"EvenCross",
                    Beside("kind: KIND_SUBMANIFOLD kernel_size: [3, 2, 3] kernel_shape: KERNEL_SHAPE_CROSS", {6, 2, 4}),
                    {"node \"beside\": kernel_size[1] is 2; a cross has odd sizes"}},
        BrokenModel{
            "HugeCross",
            Beside("kind: KIND_SUBMANIFOLD kernel_size: [127, 127, 127] kernel_shape: KERNEL_SHAPE_CROSS", {1, 2, 4}),
            {"node \"beside\": its kernel lists 379 cells; at most 343 are possible"}},
        BrokenModel{"CrossOfPadded",
                    Beside("kind: KIND_STRIDED rule: RULE_PADDED kernel_size: [3, 3, 3] kernel_shape: "
                           "KERNEL_SHAPE_CROSS",
                           {7, 2, 4}),
                    {"node \"beside\": kernel_shape and offsets do not go with RULE_PADDED; its kernel is a box"}},
        BrokenModel{"OffsetsOfExpand",
                    Beside("kind: KIND_STRIDED rule: RULE_EXPAND offsets: [0, 0, 0]", {1, 2, 4}),
                    {"node \"beside\": kernel_shape and offsets do not go with RULE_EXPAND; its kernel is a box"}},
        BrokenModel{"OffsetsOfTransposed",
                    Beside("kind: KIND_TRANSPOSED offsets: [0, 0, 0]", {1, 2, 4}),
                    {"node \"beside\": kernel_shape and offsets do not go with KIND_TRANSPOSED without sites_of; its "
                     "kernel is a box"}},
        BrokenModel{"OffsetsOfAnInverse",
                    Text("paired_with: \"down\"", "paired_with: \"down\" offsets: [0, 0, 0]"),
                    {"node \"up\": offsets comes from the node in paired_with; leave it out"}}),
    CaseName);

}  // namespace
}  // namespace voxserve::broken_convolution_test
