// Tests how an executor runs several sweeps as one cloud, on the CPU and a GPU. The points that it reads are compared
// with those of NumPy (tests/oracles/sweep_merge.py), and the network's answers with the answers for one cloud that was
// merged before.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error_reason.h"
#include "engine/executor/device_points.h"
#include "engine/executor/executor.h"
#include "engine/executor/point_reader.h"
#include "engine/model/digest.h"
#include "engine/serving/streams/sweep_history.h"
#include "tests/engine/program_fixture.h"
#include "tests/support/minkunet.h"
#include "tests/support/npz.h"
#include "tests/support/paths.h"

namespace voxserve::sweeps_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Sweeps = std::vector<PlacedSweep>;
using Arrays = std::map<std::string, support::NpyArray>;

constexpr int64_t kMergedColumns = 5;  // x, y, z, intensity, age

VoxelizeOp Op(std::vector<std::string> axes, std::vector<InputFeature> features) {
  VoxelizeOp op;
  op.axes = std::move(axes);
  op.features = std::move(features);
  return op;
}

// Returns a voxelize node that reads kMergedColumns columns: x, y, z, intensity, age.
VoxelizeOp MergedRows() { return Op({"x", "y", "z"}, {{.name = "intensity"}, {.name = "age"}}); }

struct Matrix {
  std::vector<float> points;  // [num_points, NumPointColumns]
  std::vector<uint8_t> is_valid;
};

class SweepsTest : public ProgramTest {
 protected:
  // Returns the points that the device's executor reads for a task.
  Matrix Read(const VoxelizeOp& op, const InferTask& task) {
    const auto num_points = static_cast<size_t>(task.num_points());
    const auto num_columns = static_cast<size_t>(NumPointColumns(op));
    Matrix matrix{std::vector<float>(num_points * num_columns), std::vector<uint8_t>(num_points)};
    ExecutionContext& context = runner_->context();
    if (GetParam() == support::Device::kCpu) {
      size_t begin = 0;
      for (const CloudPart& part : PartsOf(task)) {
        ReadPoints(op, part, matrix.points.data() + begin * num_columns, matrix.is_valid.data() + begin, *context.pool);
        begin += static_cast<size_t>(part.num_points());
      }
    } else if constexpr (kernels::kHasCuda) {
      context.cuda->batch.Reset();
      DevicePoints points;
      const std::vector<int64_t> point_begin = {0, task.num_points()};
      const absl::Status copied = points.CopyIn(op, {&task}, point_begin, {}, context);
      EXPECT_TRUE(copied.ok()) << copied;
      EXPECT_TRUE(context.cuda->stream.view().Synchronize().ok());
      if (!copied.ok()) return matrix;
      support::CopyFromDevice(GetParam(), matrix.points.data(), points.points(), matrix.points.size() * sizeof(float));
      support::CopyFromDevice(GetParam(), matrix.is_valid.data(), points.is_valid(), num_points);
    }
    return matrix;
  }

  // Compiles a network with features x, y, z, intensity and age.
  void CompileNetwork() {
    const auto graph = support::LoadNetwork(support::MinkUNet(
        {.width = 0.25, .num_classes = 7, .features = {"x", "y", "z", "intensity", "age"}, .voxel_size_m = 0.4f}));
    ASSERT_TRUE(graph.ok()) << graph.status();
    Compile(*graph);
  }

  BatchReport Run(const std::vector<InferTask>& inputs) { return runner_->Run(program_, inputs); }

