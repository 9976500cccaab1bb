// Tests the error messages for networks with broken unions, crops and prunes.

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/engine/model/broken_model.h"

namespace voxserve::broken_sites_test {
namespace {

class BrokenSitesTest : public ::testing::TestWithParam<BrokenModel> {};

TEST_P(BrokenSitesTest, IsToldExactly) { ExpectToldExactly(GetParam()); }

// Adds the nodes `others`, and after them a node "next" with these inputs.
std::function<void(support::TestModel&)> Next(const std::string& inputs, const std::string& op,
                                              const std::string& others = "") {
  return Append(absl::StrCat(others, "nodes { name: \"next\" inputs: [", inputs, "] ", op, " }"));
}

constexpr char kGlobal[] = "nodes { name: \"global\" inputs: \"relu\" global_pool { reduce: REDUCE_SUM } } ";

INSTANTIATE_TEST_SUITE_P(
    Unions, BrokenSitesTest,
    ::testing::Values(
        BrokenModel{"Units",
                    Next("\"relu\", \"down\"", "concat { sites: SITES_UNION }"),
                    {"node \"next\": its inputs \"relu\" and \"down\" are on sites of different units"}},
        BrokenModel{"Channels",
                    Next("\"relu\", \"voxels\"", "add { sites: SITES_UNION }"),
                    {"node \"next\": adds 4 channels of \"relu\" and 2 of \"voxels\""}},
        BrokenModel{"Samples",
                    Next("\"relu\", \"global\"", "add { sites: SITES_UNION }", kGlobal),
                    {"node \"next\": its input \"global\" has one row per sample; SITES_UNION is of sites"}},
        BrokenModel{"Labels",
                    Next("\"relu\", \"best\"", "concat { sites: SITES_UNION }"),
                    {"node \"next\": its input \"best\" computes labels; only voxel_to_point reads those"}},
        BrokenModel{"OneInput",
                    Next("\"relu\"", "concat { sites: SITES_UNION }"),
                    {"node \"next\": has 1 inputs; it needs 2 or more"}},
        BrokenModel{"ThreeInputs",
                    Next("\"relu\", \"conv\", \"norm\"", "add { sites: SITES_UNION }"),
                    {"node \"next\": has 3 inputs; it needs 2"}},
        BrokenModel{"SameSites",
                    Next("\"relu\", \"part\"", "add { sites: SITES_SAME }",
                         "nodes { name: \"part\" inputs: \"relu\" crop { lower_bound: [1, 1, 1] } } "),
                    {"node \"next\": its inputs \"relu\" and \"part\" are on different sites"}}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Crops, BrokenSitesTest,
    ::testing::Values(
        BrokenModel{
            "NoBounds", Next("\"relu\"", "crop {}"), {"node \"next\": has neither lower_bound nor upper_bound"}},
        BrokenModel{"LowerLength",
                    Next("\"relu\"", "crop { lower_bound: [1, 2] upper_bound: [3, 4, 5] }"),
                    {"node \"next\": lower_bound has 2 values; the network has 3 axes"}},
        BrokenModel{"UpperLength",
                    Next("\"relu\"", "crop { upper_bound: [3, 4, 5, 6] }"),
                    {"node \"next\": upper_bound has 4 values; the network has 3 axes"}},
        BrokenModel{"LowerIsNotBelow",
                    Next("\"relu\"", "crop { lower_bound: [1, 4, -2] upper_bound: [3, 4, -3] }"),
                    {"node \"next\": lower_bound[1] 4 is not below upper_bound[1] 4",
                     "node \"next\": lower_bound[2] -2 is not below upper_bound[2] -3"}},
        BrokenModel{"OfSamples",
                    Next("\"global\"", "crop { lower_bound: [1, 1, 1] }", kGlobal),
                    {"node \"next\": its input \"global\" has one row per sample; it needs sites"}},
        BrokenModel{"OfLabels",
                    Next("\"best\"", "crop { lower_bound: [1, 1, 1] }"),
                    {"node \"next\": its input \"best\" computes labels; only voxel_to_point reads those"}},
        BrokenModel{"OutputOffTheVoxels",
                    [](support::TestModel& model) {
                      model.graph += "nodes { name: \"part\" inputs: \"head\" crop { lower_bound: [1, 1, 1] } }";
                      model.Replace("inputs: [\"head\"] argmax", "inputs: [\"part\"] argmax");
                    },
                    {"node \"labels\": its first input \"best\" is not on the voxelize's sites"}}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Prunes, BrokenSitesTest,
    ::testing::Values(
        BrokenModel{"NoScores", Next("\"relu\"", "prune {}"), {"node \"next\": has 1 inputs; it needs 2"}},
        BrokenModel{"ScoreChannels",
                    Next("\"relu\", \"voxels\"", "prune {}"),
                    {"node \"next\": its second input \"voxels\" has 2 channels; a score is one"}},
        BrokenModel{"ScoresOnOtherSites",
                    [](support::TestModel& model) {
                      Next("\"relu\", \"score\"", "prune {}",
                           "nodes { name: \"score\" inputs: \"down\" linear { out_channels: 1 } } ")(model);
                      model.weights["score.weight"] = support::FilledTensor({1, 3});
                    },
                    {"node \"next\": its scores \"score\" are not on the sites of \"relu\""}},
        BrokenModel{"Threshold",
                    [](support::TestModel& model) {
                      Next("\"relu\", \"score\"", "prune { threshold: nan }",
                           "nodes { name: \"score\" inputs: \"relu\" linear { out_channels: 1 } } ")(model);
                      model.weights["score.weight"] = support::FilledTensor({1, 4});
                    },
                    {"node \"next\": threshold is nan; it must be finite"}},
        BrokenModel{"ScoresAreLabels",
                    Next("\"relu\", \"best\"", "prune {}"),
                    {"node \"next\": its input \"best\" computes labels; only voxel_to_point reads those"}}),
    CaseName);

}  // namespace
}  // namespace voxserve::broken_sites_test
