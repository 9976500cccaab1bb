// Tests ModelConfig: the defaults, every field of config.textproto, and the problems that a broken file has.

#include "engine/model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"

namespace voxserve::model_config_test {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

ModelConfig ParseValid(const std::string& text, int num_classes = 3) {
  Problems problems;
  ModelConfig config = ParseModelConfig(text, num_classes, &problems);
  EXPECT_THAT(problems, IsEmpty());
  return config;
}

Problems ProblemsIn(const std::string& text, int num_classes = 3) {
  Problems problems;
  ParseModelConfig(text, num_classes, &problems);
  return problems;
}

TEST(ModelConfigTest, Defaults) {
  const ModelConfig config = ParseValid("", 3);
  ASSERT_EQ(config.classes.size(), 3U);
  EXPECT_EQ(config.classes[2].name, "class 2");
  EXPECT_EQ(config.ignore_label, 255);
  EXPECT_EQ(config.max_points, 2'000'000);
  EXPECT_EQ(config.max_voxels, 0);
  EXPECT_EQ(config.voxel_overflow, ModelConfig::VoxelOverflow::kReject);
  EXPECT_EQ(config.bytes_per_label(), 1);
  EXPECT_EQ(config.batching.max_batch_points, 600'000);
  EXPECT_EQ(config.batching.max_batch_voxels, 0);
  EXPECT_EQ(config.batching.max_batch_requests, 8);
  EXPECT_EQ(config.batching.max_queue_delay, absl::Minutes(1));
  EXPECT_EQ(config.batching.max_queue_requests, 0);
  EXPECT_EQ(config.batching.priority_levels, 1);
  EXPECT_EQ(config.batching.device_weight, 1);
  EXPECT_EQ(config.batching.default_timeout, absl::Minutes(1));
}

TEST(ModelConfigTest, UnknownFieldsAreToldAtOnce) {
  EXPECT_THAT(
      ProblemsIn("max_boxes: 3\nignore_label: 1\nbatching { size: 4 delay { seconds: 1 } }"),
      ElementsAre(HasSubstr("config.textproto:1:10: Message type \"voxserve.model.v1.ModelConfig\" has no field"),
                  HasSubstr("has no field named \"size\""), HasSubstr("has no field named \"delay\"")));
}

TEST(ModelConfigTest, ReadsBatching) {
  const ModelConfig::Batching batching = ParseValid(R"(batching {
                                                         max_batch_points: 1000 max_batch_voxels: 700
                                                         max_batch_requests: 64
                                                         max_queue_delay_ms: 250 max_queue_requests: 17
                                                         priority_levels: 16 default_timeout_ms: 4294967295
                                                         device_weight: 1000
                                                       })",
                                                    3)
                                             .batching;
  EXPECT_EQ(batching.max_batch_points, 1000);
  EXPECT_EQ(batching.max_batch_voxels, 700);
  EXPECT_EQ(batching.max_batch_requests, 64);
  EXPECT_EQ(batching.max_queue_delay, absl::Milliseconds(250));
  EXPECT_EQ(batching.max_queue_requests, 17);
  EXPECT_EQ(batching.priority_levels, 16);
  EXPECT_EQ(batching.device_weight, 1000);
  EXPECT_EQ(batching.default_timeout, absl::Milliseconds(4294967295));
}

TEST(ModelConfigTest, TellsEveryProblemOfBatching) {
  EXPECT_THAT(ProblemsIn("batching { max_batch_points: 3000000000 max_batch_voxels: 2147483648 "
                         "max_batch_requests: 65 priority_levels: 17 }"),
              ElementsAre("config.textproto: batching: max_batch_points is 3000000000; at most 2147483647 is possible",
                          "config.textproto: batching: max_batch_voxels is 2147483648; at most 2147483647 is possible",
                          "config.textproto: batching: max_batch_requests is 65; at most 64 is possible",
                          "config.textproto: batching: priority_levels is 17; at most 16 is possible"));
  EXPECT_THAT(ProblemsIn("batching { device_weight: 1001 }"),
              ElementsAre("config.textproto: batching: device_weight is 1001; at most 1000 is possible"));
  for (const char* weight : {"-1", "0.5", "nan", "inf", "4294967296"}) {
    EXPECT_THAT(ProblemsIn(absl::StrCat("batching { device_weight: ", weight, " }")),
                ElementsAre(HasSubstr("config.textproto:1:")));
  }
  EXPECT_EQ(ParseValid("batching { device_weight: 0 }", 3).batching.device_weight, 1);
  EXPECT_THAT(ProblemsIn("batching { max_batch_requests: -1 }"), ElementsAre(HasSubstr("config.textproto:1:")));
  EXPECT_THAT(ProblemsIn("batching { max_batch_voxels: -1 }"), ElementsAre(HasSubstr("config.textproto:1:")));
}