  InferResult RunOne(const InferTask& input) {
    BatchReport output = Run({input});
    EXPECT_TRUE(output.status.ok()) << output.status;
    if (!output.status.ok()) return {};
    EXPECT_TRUE(output.samples[0].status.ok()) << output.samples[0].status;
    return std::move(output.samples[0]);
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, SweepsTest, support::AllDevices(), support::DeviceName);

InferTask InputOf(const Sweeps& sweeps, bool return_scores = false) {
  return {.cloud = sweeps.front().sweep->cloud, .return_scores = return_scores, .sweeps = sweeps, .age_feature = "age"};
}

// Expects equal bits, except that two NaNs may differ in their payload.
void ExpectSame(float value, float expected, int64_t row, int64_t column) {
  if (std::isnan(expected)) {
    ASSERT_TRUE(std::isnan(value)) << "row " << row << ", column " << column << ": " << value;
  } else {
    ASSERT_EQ(std::memcmp(&value, &expected, sizeof(value)), 0)
        << "row " << row << ", column " << column << ": " << value << ", not " << expected;
  }
}

Arrays LoadArrays(const std::string& name) {
  auto arrays = support::ReadNpz(support::SourceDir() + "/tests/golden/" + name);
  EXPECT_TRUE(arrays.ok()) << arrays.status();
  return arrays.ok() ? *std::move(arrays) : Arrays();
}

// Returns the sweeps that the history gives for the last cloud. The clouds are ordered from the oldest to the newest.
// The golden file has their poses and stamps.
Sweeps Accumulate(const std::vector<PointCloud>& clouds, const Arrays& golden) {
  SweepHistory history({.num_sweeps = static_cast<int>(clouds.size()), .max_age = absl::Minutes(1)});
  const auto* const poses = golden.at("poses").data<double>();
  const auto* const stamps = golden.at("stamps_ns").data<int64_t>();
  Sweeps sweeps;
  for (size_t i = 0; i < clouds.size(); ++i) {
    const double* const p = poses + i * 7;
    const Pose pose = {.x = p[0], .y = p[1], .z = p[2], .qw = p[3], .qx = p[4], .qy = p[5], .qz = p[6]};
    auto added = history.Add(clouds[i], pose, absl::FromUnixNanos(stamps[i]));
    EXPECT_TRUE(added.ok()) << added.status();
    if (added.ok()) sweeps = *std::move(added);
  }
  return sweeps;
}

void ExpectPlacedAs(const Sweeps& sweeps, const Arrays& golden) {
  const auto* const transforms = golden.at("transforms").data<float>();
  const auto* const ages = golden.at("ages").data<float>();
  ASSERT_EQ(static_cast<int64_t>(sweeps.size()), golden.at("ages").num_elements());
  for (size_t i = 0; i < sweeps.size(); ++i) {
    EXPECT_EQ(sweeps[i].age_seconds, ages[i]) << "sweep " << i;
    for (size_t j = 0; j < 12; ++j) {
      EXPECT_EQ(sweeps[i].transform[j], transforms[i * 12 + j]) << "sweep " << i << ", value " << j;
    }
  }
}

std::vector<PointCloud> SmallClouds(const Arrays& golden) {
  std::vector<PointCloud> clouds;
  const float* points = golden.at("points").data<float>();
  for (const int64_t num_points : golden.at("num_points").values<int64_t>()) {
    clouds.push_back(*PointCloud::FromFloats({"x", "y", "z", "intensity"}, points, static_cast<uint64_t>(num_points)));
    points += num_points * 4;
  }
  return clouds;
}

TEST_P(SweepsTest, SmallSweepsAreMergedAsNumPyDoes) {
  const Arrays golden = LoadArrays("sweeps_small.npz");
  ASSERT_FALSE(golden.empty());
  const Sweeps sweeps = Accumulate(SmallClouds(golden), golden);
  ExpectPlacedAs(sweeps, golden);
  const Matrix matrix = Read(MergedRows(), InputOf(sweeps));
  const auto* const merged = golden.at("merged").data<float>();
  ASSERT_EQ(static_cast<int64_t>(matrix.points.size()), golden.at("merged").num_elements());
  int64_t num_invalid = 0;
  for (int64_t row = 0; row < static_cast<int64_t>(matrix.is_valid.size()); ++row) {
    bool is_finite = true;
    for (int64_t c = 0; c < kMergedColumns; ++c) {
      const float expected = merged[row * kMergedColumns + c];
      ExpectSame(matrix.points[static_cast<size_t>(row * kMergedColumns + c)], expected, row, c);
      is_finite = is_finite && std::isfinite(expected);
    }
    EXPECT_EQ(matrix.is_valid[static_cast<size_t>(row)], is_finite ? 1 : 0) << "row " << row;
    num_invalid += is_finite ? 0 : 1;
  }
  EXPECT_EQ(num_invalid, 4);
}

// Tests axes in another order than x, y, z, features that are axes, and features with scales. One of these is the age.
TEST_P(SweepsTest, FeaturesFollowTheMovedAxesWhateverTheirOrder) {
  const Arrays golden = LoadArrays("sweeps_small.npz");
  ASSERT_FALSE(golden.empty());
  const Sweeps sweeps = Accumulate(SmallClouds(golden), golden);
  const auto* const merged = golden.at("merged").data<float>();
  const std::vector<InputFeature> features = {{.name = "x"},
                                              {.name = "age", .scale = 2, .shift = -0.7f},
                                              {.name = "y", .scale = 0.3f, .shift = 0.25f},
                                              {.name = "ring", .default_value = 4.0f},
                                              {.name = "intensity", .scale = 1.0f / 255}};
  for (const std::vector<std::string>& axes :
       {std::vector<std::string>{"x", "y", "z"}, {"z", "y", "x"}, {"y", "z", "x"}}) {
    const VoxelizeOp op = Op(axes, features);
    const Matrix matrix = Read(op, InputOf(sweeps));
    const auto num_columns = static_cast<size_t>(NumPointColumns(op));
    const auto num_rows = static_cast<int64_t>(matrix.is_valid.size());
    for (int64_t row = 0; row < num_rows; ++row) {
      const float* const from = merged + row * kMergedColumns;
      const volatile float age = from[4] * 2, y = from[1] * 0.3f;  // rounds the products before the sum
      std::vector<float> expected;
      for (const std::string& axis : axes) expected.push_back(from[axis[0] - 'x']);
      for (const float value : {from[0], age + -0.7f, y + 0.25f, 4.0f, from[3] * (1.0f / 255)}) {
        expected.push_back(value);
      }
      for (size_t c = 0; c < num_columns; ++c) {
        ExpectSame(matrix.points[static_cast<size_t>(row) * num_columns + c], expected[c], row,
                   static_cast<int64_t>(c));
        if (HasFatalFailure()) return;
      }
    }
  }
}

// The cloud has a field "age". The network reads this field only if the request names no age feature.
TEST_P(SweepsTest, AgeIsTheSweepsWhateverTheCloudSays) {
  const float points[] = {1, 2, 3, 0.5f, 77};
  SweepHistory history({.num_sweeps = 2});
  const PointCloud cloud = *PointCloud::FromFloats({"x", "y", "z", "intensity", "age"}, points, 1);
  ASSERT_TRUE(history.Add(cloud, {}, absl::UnixEpoch()).ok());
  const auto sweeps = history.Add(cloud, {}, absl::UnixEpoch() + absl::Seconds(0.5));
  ASSERT_TRUE(sweeps.ok());
  InferTask input = InputOf(*sweeps);
  const Matrix with_age = Read(MergedRows(), input);
  EXPECT_EQ(with_age.points[4], 0);
  EXPECT_EQ(with_age.points[9], 0.5f);
  input.age_feature = "";
  const Matrix without = Read(MergedRows(), input);
  EXPECT_EQ(without.points[4], 77);
  EXPECT_EQ(without.points[9], 77);
}

TEST_P(SweepsTest, FiveSweepsOfPandaSetAreMergedAsNumPyDoes) {
  const std::string folder = support::SharedData() + "/pandaset-002/";
  if (!std::filesystem::exists(folder + "64.bin")) GTEST_SKIP() << "no " << folder;
  const Arrays golden = LoadArrays("sweeps_pandaset_002.npz");
  ASSERT_FALSE(golden.empty());
  std::vector<PointCloud> clouds;
  for (const char* frame : {"60", "61", "62", "63", "64"}) {
    std::ifstream file(folder + frame + ".bin", std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    PointCloudLayout layout{.num_points = bytes.size() / 20, .point_step = 20};
    for (const char* name : {"x", "y", "z", "intensity", "sensor"}) {
      layout.fields.push_back({.name = name, .offset = static_cast<uint32_t>(layout.fields.size() * 4)});
    }
    auto cloud = PointCloud::Create(std::move(layout), std::move(bytes));
    ASSERT_TRUE(cloud.ok()) << cloud.status();
    clouds.push_back(*std::move(cloud));
  }
  const Sweeps sweeps = Accumulate(clouds, golden);
  ExpectPlacedAs(sweeps, golden);
  const Matrix matrix = Read(MergedRows(), InputOf(sweeps));

  // The golden file has every 101st row, which shows where a difference is, and a digest of all rows, which shows that
  // there is none.
  constexpr int64_t kSampleStep = 101;
  const std::vector<float> sample = golden.at("sample").values<float>();
  const auto num_rows = static_cast<int64_t>(matrix.is_valid.size());
  ASSERT_EQ((num_rows + kSampleStep - 1) / kSampleStep * kMergedColumns, static_cast<int64_t>(sample.size()));
  for (int64_t i = 0; i < static_cast<int64_t>(sample.size()); ++i) {
    const int64_t row = i / kMergedColumns * kSampleStep, column = i % kMergedColumns;
    ExpectSame(matrix.points[static_cast<size_t>(row * kMergedColumns + column)], sample[static_cast<size_t>(i)], row,
               column);
    if (HasFatalFailure()) return;
  }
  std::string expected;
  for (const uint8_t byte : golden.at("sha256").values<uint8_t>()) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", byte);
    expected += digits;
  }
  EXPECT_EQ(Sha256OfParts({{reinterpret_cast<const char*>(matrix.points.data()), matrix.points.size() * 4}}), expected);
}

PointCloud Street(int64_t num_points, uint32_t seed, float far = 12) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> unit(-1, 1);
  std::vector<float> points;
  for (int64_t i = 0; i < num_points; ++i) {
    points.insert(points.end(), {far * unit(random), far * unit(random), 1.5f * unit(random), 0.5f * unit(random)});
  }
  return *PointCloud::FromFloats({"x", "y", "z", "intensity"}, points.data(), static_cast<uint64_t>(num_points));
}

