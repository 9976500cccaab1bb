// Tests how the answers of two versions are compared.

#include "deploy/calibrate/agreement.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "deploy/calibrate/report.h"
#include "kernels/boxes/box_rows.h"

namespace voxserve::calibrate::agreement_test {
namespace {

template <typename T>
NamedOutput Output(std::string_view name, DType dtype, int64_t columns, const std::vector<T>& values) {
  return {.name = std::string(name),
          .dtype = dtype,
          .columns = columns,
          .bytes = std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T))};
}

InferResult Labels(const std::vector<uint8_t>& labels, const std::vector<float>& scores = {}) {
  InferResult result;
  result.outputs.push_back(Output(NamedOutput::kLabels, DType::kUint8, 1, labels));
  if (!scores.empty()) result.outputs.push_back(Output(NamedOutput::kScores, DType::kFloat32, 2, scores));
  return result;
}

struct BoxAt {
  float x, score;
  float class_id = 0;
};
InferResult Boxes(const std::vector<BoxAt>& boxes) {
  std::vector<float> rows;
  for (const BoxAt& box : boxes) {
    std::array<float, kernels::kBoxColumns> row = {};
    row[kernels::kBoxX] = box.x;
    row[kernels::kBoxScore] = box.score;
    row[kernels::kBoxClass] = box.class_id;
    rows.insert(rows.end(), row.begin(), row.end());
  }
  InferResult result;
  result.outputs.push_back(Output(NamedOutput::kBoxes, DType::kFloat32, kernels::kBoxColumns, rows));
  return result;
}

InferResult Rows(int channels, const std::vector<float>& values, const std::string& coordinates = "") {
  InferResult result;
  OutputTensor tensor;
  tensor.info.channels = channels;
  tensor.bytes.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  tensor.coordinates = coordinates;
  result.tensors.push_back(tensor);
  return result;
}

TEST(AgreementTest, CountsEqualLabelsOfPointsThatHaveAClass) {
  Agreement agreement;
  agreement.Add(Labels({0, 1, 2, 255, 3}), Labels({0, 1, 1, 255, 3}));
  EXPECT_EQ(agreement.labels().total, 4);
  EXPECT_DOUBLE_EQ(agreement.share(), 0.75);
  agreement.Add(Labels({1, 1, 1, 1}), Labels({1, 1, 1, 1}));
  EXPECT_DOUBLE_EQ(agreement.share(), 7.0 / 8);
  EXPECT_DOUBLE_EQ(agreement.error(), 1.0 / 8);
}

TEST(AgreementTest, LabelsOfTwoBytesAreComparedWhole) {
  InferResult a, b;
  a.ignore_label = 65535;
  a.outputs.push_back(Output<uint16_t>(NamedOutput::kLabels, DType::kUint16, 1, {1, 257, 65535, 300}));
  b.outputs.push_back(Output<uint16_t>(NamedOutput::kLabels, DType::kUint16, 1, {257, 257, 65535, 300}));
  Agreement agreement;
  agreement.Add(a, b);
  EXPECT_EQ(agreement.labels().total, 3);
  EXPECT_DOUBLE_EQ(agreement.share(), 2.0 / 3);
}

TEST(AgreementTest, TheErrorIsThatOfTheScores) {
  Agreement agreement;
  agreement.Add(Labels({0, 0}, {1, 2, 3, 4}), Labels({0, 0}, {1.5f, 2, 2, 4}));
  EXPECT_DOUBLE_EQ(agreement.error(), 1.5 / 4);
  EXPECT_DOUBLE_EQ(agreement.share(), 1);
}

TEST(AgreementTest, BoxesNeedPlaceClassAndScore) {
  const auto share_of = [](const BoxAt& found) {
    Agreement agreement(/*least_score=*/0.1);
    agreement.Add(Boxes({{10, 0.8f}}), Boxes({found}));
    return agreement.share();
  };
  EXPECT_EQ(share_of({10, 0.8f}), 1);
  EXPECT_EQ(share_of({10.49f, 0.785f}), 1);
  EXPECT_EQ(share_of({10.51f, 0.8f}), 0);
  EXPECT_EQ(share_of({10, 0.77f}), 0);
  EXPECT_EQ(share_of({10, 0.8f, 1}), 0);
}

TEST(AgreementTest, EachBoxHasOnePartner) {
  Agreement agreement(0.1);
  agreement.Add(Boxes({{0, 0.9f}, {0.1f, 0.9f}}), Boxes({{0.05f, 0.9f}}));
  EXPECT_EQ(agreement.boxes().total, 3);
  EXPECT_DOUBLE_EQ(agreement.share(), 2.0 / 3);
  Agreement near(0.1);
  near.Add(Boxes({{0, 0.9f}, {0.3f, 0.9f}}), Boxes({{0.31f, 0.9f}, {0.01f, 0.9f}}));
  EXPECT_EQ(near.share(), 1);
}

