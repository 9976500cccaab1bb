// Tests the error messages for networks with broken attention.

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/engine/model/broken_model.h"

namespace voxserve::broken_attention_test {
namespace {

using support::FilledTensor;
using support::TestModel;

class BrokenAttentionTest : public ::testing::TestWithParam<BrokenModel> {};

TEST_P(BrokenAttentionTest, IsToldExactly) { ExpectToldExactly(GetParam()); }

// Adds a node "tokens" of learned rows [num_rows, channels] for every sample, and its weight, which has this shape.
std::function<void(TestModel&)> Tokens(int64_t num_rows, int64_t channels, const std::vector<int64_t>& shape) {
  return [=](TestModel& model) {
    model.graph +=
        absl::StrCat("nodes { name: \"tokens\" sample_rows { num_rows: ", num_rows, " channels: ", channels, " } }");
    model.weights["tokens.weight"] = FilledTensor(shape);
  };
}

INSTANTIATE_TEST_SUITE_P(
    SampleRows, BrokenAttentionTest,
    ::testing::Values(
        BrokenModel{"NoRows", Tokens(0, 4, {1, 4}), {"node \"tokens\": num_rows is 0; it must be 1 to 4096"}},
        BrokenModel{
            "TooManyRows", Tokens(4097, 4, {1, 4}), {"node \"tokens\": num_rows is 4097; it must be 1 to 4096"}},
        BrokenModel{"NoChannels", Tokens(2, 0, {2, 1}), {"node \"tokens\": channels is 0; it must be 1 to 65536"}},
        BrokenModel{
            "TooManyChannels", Tokens(1, 65537, {1, 1}), {"node \"tokens\": channels is 65537; it must be 1 to 65536"}},
        BrokenModel{"Shape",
                    Tokens(2, 4, {4, 2}),
                    {"tensor \"tokens.weight\": has shape [4, 2]; node \"tokens\" needs [2, 4]"}},
        BrokenModel{"NoTensor",
                    Append("nodes { name: \"tokens\" sample_rows { num_rows: 2 channels: 4 } }"),
                    {"tensor \"tokens.weight\": is missing; node \"tokens\" needs it with shape [2, 4]"}},
        BrokenModel{"Inputs",
                    [](TestModel& model) {
                      Append("nodes { name: \"tokens\" inputs: \"relu\" sample_rows { num_rows: 2 channels: 4 } }")(
                          model);
                      model.weights["tokens.weight"] = FilledTensor({2, 4});
                    },
                    {"node \"tokens\": has 1 inputs; it needs 0"}},
        BrokenModel{"SitesOfTokens",
                    [](TestModel& model) {
                      Tokens(2, 4, {2, 4})(model);
                      Append("nodes { name: \"next\" inputs: \"tokens\" global_pool { reduce: REDUCE_SUM } }")(model);
                    },
                    {"node \"next\": its input \"tokens\" has one row per cell; it needs sites"}},
        BrokenModel{"BroadcastOfTokens",
                    [](TestModel& model) {
                      Tokens(2, 4, {2, 4})(model);
                      Append(
                          "nodes { name: \"next\" inputs: [\"relu\", \"tokens\"] broadcast { function: "
                          "FUNCTION_ADD } }")(model);
                    },
                    {"node \"next\": its second input \"tokens\" has one row per cell; it needs one per sample, as "
                     "global_pool makes"}},
        BrokenModel{"AddOfOtherNumbers",
                    [](TestModel& model) {
                      Tokens(2, 4, {2, 4})(model);
                      model.weights["others.weight"] = FilledTensor({3, 4});
                      Append(
                          "nodes { name: \"others\" sample_rows { num_rows: 3 channels: 4 } }"
                          "nodes { name: \"next\" inputs: [\"tokens\", \"others\"] add {} }")(model);
                    },
                    {"node \"next\": its inputs \"tokens\" and \"others\" have different rows"}}),
    CaseName);

// Adds a node "attention" with these inputs.
std::function<void(TestModel&)> Attention(const std::string& inputs, const std::string& parameters = "") {
  return Append(absl::StrCat("nodes { name: \"attention\" inputs: [", inputs, "] attention { ", parameters, " } }"));
}

INSTANTIATE_TEST_SUITE_P(
    Attention, BrokenAttentionTest,
    ::testing::Values(
        BrokenModel{"TwoInputs", Attention("\"relu\", \"relu\""), {"node \"attention\": has 2 inputs; it needs 3"}},
        BrokenModel{"HeadsDoNotDivideTheKeys",
                    Attention("\"relu\", \"relu\", \"relu\"", "num_heads: 3"),
                    {"node \"attention\": num_heads is 3, which does not divide the 4 channels of \"relu\""}},
        BrokenModel{"HeadsDoNotDivideTheValues",
                    [](TestModel& model) {
                      Append("nodes { name: \"wide\" inputs: \"relu\" linear { out_channels: 6 } }")(model);
                      model.weights["wide.weight"] = FilledTensor({6, 4});
                      Attention("\"relu\", \"relu\", \"wide\"", "num_heads: 4")(model);
                    },
                    {"node \"attention\": num_heads is 4, which does not divide the 6 channels of \"wide\""}},
        BrokenModel{"TooManyHeads",
                    Attention("\"relu\", \"relu\", \"relu\"", "num_heads: 65"),
                    {"node \"attention\": num_heads is 65; it must be 1 to 64"}},
        BrokenModel{"HeadsBeyondInt",
                    Attention("\"relu\", \"relu\", \"relu\"", "num_heads: 4294967295"),
                    {"node \"attention\": num_heads is 4294967295; it must be 1 to 64"}},
        BrokenModel{"ScaleIsNan",
                    Attention("\"relu\", \"relu\", \"relu\"", "scale: nan"),
                    {"node \"attention\": scale is nan; it must be finite"}},
        BrokenModel{"ScaleIsInfinite",
                    Attention("\"relu\", \"relu\", \"relu\"", "scale: inf"),
                    {"node \"attention\": scale is inf; it must be finite"}},
        BrokenModel{"TooManyChannelsOfAHead",
                    [](TestModel& model) {
                      Append("nodes { name: \"wide\" inputs: \"relu\" linear { out_channels: 514 } }")(model);
                      model.weights["wide.weight"] = FilledTensor({514, 4});
                      Attention("\"relu\", \"relu\", \"wide\"", "num_heads: 2")(model);
                    },
                    {"node \"attention\": each of its heads has 257 channels of \"wide\"; at most 256 are possible"}},
        BrokenModel{"QueriesOfOtherChannels",
                    Attention("\"voxels\", \"relu\", \"relu\""),
                    {"node \"attention\": its queries \"voxels\" have 2 channels and its keys \"relu\" 4"}},
        BrokenModel{"ValuesOnOtherSites",
                    Attention("\"relu\", \"relu\", \"down\""),
                    {"node \"attention\": its keys \"relu\" and values \"down\" have different rows"}},
        BrokenModel{
            "KeysOnPoints",
            [](TestModel& model) {
              Append("nodes { name: \"points\" inputs: \"voxels\" point_features {} }")(model);
              Attention("\"voxels\", \"points\", \"points\"")(model);
            },
            {"node \"attention\": its keys \"points\" have one row per point; they need one row per site, or rows of "
             "samples"}},
        BrokenModel{"OfLabels",
                    Attention("\"best\", \"relu\", \"relu\""),
                    {"node \"attention\": its input \"best\" computes labels; only voxel_to_point reads those"}}),
    CaseName);

// Adds a node "wide" of 12 channels on the voxels, "positions" of them, and a node "rotary" with these inputs.
std::function<void(TestModel&)> Rotary(const std::string& inputs, const std::string& parameters) {
  return [=](TestModel& model) {
    model.weights["wide.weight"] = FilledTensor({12, 4});
    Append(
        absl::StrCat("nodes { name: \"wide\" inputs: \"relu\" linear { out_channels: 12 } }"
                     "nodes { name: \"positions\" inputs: \"voxels\" site_position { of: OF_MEAN_POINT } }"
                     "nodes { name: \"rotary\" inputs: [",
                     inputs, "] rotary { ", parameters, " } }"))(model);
  };
}

INSTANTIATE_TEST_SUITE_P(
    Rotary, BrokenAttentionTest,
    ::testing::Values(
        BrokenModel{"NoBase", Rotary("\"wide\"", ""), {"node \"rotary\": base is 0; it must be finite and above 0"}},
        BrokenModel{"BaseBelowZero",
                    Rotary("\"wide\", \"positions\"", "base: -10"),
                    {"node \"rotary\": base is -10; it must be finite and above 0"}},
        BrokenModel{"BaseIsNan",
                    Rotary("\"wide\"", "base: nan"),
                    {"node \"rotary\": base is nan; it must be finite and above 0"}},
        BrokenModel{"BaseIsInfinite",
                    Rotary("\"wide\"", "base: inf"),
                    {"node \"rotary\": base is inf; it must be finite and above 0"}},
        BrokenModel{"TooManyHeads",
                    Rotary("\"wide\"", "base: 10 num_heads: 65"),
                    {"node \"rotary\": num_heads is 65; it must be 1 to 64"}},
        BrokenModel{"HeadsDoNotDivide",
                    Rotary("\"wide\"", "base: 10 num_heads: 5"),
                    {"node \"rotary\": num_heads is 5, which does not divide the 12 channels of \"wide\""}},
        BrokenModel{"NoPairForEachAxis",
                    Rotary("\"wide\"", "base: 10 num_heads: 4"),
                    {"node \"rotary\": each of its heads has 3 channels of \"wide\"; they must be a multiple of 6, a "
                     "pair for each axis"}},
        BrokenModel{"TooManyChannelsOfAHead",
                    [](TestModel& model) {
                      Append(
                          "nodes { name: \"wider\" inputs: \"relu\" linear { out_channels: 258 } }"
                          "nodes { name: \"next\" inputs: \"wider\" rotary { base: 10 } }")(model);
                      model.weights["wider.weight"] = FilledTensor({258, 4});
                    },
                    {"node \"next\": each of its heads has 258 channels of \"wider\"; at most 256 are possible"}},
        BrokenModel{"ThreeInputs",
                    Rotary("\"wide\", \"positions\", \"positions\"", "base: 10"),
                    {"node \"rotary\": has 3 inputs; it needs 1 to 2"}},
        BrokenModel{"PositionsOfOtherSites",
                    Rotary("\"down\", \"positions\"", "base: 10"),
                    {"node \"rotary\": its positions \"positions\" and its rows \"down\" are not on the same sites"}},
        BrokenModel{"PositionsOfOtherChannels",
                    Rotary("\"wide\", \"relu\"", "base: 10"),
                    {"node \"rotary\": its positions \"relu\" have 4 channels; they need one for each of the 3 axes"}},
        BrokenModel{"RowsOfSamples",
                    [](TestModel& model) {
                      Tokens(1, 12, {1, 12})(model);
                      Append("nodes { name: \"next\" inputs: \"tokens\" rotary { base: 10 } }")(model);
                    },
                    {"node \"next\": its input \"tokens\" has one row per sample; it needs sites"}},
        BrokenModel{"OfLabels",
                    Append("nodes { name: \"next\" inputs: \"best\" rotary { base: 10 } }"),
                    {"node \"next\": its input \"best\" computes labels; only voxel_to_point reads those"}}),
    CaseName);

}  // namespace
}  // namespace voxserve::broken_attention_test
