// Tests the functions that compare the result of a plan with the result of the default plan.

#include "engine/tuner/result_guard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/engine/tuner/fake_program.h"
#include "tests/support/named_outputs.h"

namespace voxserve::result_guard_test {
namespace {

class ResultGuardTest : public ::testing::Test {
 protected:
  Program program_ = FakeProgram(/*is_on_cuda=*/true);
};

TEST_F(ResultGuardTest, LabelsAreComparedWithoutScores) {
  program_.has_scores = false;
  InferResult expected, result;
  expected.outputs = {LabelsOf(std::vector<uint8_t>(1000, 3))};
  result = expected;
  std::string& labels = result.outputs[0].bytes;
  for (size_t i = 0; i < 5; ++i) labels[i] = 4;
  EXPECT_EQ(WhyDeviates(program_, expected, result), "");
  labels[5] = 4;
  EXPECT_EQ(WhyDeviates(program_, expected, result), "6 of 1000 labels differ");
  program_.label_dtype = DType::kUint16;
  EXPECT_EQ(WhyDeviates(program_, expected, result), "3 of 500 labels differ");
}

TEST_F(ResultGuardTest, ScoresThatAreNotFiniteDeviate) {
  InferResult expected, result;
  expected.outputs = {ScoresOf({1, 2, INFINITY})};
  result.outputs = {ScoresOf({1, 2, 5})};
  EXPECT_EQ(WhyDeviates(program_, expected, result), "");
  result.outputs = {ScoresOf({NAN, 2, 5})};
  EXPECT_EQ(WhyDeviates(program_, expected, result), "a score is not finite");
  result.outputs = {ScoresOf({NAN, 2})};
  EXPECT_NE(WhyDeviates(program_, expected, result), "");
}

TEST_F(ResultGuardTest, BoxesHaveTheirLikes) {
  program_.has_scores = false;
  program_.has_boxes = true;
  std::vector<Box> expected_boxes;
  for (int i = 0; i < 100; ++i) {
    expected_boxes.push_back({.class_id = i % 3, .score = 0.5f, .x = static_cast<float>(i), .length = 4});
  }
  std::vector<Box> boxes = expected_boxes;
  const auto result_of = [](const std::vector<Box>& of) {
    InferResult result;
    result.outputs = {BoxesOf(of)};
    return result;
  };
  const auto why_deviates = [&] { return WhyDeviates(program_, result_of(expected_boxes), result_of(boxes)); };
  EXPECT_TRUE(HaveSameBytes(result_of(expected_boxes), result_of(boxes)));
  boxes[0].x += 0.1f;  // within rounding
  boxes[1].score += 0.04f;
  EXPECT_FALSE(HaveSameBytes(result_of(expected_boxes), result_of(boxes)));
  EXPECT_EQ(why_deviates(), "");
  for (size_t i = 0; i < 10; ++i) boxes[i].class_id = 7;
  EXPECT_EQ(why_deviates(), "");
  boxes[10].y = 3;
  EXPECT_EQ(why_deviates(), "22 of 200 boxes have no matching box");
  boxes.clear();
  EXPECT_EQ(why_deviates(), "100 of 100 boxes have no matching box");
  expected_boxes.resize(2);  // a few boxes may be at the threshold
  EXPECT_EQ(why_deviates(), "");
}

}  // namespace
}  // namespace voxserve::result_guard_test
