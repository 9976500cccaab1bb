// Tests samples of farthest points, for which a request or a network asks. The selected points are compared with the
// serial algorithm, and the network's answer with its answer to a cloud of the selected points alone.

#include "engine/executor/point_sample.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error_reason.h"
#include "engine/executor/executor.h"
#include "tests/engine/program_fixture.h"
#include "tests/kernels/points/farthest/farthest_point_testing.h"
#include "tests/support/minkunet.h"

namespace voxserve::point_sample_test {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int kNumClasses = 5;

using Rows = std::vector<float>;  // x, y, z, intensity

PointCloud Cloud(const Rows& rows) {
  return *PointCloud::FromFloats({"x", "y", "z", "intensity"}, rows.data(), rows.size() / 4);
}

// Returns coordinates in quarters of a metre, so that many distances are equal and points coincide. Every 17th point,
// from the first on, has NaN in one of its columns.
Rows RandomRows(int64_t num_points, uint32_t seed) {
  std::mt19937 random(seed);
  Rows rows;
  for (int64_t i = 0; i < num_points; ++i) {
    for (int column = 0; column < 3; ++column) rows.push_back(0.25f * static_cast<float>(random() % 60));
    rows.push_back(static_cast<float>(random() % 100) / 100);
    if (i % 17 == 0) rows[rows.size() - 1 - random() % 4] = kNan;
  }
  return rows;
}

bool IsValid(const Rows& rows, size_t point) {
  return std::all_of(rows.begin() + 4 * static_cast<int64_t>(point), rows.begin() + 4 * static_cast<int64_t>(point + 1),
                     [](float value) { return std::isfinite(value); });
}

int64_t NumValid(const Rows& rows) {
  int64_t count = 0;
  for (size_t i = 0; i < rows.size() / 4; ++i) count += IsValid(rows, i) ? 1 : 0;
  return count;
}

std::vector<int32_t> SelectSerially(const Rows& rows, const FarthestPoints& sample) {
  const auto num_points = static_cast<int64_t>(rows.size() / 4);
  kernels::fixtures::PointClouds clouds{.pitch = 4};
  clouds.Add(rows, static_cast<int64_t>(sample.num_points));
  clouds.starts = {sample.seed ? kernels::FarthestPointStart(*sample.seed, num_points)
                               : static_cast<int64_t>(sample.start_index)};
  for (size_t i = 0; i < rows.size() / 4; ++i) clouds.is_valid.push_back(IsValid(rows, i) ? 1 : 0);
  return kernels::fixtures::SelectSerially(clouds).selected;
}

// Returns the rows of these points, in the cloud's order, each once.
Rows Picked(const Rows& rows, const std::set<int32_t>& points) {
  Rows picked;
  for (const int32_t point : points)
    picked.insert(picked.end(), rows.begin() + 4 * point, rows.begin() + 4 * point + 4);
  return picked;
}

class PointSampleTest : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    if (runner_ == nullptr) return;
    CompileModel(support::MinkUNet({.width = 0.25, .num_classes = kNumClasses, .voxel_size_m = 0.5f}));
  }

  void CompileModel(const support::TestModel& model) {
    const auto graph = support::LoadNetwork(model);
    ASSERT_TRUE(graph.ok()) << graph.status();
    Compile(*graph);
  }

  BatchReport Run(const std::vector<InferTask>& inputs) {
    BatchReport output = runner_->Run(program_, inputs);
    EXPECT_TRUE(output.status.ok()) << output.status;
    if (!output.status.ok()) output.samples.resize(inputs.size());
    return output;
  }

  InferResult RunOne(const PointCloud& cloud, std::optional<FarthestPoints> sample = std::nullopt) {
    InferResult output = std::move(Run({{.cloud = cloud, .return_scores = true, .sample = sample}}).samples[0]);
    EXPECT_TRUE(output.status.ok()) << output.status;
    return output;
  }

  static void ExpectEqual(const InferResult& output, const InferResult& expected) {
    EXPECT_EQ(output.labels(), expected.labels());
    EXPECT_EQ(output.sampled_points, expected.sampled_points);
    ASSERT_EQ(output.scores().size(), expected.scores().size());
    for (size_t i = 0; i < expected.scores().size(); ++i)
      ASSERT_NEAR(output.scores()[i], expected.scores()[i], 1e-3f) << i;
    EXPECT_EQ(output.counts.used, expected.counts.used);
    EXPECT_EQ(output.counts.invalid, expected.counts.invalid);
    EXPECT_EQ(output.counts.unsampled, expected.counts.unsampled);
    EXPECT_EQ(output.counts.voxels, expected.counts.voxels);
  }

  // Expects that the network saw only these points of the cloud.
  void ExpectSawAlone(const InferResult& output, const Rows& rows, const std::set<int32_t>& points) {
    const InferResult alone = RunOne(Cloud(Picked(rows, points)));
    const auto num_points = rows.size() / 4;
    ASSERT_EQ(output.labels().size(), num_points);
    ASSERT_EQ(output.scores().size(), num_points * kNumClasses);
    size_t row = 0;
    for (size_t i = 0; i < num_points; ++i) {
      const bool is_seen = points.count(static_cast<int32_t>(i)) > 0;
      EXPECT_EQ(output.labels()[i], is_seen ? alone.labels()[row] : 255) << i;
      for (size_t c = 0; c < kNumClasses; ++c) {
        ASSERT_NEAR(output.scores()[i * kNumClasses + c], is_seen ? alone.scores()[row * kNumClasses + c] : 0, 1e-3f)
            << i;
      }
      row += is_seen ? 1 : 0;
    }
    const int64_t num_valid = NumValid(rows);
    EXPECT_EQ(output.counts.used, static_cast<int64_t>(points.size()));
    EXPECT_EQ(output.counts.invalid, static_cast<int64_t>(num_points) - num_valid);
    EXPECT_EQ(output.counts.unsampled, num_valid - static_cast<int64_t>(points.size()));
    EXPECT_EQ(output.counts.voxels, alone.counts.voxels);
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, PointSampleTest, support::AllDevices(), support::DeviceName);