// A problem must be valid UTF-8. Otherwise a client could not read the answer that lists the problems.
TEST(ModelConfigTest, ABrokenCharacterDoesNotStandInItsProblem) {
  const Problems problems = ProblemsIn("\xfc\x62 ");
  ASSERT_THAT(problems, Not(IsEmpty()));
  EXPECT_THAT(problems, Contains(HasSubstr("Expected identifier, got: ?")));
  EXPECT_THAT(problems, Each(Not(HasSubstr("\xfc"))));
}

TEST(ModelConfigTest, ReadsEveryField) {
  const ModelConfig config = ParseValid(
      R"(classes { id: 1 name: "car" color: "#0a10Ff" } classes { id: 0 color: "#010203" } classes { id: 2 name: "tree" }
         ignore_label: 77 max_points: 1000 max_voxels: 500 voxel_overflow_policy: VOXEL_OVERFLOW_POLICY_NEAREST_FIRST)",
      4);
  EXPECT_EQ(config.classes[0].name, "class 0");
  EXPECT_EQ(config.classes[0].color_rgb, 0x010203U);
  EXPECT_EQ(config.classes[1].name, "car");
  EXPECT_EQ(config.classes[1].color_rgb, 0x0a10ffU);
  EXPECT_EQ(config.classes[2].name, "tree");
  EXPECT_EQ(config.classes[2].color_rgb, ParseValid("", 4).classes[2].color_rgb);
  EXPECT_EQ(config.classes[3].name, "class 3");
  EXPECT_EQ(config.ignore_label, 77);
  EXPECT_EQ(config.max_points, 1000);
  EXPECT_EQ(config.max_voxels, 500);
  EXPECT_EQ(config.voxel_overflow, ModelConfig::VoxelOverflow::kNearestFirst);
  EXPECT_EQ(ParseValid("voxel_overflow_policy: VOXEL_OVERFLOW_POLICY_FIRST_SEEN", 4).voxel_overflow,
            ModelConfig::VoxelOverflow::kFirstSeen);
}

TEST(ModelConfigTest, ReadsWhatEightBitsNeed) {
  const ModelConfig config = ParseValid("precision: PRECISION_INT8 int8 { float_nodes: [\"stem\", \"head\"] }");
  EXPECT_EQ(config.precision, ModelConfig::Precision::kInt8);
  EXPECT_THAT(config.float_nodes, ElementsAre("stem", "head"));
  EXPECT_THAT(ParseValid("precision: PRECISION_INT8").float_nodes, IsEmpty());
}

TEST(ModelConfigTest, LabelsTakeTwoBytesWhereOneIsTooNarrow) {
  EXPECT_EQ(ParseValid("", 255).ignore_label, 255);
  EXPECT_EQ(ParseValid("", 255).bytes_per_label(), 1);
  EXPECT_EQ(ParseValid("", 256).ignore_label, 65535);
  EXPECT_EQ(ParseValid("", 256).bytes_per_label(), 2);
  EXPECT_EQ(ParseValid("ignore_label: 256", 3).bytes_per_label(), 2);
  EXPECT_EQ(ParseValid("", 65535).bytes_per_label(), 2);
}

TEST(ModelConfigTest, GeneratedColoursDiffer) {
  std::set<uint32_t> colors;
  for (const ModelConfig::Class& entry : ParseValid("", 64).classes) colors.insert(entry.color_rgb);
  EXPECT_EQ(colors.size(), 64U);
  // Colours of neighbouring classes must be easy to tell apart.
  const ModelConfig config = ParseValid("", 20);
  for (size_t id = 1; id < config.classes.size(); ++id) {
    int distance = 0;
    for (const int shift : {0, 8, 16}) {
      distance += std::abs(static_cast<int>(config.classes[id].color_rgb >> shift & 0xff) -
                           static_cast<int>(config.classes[id - 1].color_rgb >> shift & 0xff));
    }
    EXPECT_GT(distance, 90) << id;
  }
}

