#include "engine/serving/admission/model_version_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"

namespace voxserve {
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

}  // namespace
}  // namespace voxserve
