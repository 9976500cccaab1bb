// Tests which clouds and sweeps a network can read. serving/streams/sweeps_test.cc and golden_test.cc test the values.

#include "engine/executor/point_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <string_view>
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

TEST(CheckInputTest, ChecksTheFieldsThatTheModelReads) {
  PointCloudLayout layout = {.num_points = 1, .point_step = 16, .fields = {}};
  layout.fields = {{.name = "x", .offset = 0},
                   {.name = "Y", .offset = 4},
                   {.name = "z", .offset = 8},
                   {.name = "xyz", .offset = 0, .count = 3},
                   {.name = "time", .offset = 8, .type = static_cast<PointFieldType>(10)}};
  const InferTask input = {.cloud = *PointCloud::Create(layout, std::string(16, '\0'))};
  EXPECT_TRUE(CheckInput(Op({"x", "y", "z"}, {{.name = "z"}}), input).ok());
  EXPECT_THAT(std::string(CheckInput(Op({"x", "y", "z"}, {{.name = "xyz"}}), input).message()),
              HasSubstr("overlaps field"));
  const absl::Status status = CheckInput(Op({"x", "y", "z"}, {{.name = "time", .default_value = 0.0f}}), input);
  EXPECT_EQ(ReasonOf(status), error_reason::kBadLayout);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the model reads field \"time\", whose type 10"));
}

TEST(CheckInputTest, RefusesCoordinatesThatFloat32Rounds) {
  const auto status_of = [](const std::vector<double>& y, float voxel_size, double scale = 1) {
    PointCloudLayout layout = {.num_points = y.size(), .point_step = 8, .fields = {}};
    layout.fields = {{.name = "y", .type = PointFieldType::kFloat64, .scale = scale}};
    VoxelizeOp op = Op({"y"}, {{.name = "y"}});
    op.voxel_size = {voxel_size, 1, 1, 1};
    const std::string_view bytes(reinterpret_cast<const char*>(y.data()), y.size() * sizeof(double));
    return CheckInput(op, {.cloud = *PointCloud::Create(layout, bytes)});
  };
  const std::vector<double> map(1000, 5'000'000.25);  // float32 has steps of 0.5 there
  const absl::Status status = status_of(map, 0.05f);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(status), error_reason::kCoordinateLimits);
  EXPECT_THAT(std::string(status.message()), HasSubstr("values of y lie about 5e+06 m from 0"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("rounds them to 0.5 m; subtract an origin"));
  EXPECT_TRUE(status_of(map, 2).ok());
  EXPECT_TRUE(status_of(map, 0.05f, 1e-3).ok()) << "millimetres";
  EXPECT_TRUE(status_of({}, 0.05f).ok());
  std::vector<double> scan(1000, 50);
  for (size_t i = 0; i < 400; ++i) scan[i] = i % 2 == 0 ? 1e30 : std::nan("");  // rays without a return
  EXPECT_TRUE(status_of(scan, 0.05f).ok());
  EXPECT_TRUE(status_of(std::vector<double>(3, HUGE_VAL), 0.05f).ok());
}

}  // namespace
}  // namespace voxserve::point_reader_test
