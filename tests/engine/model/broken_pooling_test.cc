// Tests the error messages for networks with broken pools.

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/engine/model/broken_model.h"

namespace voxserve::broken_pooling_test {
namespace {

using support::FilledTensor;
using support::TestModel;

class BrokenPoolingTest : public ::testing::TestWithParam<BrokenModel> {};

TEST_P(BrokenPoolingTest, IsToldExactly) { ExpectToldExactly(GetParam()); }

// Adds a node "pool" that reads `input`.
std::function<void(TestModel&)> Pool(const std::string& input, const std::string& parameters) {
  return Append(absl::StrCat("nodes { name: \"pool\" inputs: \"", input, "\" pool { ", parameters, " } }"));
}

INSTANTIATE_TEST_SUITE_P(
    Pool, BrokenPoolingTest,
    ::testing::Values(
        BrokenModel{"NoReduce",
                    Pool("relu", "kind: KIND_SUBMANIFOLD kernel_size: [3, 3, 3]"),
                    {"node \"pool\": reduce must be REDUCE_MAX, REDUCE_AVERAGE or REDUCE_SUM"}},
        BrokenModel{"NoKind",
                    Pool("relu", "reduce: REDUCE_MAX kernel_size: [3, 3, 3]"),
                    {"node \"pool\": kind must be KIND_SUBMANIFOLD, KIND_STRIDED, KIND_INVERSE or KIND_TRANSPOSED"}},
        BrokenModel{"TooManyInputs",
                    Append("nodes { name: \"pool\" inputs: [\"relu\", \"conv\"] pool { reduce: REDUCE_MAX kind: "
                           "KIND_SUBMANIFOLD kernel_size: [3, 3, 3] } }"),
                    {"node \"pool\": has 2 inputs; it needs 1"}},
        BrokenModel{"KernelLength",
                    Pool("relu", "reduce: REDUCE_MAX kind: KIND_SUBMANIFOLD kernel_size: [3, 3]"),
                    {"node \"pool\": kernel_size has 2 values; the network has 3 axes"}},
        BrokenModel{"StrideOfSubmanifold",
                    Pool("relu", "reduce: REDUCE_SUM kind: KIND_SUBMANIFOLD kernel_size: [3, 3, 3] stride: [2, 1, 1]"),
                    {"node \"pool\": KIND_SUBMANIFOLD has stride 1"}},
        BrokenModel{"NoRule",
                    Pool("relu", "reduce: REDUCE_SUM kind: KIND_STRIDED kernel_size: [2, 2, 2] stride: [2, 2, 2]"),
                    {"node \"pool\": rule must be RULE_FLOOR, RULE_PADDED or RULE_EXPAND"}},
        BrokenModel{
            "Dilation",
            Pool("relu", "reduce: REDUCE_SUM kind: KIND_SUBMANIFOLD kernel_size: [3, 3, 3] dilation: [1, 0, 1]"),
            {"node \"pool\": dilation[1] is 0; it must be 1 to 128"}},
        BrokenModel{"PaddingOfFloor",
                    Pool("relu",
                         "reduce: REDUCE_MAX kind: KIND_STRIDED rule: RULE_FLOOR kernel_size: [2, 2, 2] stride: "
                         "[2, 2, 2] padding: [0, 0, 0]"),
                    {"node \"pool\": padding belongs to boxes of RULE_PADDED, KIND_TRANSPOSED or sites_of alone"}},
        BrokenModel{"BoundsOfFloor",
                    Pool("relu",
                         "reduce: REDUCE_MAX kind: KIND_STRIDED rule: RULE_FLOOR kernel_size: [2, 2, 2] stride: "
                         "[2, 2, 2] lower_bound: [0, 0, 0] upper_bound: [1, 1, 1]"),
                    {"node \"pool\": lower_bound belongs to RULE_EXPAND alone",
                     "node \"pool\": upper_bound belongs to RULE_EXPAND alone"}},
        BrokenModel{"DoesNotFit",
                    Pool("relu", "reduce: REDUCE_MAX kind: KIND_STRIDED rule: RULE_PADDED kernel_size: [2, 2, 9]"),
                    {"node \"pool\": its kernel of 2 x 2 x 9 does not fit into its input's 32 x 32 x 8 sites"}},
        BrokenModel{"TransposedWithARule",
                    Pool("relu", "reduce: REDUCE_MAX kind: KIND_TRANSPOSED rule: RULE_FLOOR kernel_size: [1, 1, 1]"),
                    {"node \"pool\": rule belongs to KIND_STRIDED, not to KIND_TRANSPOSED"}},
        BrokenModel{"TransposedWithoutShape",
                    [](TestModel& model) {
                      Pool("relu", "reduce: REDUCE_MAX kind: KIND_TRANSPOSED kernel_size: [2, 2, 2]")(model);
                      model.Replace("origin: ORIGIN_RANGE", "origin: ORIGIN_ZERO");
                    },
                    {"node \"pool\": KIND_TRANSPOSED needs a spatial shape: a voxelize with ORIGIN_RANGE, and no "
                     "RULE_EXPAND or KIND_GENERATIVE in between"}},
        BrokenModel{"NoPartner",
                    Pool("down", "reduce: REDUCE_MAX kind: KIND_INVERSE"),
                    {"node \"pool\": KIND_INVERSE needs paired_with"}},
        BrokenModel{"UnknownPartner",
                    Pool("down", "reduce: REDUCE_MAX kind: KIND_INVERSE paired_with: \"dawn\""),
                    {"node \"pool\": paired_with \"dawn\" does not exist"}},
        BrokenModel{"PartnerNotStrided",
                    Pool("down", "reduce: REDUCE_MAX kind: KIND_INVERSE paired_with: \"conv\""),
                    {"node \"pool\": paired_with \"conv\" is not a pool or sparse_conv of KIND_STRIDED"}},
        BrokenModel{"PartnerOfAnotherKind",
                    Pool("down", "reduce: REDUCE_MAX kind: KIND_INVERSE paired_with: \"relu\""),
                    {"node \"pool\": paired_with \"relu\" is not a pool or sparse_conv of KIND_STRIDED"}},
        BrokenModel{"PartnerOnOtherSites",
                    Pool("relu", "reduce: REDUCE_MAX kind: KIND_INVERSE paired_with: \"down\""),
                    {"node \"pool\": its input \"relu\" is not on the sites that \"down\" makes"}},
        // An inverse convolution cannot name these pools.
        BrokenModel{"ConvolutionOfAPoolOverNeighbours",
                    [](TestModel& model) {
                      Pool("relu", "reduce: REDUCE_MAX kind: KIND_SUBMANIFOLD kernel_size: [2, 2, 2]")(model);
                      model.Replace("paired_with: \"down\"", "paired_with: \"pool\"");
                    },
                    {"node \"up\": paired_with \"pool\" is not a pool or sparse_conv of KIND_STRIDED"}},
        BrokenModel{"ConvolutionOfAPoolOnOtherSites",
                    [](TestModel& model) {
                      Pool("relu",
                           "reduce: REDUCE_MAX kind: KIND_STRIDED rule: RULE_FLOOR kernel_size: [2, 2, 2] "
                           "stride: [3, 2, 2]")(model);
                      model.Replace("paired_with: \"down\"", "paired_with: \"pool\"");
                    },
                    {"node \"up\": its input \"down\" is not on the sites that \"pool\" makes"}},
        BrokenModel{"ConvolutionOfAPoolOfAnotherKernel",
                    [](TestModel& model) {
                      Pool("relu",
                           "reduce: REDUCE_MAX kind: KIND_STRIDED rule: RULE_FLOOR kernel_size: [3, 2, 2] "
                           "stride: [2, 2, 2]")(model);
                      model.Replace("paired_with: \"down\"", "paired_with: \"pool\"");
                    },
                    {"tensor \"up.weight\": has shape [8, 3, 4]; node \"up\" needs [12, 3, 4]"}},
        BrokenModel{"ConvolutionOfABrokenPool",
                    [](TestModel& model) {
                      Pool("relu", "reduce: REDUCE_MAX kind: KIND_STRIDED kernel_size: [2, 2, 2]")(model);
                      model.Replace("paired_with: \"down\"", "paired_with: \"pool\"");
                    },
                    {"node \"pool\": rule must be RULE_FLOOR, RULE_PADDED or RULE_EXPAND"}},
        BrokenModel{"OfLabels",
                    Pool("best", "reduce: REDUCE_MAX kind: KIND_SUBMANIFOLD kernel_size: [3, 3, 3]"),
                    {"node \"pool\": its input \"best\" computes labels; only voxel_to_point reads those"}}),
    CaseName);

// Adds a global pool "global", and a node "next" that reads "global" after the inputs `before`.
std::function<void(TestModel&)> AfterGlobal(const std::string& before, const std::string& op) {
  return Append(
      absl::StrCat("nodes { name: \"global\" inputs: \"relu\" global_pool { reduce: REDUCE_SUM } } nodes { "
                   "name: \"next\" inputs: [",
                   before, "\"global\"] ", op, " }"));
}

INSTANTIATE_TEST_SUITE_P(
    Samples, BrokenPoolingTest,
    ::testing::Values(
        BrokenModel{"NoReduceOfGlobal",
                    Append("nodes { name: \"global\" inputs: \"relu\" global_pool {} }"),
                    {"node \"global\": reduce must be REDUCE_MAX, REDUCE_AVERAGE, REDUCE_SUM or "
                     "REDUCE_GENERALISED_MEAN"}},
        BrokenModel{"GlobalOfLabels",
                    Append("nodes { name: \"global\" inputs: \"best\" global_pool { reduce: REDUCE_MAX } }"),
                    {"node \"global\": its input \"best\" computes labels; only voxel_to_point reads those"}},
        BrokenModel{"GlobalOfGlobal",
                    AfterGlobal("", "global_pool { reduce: REDUCE_MAX }"),
                    {"node \"next\": its input \"global\" has one row per sample; it needs sites"}},
        BrokenModel{"ConvolutionOfSamples",
                    [](TestModel& model) {
                      AfterGlobal(
                          "", "sparse_conv { kind: KIND_SUBMANIFOLD kernel_size: [1, 1, 1] out_channels: 4 }")(model);
                      model.weights["next.weight"] = FilledTensor({1, 4, 4});
                    },
                    {"node \"next\": its input \"global\" has one row per sample; it needs sites"}},
        BrokenModel{"PoolOfSamples",
                    AfterGlobal("", "pool { reduce: REDUCE_MAX kind: KIND_SUBMANIFOLD kernel_size: [3, 3, 3] }"),
                    {"node \"next\": its input \"global\" has one row per sample; it needs sites"}},
        BrokenModel{"PointsOfSamples",
                    Append("nodes { name: \"global\" inputs: \"relu\" global_pool { reduce: REDUCE_SUM } } nodes { "
                           "name: \"next\" inputs: [\"global\", \"voxels\"] voxel_to_point {} }"),
                    {"node \"next\": its first input \"global\" is not on the voxelize's sites"}},
        BrokenModel{"AddOfSitesAndSamples",
                    AfterGlobal("\"relu\", ", "add {}"),
                    {"node \"next\": its inputs \"relu\" and \"global\" have different rows"}},
        BrokenModel{"BroadcastWithoutFunction",
                    AfterGlobal("\"relu\", ", "broadcast {}"),
                    {"node \"next\": function must be FUNCTION_ADD, FUNCTION_MULTIPLY or FUNCTION_CONCAT"}},
        BrokenModel{"BroadcastOfOne",
                    AfterGlobal("", "broadcast { function: FUNCTION_ADD }"),
                    {"node \"next\": has 1 inputs; it needs 2"}},
        BrokenModel{"BroadcastToSamples",
                    AfterGlobal("\"global\", ", "broadcast { function: FUNCTION_ADD }"),
                    {"node \"next\": its input \"global\" has one row per sample; it needs sites"}},
        BrokenModel{"BroadcastOfSites",
                    Append("nodes { name: \"next\" inputs: [\"relu\", \"conv\"] broadcast { function: FUNCTION_ADD } "
                           "}"),
                    {"node \"next\": its second input \"conv\" has one row per site; it needs one per sample, as "
                     "global_pool makes"}},
        BrokenModel{"BroadcastChannels",
                    AfterGlobal("\"voxels\", ", "broadcast { function: FUNCTION_MULTIPLY }"),
                    {"node \"next\": brings 4 channels of \"global\" to 2 of \"voxels\""}}),
    CaseName);

std::function<void(TestModel&)> Norm(const std::string& op) {
  return Append(absl::StrCat("nodes { name: \"next\" inputs: \"relu\" ", op, " }"));
}

INSTANTIATE_TEST_SUITE_P(
    Norms, BrokenPoolingTest,
    ::testing::Values(
        BrokenModel{"NoGroups", Norm("group_norm {}"), {"node \"next\": num_groups is 0; it must be 1 or more"}},
        BrokenModel{"GroupsDoNotDivide",
                    Norm("group_norm { num_groups: 3 }"),
                    {"node \"next\": num_groups is 3, which does not divide the 4 channels"}},
        BrokenModel{"GroupsBeyondInt",
                    Norm("group_norm { num_groups: 4294967295 }"),
                    {"node \"next\": num_groups is 4294967295, which does not divide the 4 channels"}},
        BrokenModel{"GroupEpsilon",
                    Norm("group_norm { num_groups: 2 epsilon: 0 }"),
                    {"node \"next\": epsilon is 0; it must be finite and above 0"}},
        BrokenModel{"InstanceEpsilon",
                    Norm("instance_norm { epsilon: nan }"),
                    {"node \"next\": epsilon is nan; it must be finite and above 0"}},
        BrokenModel{"MissingTensors",
                    Norm("instance_norm { affine: true }"),
                    {"tensor \"next.weight\": is missing; node \"next\" needs it with shape [4]",
                     "tensor \"next.bias\": is missing; node \"next\" needs it with shape [4]"}},
        BrokenModel{"TensorShape",
                    [](TestModel& model) {
                      Norm("group_norm { num_groups: 2 affine: true }")(model);
                      model.weights["next.weight"] = FilledTensor({2});
                      model.weights["next.bias"] = FilledTensor({4});
                    },
                    {"tensor \"next.weight\": has shape [2]; node \"next\" needs [4]"}},
        BrokenModel{"TensorsOfPlainNorm",
                    [](TestModel& model) {
                      Norm("instance_norm {}")(model);
                      model.weights["next.weight"] = FilledTensor({4});
                    },
                    {"node \"next\": no output depends on it", "tensor \"next.weight\": is used by no node"}},
        BrokenModel{"NormOfSamples",
                    AfterGlobal("", "instance_norm {}"),
                    {"node \"next\": its input \"global\" has one row per sample; it needs sites"}}),
    CaseName);

}  // namespace
}  // namespace voxserve::broken_pooling_test