TEST_P(PointSampleTest, ReturnsTheSerialAlgorithmsPointsAndLabelsAll) {
  const Rows rows = RandomRows(900, 1);
  const PointCloud cloud = Cloud(rows);
  const InferResult plain = RunOne(cloud);
  EXPECT_THAT(plain.sampled_points, IsEmpty());
  const auto num_valid = static_cast<uint64_t>(NumValid(rows));
  for (const FarthestPoints& sample :
       {FarthestPoints{.num_points = 1}, FarthestPoints{.num_points = 64}, FarthestPoints{.num_points = 64, .seed = 7},
        FarthestPoints{.num_points = 100, .start_index = 899}, FarthestPoints{.num_points = num_valid}}) {
    InferResult sampled = RunOne(cloud, sample);
    EXPECT_EQ(sampled.sampled_points, SelectSerially(rows, sample)) << sample.num_points;
    sampled.sampled_points.clear();
    ExpectEqual(sampled, plain);
  }
}

TEST_P(PointSampleTest, NetworkSeesTheSelectedPointsAlone) {
  const Rows rows = RandomRows(900, 2);
  const FarthestPoints sample{.num_points = 120, .seed = 3, .restricts_network = true};
  const InferResult output = RunOne(Cloud(rows), sample);
  const std::vector<int32_t> selected = SelectSerially(rows, sample);
  EXPECT_EQ(output.sampled_points, selected);
  ExpectSawAlone(output, rows, {selected.begin(), selected.end()});
}

TEST_P(PointSampleTest, FewDistinctPointsRepeatTheFirst) {
  Rows rows;
  for (int i = 0; i < 5; ++i) rows.insert(rows.end(), {1, 2, 3, 0.5f});
  const InferResult output =
      RunOne(Cloud(rows), FarthestPoints{.num_points = 4, .start_index = 2, .restricts_network = true});
  EXPECT_THAT(output.sampled_points, ElementsAre(2, 0, 0, 0));
  EXPECT_EQ(output.counts.used, 2);
  EXPECT_EQ(output.counts.unsampled, 3);
}