TEST(AgreementTest, BoxesJustAboveTheLeastScoreMayLackAPartner) {
  Agreement agreement(0.2);
  agreement.Add(Boxes({{0, 0.9f}, {5, 0.215f}}), Boxes({{0, 0.9f}, {9, 0.21f}}));
  EXPECT_EQ(agreement.share(), 1);
  agreement.Add(Boxes({{5, 0.23f}}), Boxes({}));
  EXPECT_DOUBLE_EQ(agreement.share(), 2.0 / 3);
}

TEST(AgreementTest, TensorsAreComparedByTheDirectionOfTheirRows) {
  Agreement agreement;
  agreement.Add(Rows(2, {1, 0, 0, 2, 0, 0}), Rows(2, {3, 0, 2, 0, 0, 0}));
  EXPECT_EQ(agreement.rows().total, 3);
  EXPECT_DOUBLE_EQ(agreement.share(), 2.0 / 3);
  Agreement other_sites;
  other_sites.Add(Rows(1, {1, 1}, "ab"), Rows(1, {1, 1}, "ac"));
  EXPECT_EQ(other_sites.share(), 0);
}

TEST(AgreementTest, RowsWithoutAFiniteCosineAgreeOnlyIfTheyAreTheSame) {
  const float nan = std::nanf(""), infinity = HUGE_VALF;
  const auto share_of = [](const std::vector<float>& expected, const std::vector<float>& found) {
    Agreement agreement;
    agreement.Add(Rows(2, expected), Rows(2, found));
    return agreement.share();
  };
  EXPECT_EQ(share_of({nan, 1}, {nan, 1}), 1);
  EXPECT_EQ(share_of({infinity, 1}, {infinity, 1}), 1);
  EXPECT_EQ(share_of({1, 1}, {nan, 1}), 0);
  EXPECT_EQ(share_of({nan, 1}, {1, 1}), 0);
  EXPECT_EQ(share_of({infinity, 1}, {1, 1}), 0);
  EXPECT_EQ(share_of({nan, 1, 1, 2}, {1, 1, 1, 2}), 0.5);
}

TEST(AgreementTest, AScoreThatIsFiniteInOneAnswerOnlyIsAnInfiniteError) {
  const float nan = std::nanf("");
  const auto error_of = [](float expected, float found) {
    Agreement agreement;
    agreement.Add(Labels({0}, {1, expected}), Labels({0}, {1, found}));
    return agreement.error();
  };
  EXPECT_EQ(error_of(nan, nan), 0);
  EXPECT_EQ(error_of(2, nan), HUGE_VAL);
  EXPECT_EQ(error_of(HUGE_VALF, HUGE_VALF), 0);
}

TEST(AgreementTest, TensorsOfAModelWithLabelsOrBoxesAreNotCompared) {
  for (const InferResult& others : {Labels({255, 255}), Boxes({})}) {
    InferResult expected = others, found = others;
    expected.tensors = Rows(1, {1, 1}).tensors;
    found.tensors = Rows(1, {1, -1}).tensors;
    Agreement agreement;
    agreement.Add(expected, found);  // nothing has been counted yet
    EXPECT_TRUE(agreement.empty());
  }
}

TEST(AgreementTest, EachPartIsPrintedWithItsShare) {
  Agreement agreement;
  InferResult expected = Labels({0, 1, 2, 3}), found = Labels({0, 1, 2, 2});
  expected.outputs.push_back(Boxes({{0, 0.9f}, {5, 0.9f}}).outputs[0]);
  found.outputs.push_back(Boxes({{0, 0.9f}}).outputs[0]);
  agreement.Add(expected, found);
  EXPECT_EQ(FormatAgreement(agreement, 1), "75.000% of 4 labels and 66.667% of 3 boxes in 1 scan");
  Agreement rows;
  rows.Add(Rows(1, {1, 1}), Rows(1, {1, 1}));
  EXPECT_EQ(FormatAgreement(rows, 2), "100.000% of 2 rows in 2 scans");
}

TEST(AgreementTest, NothingAgreesWithNothing) {
  Agreement agreement;
  EXPECT_TRUE(agreement.empty());
  EXPECT_EQ(agreement.share(), 1);
  agreement.Add(Boxes({}), Boxes({}));
  EXPECT_EQ(agreement.share(), 1);
  EXPECT_EQ(agreement.error(), 0);
}

TEST(AgreementTest, TheLeastScoreIsTheDecoders) {
  Graph graph;
  EXPECT_EQ(LeastBoxScore(graph), 0);
  CenterHeadDecodeOp center;
  center.head.score_threshold = 0.3f;
  AnchorHeadDecodeOp anchors;
  anchors.head.score_threshold = 0.1f;
  graph.nodes.push_back({.name = "center", .op = center});
  graph.nodes.push_back({.name = "anchors", .op = anchors});
  EXPECT_FLOAT_EQ(static_cast<float>(LeastBoxScore(graph)), 0.1f);
}

}  // namespace
}  // namespace voxserve::calibrate::agreement_test
