// Tests the checks of the tensors that a request asks for, by name and by size of the answer.

#include "engine/serving/admission/model_version_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"

namespace voxserve::model_version_info_test {
namespace {

using testing::HasSubstr;

ModelVersionInfo WithTensors(int num_tensors) {
  ModelVersionInfo info;
  info.name = "m";
  for (int i = 0; i < num_tensors; ++i) info.tensors.push_back({.name = absl::StrCat("t", i), .channels = 1});
  return info;
}

TEST(FindOutputsTest, NamesBecomeASet) {
  const ModelVersionInfo info = WithTensors(kMaxTensors);
  EXPECT_EQ(FindOutputs(info, false, {"t0"}).value(), 1u);
  EXPECT_EQ(FindOutputs(info, false, {"t63", "t1", "t63"}).value(), TensorSet{1} << 63 | 2u);
}

TEST(FindOutputsTest, WithoutNamesAllTensorsOfAModelThatHasNothingElse) {
  EXPECT_EQ(FindOutputs(WithTensors(kMaxTensors), false, {}).value(), ~TensorSet{0});
  ModelVersionInfo info = WithTensors(3);
  EXPECT_EQ(FindOutputs(info, false, {}).value(), 7u);
  info.has_labels = true;
  EXPECT_EQ(FindOutputs(info, false, {}).value(), 0u);
  EXPECT_EQ(FindOutputs(info, false, {"t2"}).value(), 4u);
  info.has_labels = false;
  info.has_boxes = true;
  EXPECT_EQ(FindOutputs(info, false, {}).value(), 0u);
  EXPECT_EQ(FindOutputs(WithTensors(0), false, {}).value(), 0u);
}

TEST(FindOutputsTest, WhatAModelHasNotIsRefused) {
  const absl::Status unknown = FindOutputs(WithTensors(2), false, {"t1", "t2"}).status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(unknown), error_reason::kUnsupportedOutput);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("no tensor \"t2\"; it has t0, t1"));
  EXPECT_EQ(ReasonOf(FindOutputs(WithTensors(2), false, {""}).status()), error_reason::kUnsupportedOutput);
  EXPECT_EQ(ReasonOf(FindOutputs(WithTensors(2), true, {"t1"}).status()), error_reason::kUnsupportedOutput);
}

ModelVersionInfo WithEveryKindOfRows() {
  ModelVersionInfo info;
  info.tensors = {{.name = "points", .rows = TensorRows::kPoints, .channels = 3},
                  {.name = "sites", .rows = TensorRows::kSites, .channels = 1000},
                  {.name = "samples", .rows = TensorRows::kSamples, .channels = 7},
                  {.name = "cells", .rows = TensorRows::kCells, .channels = 2, .cells = {5, 11}}};
  return info;
}

InferTask TaskOf(TensorSet tensors, DType type = DType::kFloat32) {
  const std::vector<float> points(10);
  return {.cloud = *PointCloud::FromFloats({"x"}, points.data(), points.size()),
          .tensor_set = tensors,
          .tensor_dtype = type};
}

TEST(CheckAnswerSizeTest, RowsThatAreKnownBeforehandCount) {
  const ModelVersionInfo info = WithEveryKindOfRows();
  const auto least = [&](const InferTask& task) {
    int64_t bytes = 1;
    while (!CheckAnswerSize(info, task, bytes).ok()) ++bytes;
    return bytes;
  };
  EXPECT_EQ(least(TaskOf(0b0001)), 10 * 3 * 4);
  EXPECT_EQ(least(TaskOf(0b0010)), 1) << "sites are not known";
  EXPECT_EQ(least(TaskOf(0b0100)), 7 * 4);
  EXPECT_EQ(least(TaskOf(0b1000)), 5 * 11 * 2 * 4);
  EXPECT_EQ(least(TaskOf(0b1111)), (30 + 7 + 110) * 4);
  EXPECT_EQ(least(TaskOf(0b1111, DType::kFloat16)), (30 + 7 + 110) * 2);
  EXPECT_EQ(least(TaskOf(0)), 1);
}

TEST(CheckAnswerSizeTest, WhatCanNeverBeSentIsTheClientsError) {
  const absl::Status refused = CheckAnswerSize(WithEveryKindOfRows(), TaskOf(0b0001), 119);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(refused), error_reason::kResponseTooLarge);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("at least 120 bytes, more than the limit of 119"));
  EXPECT_TRUE(CheckAnswerSize(WithEveryKindOfRows(), TaskOf(0b0001), 0).ok()) << "there is no limit";
}

TEST(CheckAnswerSizeTest, OnlyTheFirstSweepIsAnswered) {
  InferTask task = TaskOf(0b0001);
  const auto sweep = [](size_t num_points) {
    const std::vector<float> points(num_points);
    auto made = std::make_shared<Sweep>();
    made->cloud = *PointCloud::FromFloats({"x"}, points.data(), points.size());
    return PlacedSweep{.sweep = made};
  };
  task.sweeps = {sweep(2), sweep(1000)};
  EXPECT_TRUE(CheckAnswerSize(WithEveryKindOfRows(), task, 2 * 3 * 4).ok());
  EXPECT_FALSE(CheckAnswerSize(WithEveryKindOfRows(), task, 2 * 3 * 4 - 1).ok());
}

}  // namespace
}  // namespace voxserve::model_version_info_test