TEST(ModelConfigTest, TellsEveryProblem) {
  EXPECT_THAT(
      ProblemsIn(R"(classes { id: 3 name: "tree" } classes { id: 1 color: "red" } classes { id: 1 color: "#12345g" }
                    ignore_label: 2 max_points: 3000000000 max_voxels: 18446744073709551615 voxel_overflow_policy: 7)"),
      ElementsAre("config.textproto: class 3 (\"tree\") does not exist; the network has 3 classes, 0 to 2",
                  "config.textproto: class 1 has color \"red\"; it must look like \"#1e90ff\"",
                  "config.textproto: class 1 appears twice",
                  "config.textproto: class 1 has color \"#12345g\"; it must look like \"#1e90ff\"",
                  "config.textproto: ignore_label 2 is a class; the network has 3 classes, 0 to 2",
                  "config.textproto: max_points is 3000000000; at most 2147483647 is possible",
                  "config.textproto: max_voxels is 18446744073709551615; at most 2147483647 is possible",
                  "config.textproto: voxel_overflow_policy 7 is unknown"));
  EXPECT_THAT(ProblemsIn("ignore_label: 65536"),
              ElementsAre("config.textproto: ignore_label is 65536; at most 65535 is possible"));
}

TEST(ModelConfigTest, SyntaxErrorsNameTheirPlace) {
  EXPECT_THAT(ProblemsIn("max_points: 5\nmax_voxels: many"), ElementsAre(HasSubstr("config.textproto:2:13: ")));
  EXPECT_THAT(ProblemsIn("max_points: -1"), ElementsAre(HasSubstr("config.textproto:1:")));
}

TEST(ModelConfigTest, OfABrokenNetworkOnlyTheRestIsChecked) {
  EXPECT_THAT(ProblemsIn(R"(classes { id: 7 color: "red" } ignore_label: 0)", kUnknownNumClasses),
              ElementsAre("config.textproto: class 7 has color \"red\"; it must look like \"#1e90ff\""));
}

TEST(ModelConfigTest, ANetworkOfTensorsAloneHasNoClasses) {
  EXPECT_THAT(ProblemsIn(R"(classes { id: 0 name: "tree" } ignore_label: 255)", 0),
              ElementsAre("config.textproto: class 0 (\"tree\") does not exist; the network has no classes",
                          "config.textproto: ignore_label is 255; the network has no classes"));
  EXPECT_THAT(ProblemsIn("max_points: 5", 0), ElementsAre());
}

TEST(VersionPolicyTest, DefaultsToEveryVersion) {
  const VersionPolicy::Choice choice = ParseValid("").version_policy.Choose({1, 2, 9});
  EXPECT_THAT(choice.versions, ElementsAre(1, 2, 9));
  EXPECT_THAT(choice.missing, ElementsAre());
}

TEST(VersionPolicyTest, LatestAreTheHighestNumbers) {
  const VersionPolicy policy = ParseValid("version_policy { latest: 2 }").version_policy;
  EXPECT_THAT(policy.Choose({1, 2, 9}).versions, ElementsAre(2, 9));
  EXPECT_THAT(policy.Choose({4}).versions, ElementsAre(4));
  EXPECT_THAT(policy.Choose({}).versions, ElementsAre());
  const VersionPolicy many = ParseValid("version_policy { latest: 4294967295 }").version_policy;
  EXPECT_THAT(many.Choose({1, 2}).versions, ElementsAre(1, 2));
}

TEST(VersionPolicyTest, SpecificOnesMayBeMissing) {
  const VersionPolicy policy =
      ParseValid("version_policy { specific { versions: 9 versions: 3 versions: 1 } }").version_policy;
  const VersionPolicy::Choice choice = policy.Choose({1, 2, 9});
  EXPECT_THAT(choice.versions, ElementsAre(1, 9));
  EXPECT_THAT(choice.missing, ElementsAre(3));
}

TEST(VersionPolicyTest, TellsEveryProblem) {
  EXPECT_THAT(ProblemsIn("version_policy { latest: 0 }"),
              ElementsAre("config.textproto: version_policy: latest is 0; it must be 1 or more"));
  EXPECT_THAT(ProblemsIn("version_policy { specific {} }"),
              ElementsAre("config.textproto: version_policy: specific names no version"));
  EXPECT_THAT(ProblemsIn("version_policy { specific { versions: [2, 0, -7, 2] } }"),
              ElementsAre("config.textproto: version_policy: version 0 cannot be; versions are 1, 2, 3, ...",
                          "config.textproto: version_policy: version -7 cannot be; versions are 1, 2, 3, ...",
                          "config.textproto: version_policy: version 2 appears twice"));
  EXPECT_THAT(ProblemsIn("version_policy { latest: 1 specific { versions: 2 } }"),
              ElementsAre(HasSubstr("config.textproto:1:")))
      << "one or the other";
}

}  // namespace
}  // namespace voxserve::model_config_test