TEST_P(PointSampleTest, SampleDoesNotDependOnItsBatchMates) {
  std::vector<PointCloud> clouds;
  std::vector<InferTask> inputs;
  const std::vector<std::optional<FarthestPoints>> samples = {
      FarthestPoints{.num_points = 50, .restricts_network = true}, std::nullopt,
      FarthestPoints{.num_points = 33, .seed = 5},
      FarthestPoints{.num_points = 200, .start_index = 4, .restricts_network = true}, std::nullopt};
  for (size_t i = 0; i < samples.size(); ++i) {
    clouds.push_back(Cloud(RandomRows(400 + 37 * static_cast<int64_t>(i), 10 + static_cast<uint32_t>(i))));
  }
  clouds.push_back(Cloud({}));
  for (size_t i = 0; i < clouds.size(); ++i) {
    inputs.push_back(
        {.cloud = clouds[i], .return_scores = true, .sample = i < samples.size() ? samples[i] : std::nullopt});
  }
  const BatchReport batch = Run(inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(batch.samples[i].status.ok()) << batch.samples[i].status;
    ExpectEqual(batch.samples[i], RunOne(clouds[i], inputs[i].sample));
  }
}

TEST_P(PointSampleTest, ASampleHasALimitWhateverTheCloud) {
  const PointCloud cloud = Cloud(RandomRows(65'537 + 100, 6));
  const BatchReport batch = Run({{.cloud = cloud, .sample = FarthestPoints{.num_points = 65'537}}});
  EXPECT_EQ(batch.samples[0].status.message(), "sample.num_points is 65537; at most 65536 are possible");
  EXPECT_EQ(ReasonOf(batch.samples[0].status), error_reason::kBadSample);
}

TEST_P(PointSampleTest, SampleThatAsksTooMuchFailsAlone) {
  const Rows rows = RandomRows(170, 4);  // of which 160 are valid
  const PointCloud cloud = Cloud(rows), good = Cloud(RandomRows(200, 5));
  const InferResult alone = RunOne(good, FarthestPoints{.num_points = 20});
  for (const bool restricts_network : {false, true}) {
    const FarthestPoints too_many{.num_points = 161, .restricts_network = restricts_network};
    const BatchReport batch =
        Run({{.cloud = good, .return_scores = true, .sample = FarthestPoints{.num_points = 20}},
             {.cloud = cloud, .return_scores = true, .sample = too_many},
             {.cloud = cloud, .return_scores = true, .sample = FarthestPoints{.num_points = 171}},
             {.cloud = cloud, .return_scores = true, .sample = FarthestPoints{.num_points = 160}}});
    for (const size_t refused : {1u, 2u}) {
      EXPECT_EQ(batch.samples[refused].status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(ReasonOf(batch.samples[refused].status), error_reason::kBadSample);
      EXPECT_THAT(batch.samples[refused].labels(), IsEmpty());
      EXPECT_THAT(batch.samples[refused].sampled_points, IsEmpty());
    }
    EXPECT_EQ(batch.samples[1].status.message(), "sample.num_points is 161; the cloud has 160 valid points of 170");
    EXPECT_EQ(batch.samples[2].status.message(), "sample.num_points is 171; the cloud has 170 points");
    ExpectEqual(batch.samples[0], alone);
    ASSERT_TRUE(batch.samples[3].status.ok()) << batch.samples[3].status;
    EXPECT_EQ(batch.samples[3].sampled_points.size(), 160u);
  }
}

TEST_P(PointSampleTest, StageRunsWhereASampleIsTaken) {
  const PointCloud cloud = Cloud(RandomRows(100, 6));
  const auto is_sample = Field(&StageTime::stage, Stage::kSample);
  EXPECT_THAT(Run({{.cloud = cloud, .sample = FarthestPoints{.num_points = 9}}}).stages, Contains(is_sample));
  EXPECT_THAT(Run({{.cloud = cloud}}).stages, Each(Not(is_sample)));
}

// Returns MinkUNet, with a node "sample" in front of it.
support::TestModel Sampling(const std::string& parameters) {
  support::TestModel model = support::MinkUNet({.width = 0.25, .num_classes = kNumClasses, .voxel_size_m = 0.5f});
  const std::string voxels = "voxelize {";
  const size_t at = model.graph.find(voxels);
  model.graph.insert(at, "inputs: \"sample\" ");
  model.graph += "nodes { name: \"sample\" farthest_point_sample { " + parameters + " } }\n";
  return model;
}

TEST_P(PointSampleTest, NetworkTakesASampleOfItsOwn) {
  const Rows rows = RandomRows(900, 8), few = RandomRows(60, 9), fewer_valid = RandomRows(102, 10);
  CompileModel(Sampling("num_points: 100 start_index: 101"));
  const PointCloud clouds[] = {Cloud(rows), Cloud(few), Cloud(fewer_valid), Cloud({})};
  std::vector<InferTask> inputs;
  for (const PointCloud& cloud : clouds) inputs.push_back({.cloud = cloud, .return_scores = true});
  const BatchReport batch = Run(inputs);
  CompileModel(support::MinkUNet({.width = 0.25, .num_classes = kNumClasses, .voxel_size_m = 0.5f}));

  const std::vector<int32_t> selected = SelectSerially(rows, {.num_points = 100, .start_index = 101});
  ExpectSawAlone(batch.samples[0], rows, {selected.begin(), selected.end()});
  for (const size_t i : {1u, 2u, 3u}) ExpectEqual(batch.samples[i], RunOne(clouds[i]));
  for (const InferResult& sample : batch.samples) {
    EXPECT_TRUE(sample.status.ok()) << sample.status;
    EXPECT_THAT(sample.sampled_points, IsEmpty()) << "nobody asked for them";
  }
}

TEST(CheckSampleTest, WhatCannotBeIsRefusedByName) {
  const PointCloud cloud = Cloud(RandomRows(10, 1));
  VoxelizeOp op;
  op.axes = {"x", "y", "z"};
  op.features = {{.name = "intensity"}};
  VoxelizeOp turned = op, flat = op, with_time = op, sampling = op;
  turned.axes = {"z", "y", "x"};
  flat.axes = {"x", "y"};
  with_time.axes = {"x", "y", "z", "intensity"};
  sampling.sample = FarthestPoints{.num_points = 4};
  const auto check = [&](const VoxelizeOp& of, const FarthestPoints& sample) {
    const absl::Status status = CheckSample(of, {.cloud = cloud, .sample = sample});
    EXPECT_TRUE(status.ok() || (absl::IsInvalidArgument(status) && ReasonOf(status) == error_reason::kBadSample));
    return std::string(status.message());
  };
  EXPECT_EQ(check(op, {.num_points = 10, .start_index = 9}), "");
  EXPECT_EQ(check(with_time, {.num_points = 1}), "");
  EXPECT_EQ(check(op, {.num_points = 1, .start_index = 99, .seed = 1}), "") << "the seed draws the start";
  EXPECT_EQ(check(op, {.num_points = 0}), "sample.num_points is 0; it must be 1 or more");
  EXPECT_EQ(check(op, {.num_points = 11}), "sample.num_points is 11; the cloud has 10 points");
  EXPECT_EQ(check(op, {.num_points = std::numeric_limits<uint64_t>::max()}),
            "sample.num_points is 18446744073709551615; the cloud has 10 points");
  EXPECT_EQ(check(op, {.num_points = 1, .start_index = 10}), "sample.start_index is 10; the cloud has 10 points");
  EXPECT_THAT(check(turned, {.num_points = 1}), HasSubstr("this one's are z, y, x"));
  EXPECT_THAT(check(flat, {.num_points = 1}), HasSubstr("this one's are x, y"));
  EXPECT_EQ(check(sampling, {.num_points = 1}), "the model takes a sample of its own, of 4 farthest points");
}

TEST(CheckSampleTest, SweepsHaveNone) {
  const auto sweep = std::make_shared<const Sweep>(Sweep{.cloud = Cloud(RandomRows(10, 1))});
  const std::vector<PlacedSweep> sweeps = {{.sweep = sweep}, {.sweep = sweep}};
  VoxelizeOp op;
  op.axes = {"x", "y", "z"};
  const InferTask input{.cloud = sweep->cloud, .sweeps = sweeps, .sample = FarthestPoints{.num_points = 1}};
  const absl::Status status = CheckSample(op, input);
  EXPECT_EQ(ReasonOf(status), error_reason::kBadSample);
  EXPECT_THAT(status.message(), HasSubstr("these are 2 sweeps"));
}

}  // namespace
}  // namespace voxserve::point_sample_test