// Returns the sweeps of each frame of a drive.
std::vector<Sweeps> Drive(const std::vector<PointCloud>& clouds, int num_sweeps) {
  SweepHistory history({.num_sweeps = num_sweeps});
  std::vector<Sweeps> frames;
  for (size_t i = 0; i < clouds.size(); ++i) {
    const auto step = static_cast<double>(i);
    const Pose pose = {.x = 1000 + 0.9 * step, .y = -200 + 0.2 * step, .z = 3, .qw = 1, .qz = 0.02 * step};
    auto sweeps = history.Add(clouds[i], pose, absl::UnixEpoch() + absl::Seconds(0.1 * step));
    EXPECT_TRUE(sweeps.ok()) << sweeps.status();
    frames.push_back(*std::move(sweeps));
  }
  return frames;
}

// Returns one cloud with the points of all sweeps and the fields x, y, z, intensity, age. The points are moved here by
// the definition, with float32 rounding after each operation.
PointCloud Merge(const Sweeps& sweeps) {
  std::vector<float> rows;
  for (size_t s = 0; s < sweeps.size(); ++s) {
    const PointCloud& cloud = sweeps[s].sweep->cloud;
    const Transform& m = sweeps[s].transform;
    for (uint64_t i = 0; i < cloud.num_points(); ++i) {
      float point[4];
      std::memcpy(point, cloud.bytes().data() + i * 16, 16);
      float moved[3] = {point[0], point[1], point[2]};
      for (size_t axis = 0; s > 0 && axis < 3; ++axis) {
        const volatile float x = m[axis * 4] * point[0], y = m[axis * 4 + 1] * point[1], z = m[axis * 4 + 2] * point[2];
        const volatile float xy = x + y;
        const volatile float xyz = xy + z;
        moved[axis] = xyz + m[axis * 4 + 3];
      }
      rows.insert(rows.end(), {moved[0], moved[1], moved[2], point[3], sweeps[s].age_seconds});
    }
  }
  return *PointCloud::FromFloats({"x", "y", "z", "intensity", "age"}, rows.data(), rows.size() / kMergedColumns);
}

