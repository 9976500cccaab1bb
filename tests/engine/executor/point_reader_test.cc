// Tests which clouds and sweeps a network can read. serving/streams/sweeps_test.cc and golden_test.cc test the values.

#include "engine/executor/point_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error_reason.h"

namespace voxserve::point_reader_test {
namespace {

using testing::HasSubstr;

VoxelizeOp Op(std::vector<std::string> axes, std::vector<InputFeature> features) {
  VoxelizeOp op;
  op.axes = std::move(axes);
  op.features = std::move(features);
  return op;
}

PlacedSweep XyziSweep() {
  const float point[] = {1, 2, 3, 0.5f};
  return {.sweep = std::make_shared<const Sweep>(
              Sweep{.cloud = *PointCloud::FromFloats({"x", "y", "z", "intensity"}, point, 1)})};
}

TEST(CheckInputTest, NamesWhatDoesNotFit) {
  const std::vector<PlacedSweep> sweeps = {XyziSweep(), XyziSweep()};
  const VoxelizeOp good = Op({"z", "x", "y"}, {{.name = "x"}, {.name = "intensity"}, {.name = "age"}});
  InferTask input = {.cloud = sweeps[0].sweep->cloud, .sweeps = sweeps, .age_feature = "age"};
  EXPECT_TRUE(CheckInput(good, input).ok()) << CheckInput(good, input);

  input.age_feature = "";
  EXPECT_EQ(ReasonOf(CheckInput(good, input)), error_reason::kMissingField);  // then it is a field of the cloud

  for (const char* const unknown : {"time\n", "x", "ring"}) {
    input.age_feature = unknown;
    const absl::Status status = CheckInput(good, input);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ReasonOf(status), error_reason::kBadSweeps);
    EXPECT_THAT(std::string(status.message()), HasSubstr("it has intensity, age"));
  }
  input.age_feature = "time\n";
  EXPECT_THAT(std::string(CheckInput(good, input).message()), HasSubstr("\"time\\n\""));

  const VoxelizeOp axes_alone = Op({"x", "y", "z"}, {{.name = "z"}});
  EXPECT_THAT(std::string(CheckInput(axes_alone, input).message()), HasSubstr("none but its axes"));
  input.age_feature = "";
  EXPECT_TRUE(CheckInput(axes_alone, input).ok());

  for (const std::vector<std::string>& axes :
       {std::vector<std::string>{"x", "y"}, {"x", "y", "z", "t"}, {"x", "y", "r"}}) {
    const absl::Status status = CheckInput(Op(axes, {{.name = "intensity"}}), input);
    EXPECT_EQ(ReasonOf(status), error_reason::kBadSweeps);
    EXPECT_THAT(std::string(status.message()), HasSubstr("axes are x, y and z; this one's are x, y"));
  }
}

TEST(CheckInputTest, EverySweepNeedsItsFields) {
  const float point[] = {1, 2, 3};
  const PlacedSweep lacking = {
      .sweep = std::make_shared<const Sweep>(Sweep{.cloud = *PointCloud::FromFloats({"x", "y", "z"}, point, 1)})};
  const VoxelizeOp op = Op({"x", "y", "z"}, {{.name = "intensity"}});
  for (const std::vector<PlacedSweep>& sweeps :
       {std::vector<PlacedSweep>{XyziSweep(), lacking}, {lacking, XyziSweep()}}) {
    const absl::Status status = CheckInput(op, {.cloud = sweeps[0].sweep->cloud, .sweeps = sweeps});
    EXPECT_EQ(ReasonOf(status), error_reason::kMissingField);
    EXPECT_THAT(std::string(status.message()), HasSubstr("lacks field intensity"));
  }
}

}  // namespace
}  // namespace voxserve::point_reader_test