// Expects that the answers for sweeps are, bit for bit, the first answers for the merged cloud.
void ExpectFirstOf(const InferResult& merged, const Sweeps& sweeps, const InferResult& output) {
  const auto num_answers = static_cast<size_t>(sweeps.front().sweep->cloud.num_points());
  ASSERT_EQ(output.labels().size(), num_answers);
  ASSERT_EQ(output.scores().size(), num_answers * 7);
  EXPECT_TRUE(std::equal(output.labels().begin(), output.labels().end(), merged.labels().begin()));
  EXPECT_EQ(std::memcmp(output.scores().data(), merged.scores().data(), output.scores().size() * sizeof(float)), 0);
  EXPECT_EQ(output.counts.used, merged.counts.used);
  EXPECT_EQ(output.counts.invalid, merged.counts.invalid);
  EXPECT_EQ(output.counts.voxels, merged.counts.voxels);
  EXPECT_EQ(output.counts.used + output.counts.invalid + output.counts.out_of_range + output.counts.dropped,
            static_cast<int64_t>(NumPoints(sweeps)));
}

TEST_P(SweepsTest, AnswersAreThoseToTheMergedCloud) {
  CompileNetwork();
  if (HasFatalFailure()) return;
  std::vector<PointCloud> clouds;
  for (uint32_t i = 0; i < 6; ++i) clouds.push_back(Street(1500 + 137 * i, i));
  for (const Sweeps& sweeps : Drive(clouds, 4)) {
    const PointCloud merged = Merge(sweeps);
    const InferResult expected = RunOne({.cloud = merged, .return_scores = true});
    // A GPU keeps copies of older sweeps. In the second run it finds the copies of the first run.
    for (int time = 0; time < 2; ++time) {
      ExpectFirstOf(expected, sweeps, RunOne(InputOf(sweeps, true)));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(SweepsTest, PointsThatAreNoNumbersStayOutInEverySweep) {
  CompileNetwork();
  if (HasFatalFailure()) return;
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const std::vector<float> points = {1, 2,    0.5f, 0.1f, nan, 2,   0,    0.1f, 1, inf,
                                     0, 0.1f, 2,    2,    0,   nan, 1e9f, 0,    0, 0.3f};
  const PointCloud cloud = *PointCloud::FromFloats({"x", "y", "z", "intensity"}, points.data(), 5);
  const Sweeps sweeps = Drive({cloud, cloud, cloud}, 3).back();
  const InferResult output = RunOne(InputOf(sweeps, true));
  EXPECT_EQ(output.counts.invalid, 9);
  EXPECT_EQ(output.counts.out_of_range, 3);
  EXPECT_EQ(output.counts.used, 3);
  EXPECT_THAT(output.labels(), ElementsAre(::testing::Lt(7), 255, 255, 255, 255));
}

TEST_P(SweepsTest, EmptySweeps) {
  CompileNetwork();
  if (HasFatalFailure()) return;
  const PointCloud street = Street(500, 1), none = Street(0, 1);
  const std::vector<Sweeps> frames = Drive({street, none, PointCloud(), street}, 4);
  const InferResult of_none = RunOne(InputOf(frames[1], true));
  EXPECT_THAT(of_none.labels(), IsEmpty());
  EXPECT_THAT(of_none.scores(), IsEmpty());
  EXPECT_EQ(of_none.counts.used, 500);
  EXPECT_THAT(RunOne(InputOf(frames[2])).labels(), IsEmpty());
  const PointCloud merged = Merge(frames[3]);
  ExpectFirstOf(RunOne({.cloud = merged, .return_scores = true}), frames[3], RunOne(InputOf(frames[3], true)));
  const Sweeps nothing = Drive({none, none}, 2).back();
  EXPECT_THAT(RunOne(InputOf(nothing)).labels(), IsEmpty());
}

// The batch has frames of one stream, which share sweeps, single clouds, frames of streams with other layouts, and bad
// frames.
TEST_P(SweepsTest, BatchesMayMixSweepsAndClouds) {
  CompileNetwork();
  if (HasFatalFailure()) return;
  const std::vector<Sweeps> frames = Drive({Street(900, 1), Street(1100, 2), Street(1000, 3), Street(700, 4)}, 3);
  const PointCloud cloud = Merge({{.sweep = frames[0][0].sweep}});
  const float xyz[] = {1, 2, 3};
  const PointCloud lacking = *PointCloud::FromFloats({"x", "y", "z"}, xyz, 1);
  Sweeps with_a_bad_one = frames[2];
  with_a_bad_one[1].sweep = std::make_shared<const Sweep>(Sweep{.cloud = lacking});
  const std::vector<InferTask> inputs = {InputOf(frames[2], true), {.cloud = cloud, .return_scores = true},
                                         InputOf(with_a_bad_one),  InputOf(frames[3], true),
                                         InputOf(frames[2], true), {.cloud = cloud}};
  const BatchReport batch = Run(inputs);
  ASSERT_TRUE(batch.status.ok()) << batch.status;
  for (size_t i = 0; i < inputs.size(); ++i) {
    SCOPED_TRACE(i);
    const InferResult& output = batch.samples[i];
    if (i == 2) {
      EXPECT_EQ(ReasonOf(output.status), error_reason::kMissingField);
      EXPECT_THAT(std::string(output.status.message()), HasSubstr("lacks field intensity"));
      EXPECT_THAT(output.labels(), IsEmpty());
      continue;
    }
    const InferResult alone = RunOne(inputs[i]);
    ASSERT_EQ(output.labels().size(), alone.labels().size());
    ASSERT_EQ(output.scores().size(), alone.scores().size());
    EXPECT_EQ(output.counts.used, alone.counts.used);
    EXPECT_EQ(output.counts.voxels, alone.counts.voxels);
    for (size_t j = 0; j < alone.scores().size(); ++j) ASSERT_NEAR(output.scores()[j], alone.scores()[j], 1e-3f) << j;
  }
  EXPECT_THAT(batch.samples[5].scores(), IsEmpty());
  EXPECT_EQ(batch.samples[0].labels(), batch.samples[4].labels());
}

TEST_P(SweepsTest, ResultsAreTheSameWithAndWithoutKeptCopies) {
  if (GetParam() == support::Device::kCpu) GTEST_SKIP() << "copies are a GPU's";
  if constexpr (kernels::kHasCuda) {
    CompileNetwork();
    if (HasFatalFailure()) return;
    const std::vector<Sweeps> frames = Drive({Street(3000, 1), Street(2500, 2), Street(2800, 3), Street(2600, 4)}, 3);
    std::vector<InferResult> expected;
    CudaContext& cuda = *runner_->context().cuda;
    DeviceCopies* const copies = std::exchange(cuda.copies, nullptr);
    for (const Sweeps& sweeps : frames) expected.push_back(RunOne(InputOf(sweeps, true)));
    const auto without_room = DeviceCopies::Create(cuda.pool, 0);
    ASSERT_TRUE(without_room.ok()) << without_room.status();
    for (DeviceCopies* const used : {copies, without_room->get(), copies}) {
      cuda.copies = used;
      for (size_t i = 0; i < frames.size(); ++i) {
        const InferResult output = RunOne(InputOf(frames[i], true));
        EXPECT_EQ(output.labels(), expected[i].labels());
        EXPECT_EQ(output.scores(), expected[i].scores());
      }
      EXPECT_EQ(used->allocated_bytes() > 0, used == copies);
      if (used == copies) {
        EXPECT_NE(*used->Find(frames[3][2].sweep, cuda.stream.view()), nullptr);
      }
    }
    EXPECT_TRUE(cuda.stream.view().Synchronize().ok());
    cuda.copies = copies;
    cuda.ReleaseMemory();
    EXPECT_EQ(copies->allocated_bytes(), 0);
    EXPECT_EQ(RunOne(InputOf(frames[3], true)).labels(), expected[3].labels());
  }
}

}  // namespace
}  // namespace voxserve::sweeps_test
