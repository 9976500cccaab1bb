// Tests the output tensors of a network against values computed by hand: rows of points, of the sites of two levels, of
// samples, and of an image's cells. Each task gets the tensors that it asks for, with the rows of its own sample.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error_reason.h"
#include "engine/model/model_loader.h"
#include "engine/tensor/float16.h"
#include "tests/engine/program_fixture.h"
#include "tests/support/model_folder.h"

namespace voxserve::tensor_outputs_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kNodes[] = R"(name: "tensors"
nodes {
  name: "voxels"
  voxelize {
    voxel_size: [1, 1, 1]
    rounding: ROUNDING_FLOOR
    origin: ORIGIN_RANGE
    range_min: [-8, -8, -4]
    range_max: [8, 8, 4]
    reduce: REDUCE_FIRST
    features { name: "z" unit: "m" }
    features { name: "f" unit: "1" }
  }
}
nodes { name: "head" inputs: ["voxels"] linear { out_channels: 3 bias: true } }
nodes {
  name: "coarse"
  inputs: ["head"]
  pool { reduce: REDUCE_MAX kind: KIND_STRIDED kernel_size: [2, 2, 2] stride: [2, 2, 2] rule: RULE_FLOOR }
}
nodes { name: "global" inputs: ["head"] global_pool { reduce: REDUCE_SUM } }
nodes { name: "points" inputs: ["head", "voxels"] voxel_to_point {} }
nodes { name: "above" inputs: ["coarse"] to_bev {} }
)";
constexpr char kTensors[] = R"(
outputs { kind: KIND_TENSOR node: "points" name: "of_points" }
outputs { kind: KIND_TENSOR node: "head" name: "of_voxels" }
outputs { kind: KIND_TENSOR node: "coarse" name: "of_coarse" }
outputs { kind: KIND_TENSOR node: "global" name: "of_sample" }
outputs { kind: KIND_TENSOR node: "above" name: "of_cells" }
)";
constexpr char kLabels[] = R"(
nodes { name: "best" inputs: ["head"] argmax {} }
nodes { name: "labels" inputs: ["best", "voxels"] voxel_to_point {} }
outputs { kind: KIND_LABELS node: "labels" }
)";

struct Point {
  float x, y, z, f;
};
using Site = std::array<int32_t, 3>;
using Row = std::array<float, 3>;

// Returns the row of the network's head: {0.5, z, 2 f - 1}.
Row HeadOf(const Point& point) { return {0.5f, point.z, 2 * point.f - 1}; }

Site VoxelOf(const Point& point) {
  return {static_cast<int32_t>(std::floor(point.x)) + 8, static_cast<int32_t>(std::floor(point.y)) + 8,
          static_cast<int32_t>(std::floor(point.z)) + 4};
}

bool IsInRange(const Point& p) { return -8 <= p.x && p.x < 8 && -8 <= p.y && p.y < 8 && -4 <= p.z && p.z < 4; }

PointCloud Cloud(const std::vector<Point>& points) {
  return *PointCloud::FromFloats({"x", "y", "z", "f"}, reinterpret_cast<const float*>(points.data()), points.size());
}

// A voxel has the features of its first point.
std::map<Site, Row> ExpectedVoxels(const std::vector<Point>& points) {
  std::map<Site, Row> rows;
  for (const Point& point : points) {
    if (IsInRange(point)) rows.try_emplace(VoxelOf(point), HeadOf(point));
  }
  return rows;
}

std::map<Site, Row> ExpectedCoarse(const std::vector<Point>& points) {
  std::map<Site, Row> rows;
  for (const auto& [site, row] : ExpectedVoxels(points)) {
    const auto [found, is_new] = rows.try_emplace({site[0] / 2, site[1] / 2, site[2] / 2}, row);
    for (size_t c = 0; c < row.size() && !is_new; ++c) found->second[c] = std::max(found->second[c], row[c]);
  }
  return rows;
}

std::vector<float> ValuesOf(const OutputTensor& tensor) {
  std::vector<float> values;
  for (size_t at = 0; at < tensor.bytes.size(); at += static_cast<size_t>(SizeOf(tensor.dtype))) {
    if (tensor.dtype == DType::kFloat16) {
      uint16_t half = 0;
      std::memcpy(&half, tensor.bytes.data() + at, sizeof(half));
      values.push_back(Float16ToFloat(half));
    } else {
      values.push_back(0);
      std::memcpy(&values.back(), tensor.bytes.data() + at, sizeof(float));
    }
  }
  return values;
}

std::map<Site, Row> BySite(const OutputTensor& tensor) {
  std::vector<Site> sites(tensor.coordinates.size() / sizeof(Site));
  if (!sites.empty()) std::memcpy(sites.data(), tensor.coordinates.data(), tensor.coordinates.size());
  const std::vector<float> values = ValuesOf(tensor);
  EXPECT_EQ(values.size(), 3 * sites.size());
  std::map<Site, Row> rows;
  for (size_t i = 0; i < sites.size(); ++i) {
    EXPECT_TRUE(rows.emplace(sites[i], Row{values[3 * i], values[3 * i + 1], values[3 * i + 2]}).second);
  }
  return rows;
}

std::vector<std::string> NamesOf(const InferResult& result) {
  std::vector<std::string> names;
  for (const OutputTensor& tensor : result.tensors) names.push_back(tensor.info.name);
  return names;
}

const std::vector<Point> kCloud = {{0.5f, 0.5f, 2.5f, 0.25f},  {-3.5f, 0.5f, -1, 1}, {-3.2f, 0.5f, -0.9f, 7},
                                   {-2.5f, 1.5f, -0.5f, 0.5f}, {100, 0, 0, 1},       {7.5f, -7.5f, 3.5f, 2}};
const std::vector<Point> kOther = {{1.5f, 2.5f, -2.5f, 3}, {0.5f, 0.5f, 2.5f, -4}};

class TensorOutputsTest : public ProgramTest {
 protected:
  void Load(const std::string& outputs) {
    support::TestModel model;
    model.graph = std::string(kNodes) + outputs;
    model.weights = {{"head.weight", support::FloatTensor({3, 2}, {0, 0, 1, 0, 0, 2})},
                     {"head.bias", support::FloatTensor({3}, {0.5f, 0, -1})}};
    const support::TemporaryFolder folder;
    model.WriteTo(folder.path());
    const absl::StatusOr<Graph> graph = LoadGraph(folder.path() / "1");
    ASSERT_TRUE(graph.ok()) << graph.status();
    Compile(*graph);
  }
  void SetUp() override {
    ProgramTest::SetUp();
    if (runner_ != nullptr) Load(kTensors);
  }

  // Loads the network on a new runner with a memory budget of this many bytes.
  void LoadWithin(int64_t bytes) {
    ASSERT_NO_FATAL_FAILURE(StartRunner({.device = GetParam()}, std::make_unique<MemoryBudget>(bytes)));
    Load(kTensors);
  }

  // Resolves the names of tensors as admission does.
  std::vector<InferResult> Run(std::vector<InferTask> tasks) {
    for (InferTask& task : tasks) {
      for (const std::string& name : std::exchange(task.tensors, {})) {
        const auto is_it = [&](const TensorInfo& tensor) { return tensor.name == name; };
        const auto it = std::find_if(program_.tensors.begin(), program_.tensors.end(), is_it);
        task.tensor_set = task.tensor_set.value_or(0) | TensorBit(static_cast<int>(it - program_.tensors.begin()));
      }
    }
    BatchReport output = runner_->Run(program_, tasks);
    EXPECT_TRUE(output.status.ok()) << output.status;
    return std::move(output.samples);
  }

  static void ExpectAll(const InferResult& result, const std::vector<Point>& points) {
    ASSERT_THAT(NamesOf(result), ElementsAre("of_points", "of_voxels", "of_coarse", "of_sample", "of_cells"));
    EXPECT_THAT(result.outputs, IsEmpty());
    const std::map<Site, Row> voxels = ExpectedVoxels(points), coarse = ExpectedCoarse(points);
    std::vector<float> by_point;
    for (const Point& point : points) {
      const Row row = IsInRange(point) ? voxels.at(VoxelOf(point)) : Row{0, 0, 0};
      by_point.insert(by_point.end(), row.begin(), row.end());
    }
    EXPECT_EQ(ValuesOf(result.tensors[0]), by_point);
    EXPECT_EQ(BySite(result.tensors[1]), voxels);
    EXPECT_EQ(BySite(result.tensors[2]), coarse);
    Row sum = {0, 0, 0};
    for (const auto& [site, row] : voxels) {
      for (size_t c = 0; c < sum.size(); ++c) sum[c] += row[c];
    }
    const std::vector<float> of_sample = ValuesOf(result.tensors[3]);
    ASSERT_EQ(of_sample.size(), sum.size());
    for (size_t c = 0; c < sum.size(); ++c) EXPECT_NEAR(of_sample[c], sum[c], 1e-5);
    EXPECT_THAT(result.tensors[4].Shape(), ElementsAre(8, 8, 3 * 4));
    const std::vector<float> cells = ValuesOf(result.tensors[4]);
    ASSERT_EQ(cells.size(), size_t{8 * 8 * 3 * 4});
    float total = 0, expected_total = 0;
    for (const float value : cells) total += value;
    for (const auto& [site, row] : coarse) expected_total += row[0] + row[1] + row[2];
    EXPECT_NEAR(total, expected_total, 1e-4);
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, TensorOutputsTest, support::AllDevices(), support::DeviceName);

TEST_P(TensorOutputsTest, RowsOfEveryKindAreThoseOfTheirNodes) {
  const std::vector<InferResult> results = Run({{.cloud = Cloud(kCloud)}});
  ExpectAll(results[0], kCloud);
  EXPECT_THAT(results[0].tensors[1].info.unit, ElementsAre(1, 1, 1));
  EXPECT_THAT(results[0].tensors[2].info.unit, ElementsAre(2, 2, 2));
  EXPECT_THAT(results[0].tensors[0].Shape(), ElementsAre(6, 3));
  EXPECT_THAT(results[0].tensors[3].Shape(), ElementsAre(1, 3));
}

TEST_P(TensorOutputsTest, SamplesOfABatchHaveTheirOwnRows) {
  const std::vector<InferResult> results =
      Run({{.cloud = Cloud(kCloud)}, {.cloud = Cloud({})}, {.cloud = Cloud(kOther)}, {.cloud = Cloud(kCloud)}});
  ExpectAll(results[0], kCloud);
  ExpectAll(results[1], {});
  ExpectAll(results[2], kOther);
  ExpectAll(results[3], kCloud);
}

// The network is small enough to compute each row on its own, so bytes must be equal.
TEST_P(TensorOutputsTest, BatchMatesDoNotChangeATensor) {
  const InferTask task{.cloud = Cloud(kCloud)}, other{.cloud = Cloud(kOther)};
  const std::vector<InferResult> alone = Run({task}), together = Run({other, task});
  for (size_t i = 0; i < alone[0].tensors.size(); ++i) {
    EXPECT_EQ(alone[0].tensors[i].bytes, together[1].tensors[i].bytes) << i;
    EXPECT_EQ(alone[0].tensors[i].coordinates, together[1].tensors[i].coordinates) << i;
  }
}

TEST_P(TensorOutputsTest, CloudsWithoutAVoxelHaveNoSites) {
  for (const std::vector<Point>& points : {std::vector<Point>{}, std::vector<Point>{{99, 0, 0, 1}, {0, 99, 0, 1}}}) {
    const std::vector<InferResult> results = Run({{.cloud = Cloud(points)}});
    ExpectAll(results[0], points);
    EXPECT_THAT(results[0].tensors[1].Shape(), ElementsAre(0, 3));
    EXPECT_THAT(results[0].tensors[2].coordinates, IsEmpty());
  }
}

TEST_P(TensorOutputsTest, EachTaskGetsWhatItNames) {
  const std::vector<InferResult> results =
      Run({{.cloud = Cloud(kCloud), .tensors = {"of_sample", "of_voxels", "of_sample"}},
           {.cloud = Cloud(kOther), .tensors = {"of_coarse"}}});
  EXPECT_THAT(NamesOf(results[0]), ElementsAre("of_voxels", "of_sample"));
  ASSERT_THAT(NamesOf(results[1]), ElementsAre("of_coarse"));
  EXPECT_EQ(BySite(results[0].tensors[0]), ExpectedVoxels(kCloud));
  EXPECT_EQ(BySite(results[1].tensors[0]), ExpectedCoarse(kOther));
}

TEST_P(TensorOutputsTest, BesideLabelsOnlyForThoseWhoAsk) {
  Load(std::string(kLabels) + kTensors);
  const std::vector<InferResult> results =
      Run({{.cloud = Cloud(kCloud)}, {.cloud = Cloud(kCloud), .tensors = {"of_voxels"}}});
  EXPECT_THAT(results[0].tensors, IsEmpty());
  ASSERT_THAT(NamesOf(results[1]), ElementsAre("of_voxels"));
  EXPECT_EQ(BySite(results[1].tensors[0]), ExpectedVoxels(kCloud));
  EXPECT_EQ(results[0].labels(), results[1].labels());
  EXPECT_THAT(results[0].labels(), ElementsAre(1, 2, 2, 0, 255, 1));
}

TEST_P(TensorOutputsTest, Float16IsRoundedAndOverflowsToInfinity) {
  const std::vector<Point> points = {{0.5f, 0.5f, 2.0001f, 40000}, {3, 3, 3, 0}};
  const std::vector<InferResult> results =
      Run({{.cloud = Cloud(points), .tensors = {"of_points"}, .tensor_dtype = DType::kFloat16},
           {.cloud = Cloud(points), .tensors = {"of_points"}}});
  EXPECT_EQ(results[0].tensors[0].dtype, DType::kFloat16);
  EXPECT_THAT(results[0].tensors[0].Shape(), ElementsAre(2, 3));
  EXPECT_THAT(ValuesOf(results[0].tensors[0]),
              ElementsAre(0.5f, 2, std::numeric_limits<float>::infinity(), 0.5f, 3, -1));
  EXPECT_THAT(ValuesOf(results[1].tensors[0]), ElementsAre(0.5f, 2.0001f, 79999, 0.5f, 3, -1));
}

TEST_P(TensorOutputsTest, ValuesThatAreNotFiniteAreGivenAsTheyAre) {
  const std::vector<InferResult> results =
      Run({{.cloud = Cloud({{0.5f, 0.5f, 2, 3e38f}}), .tensors = {"of_points", "of_voxels"}}});
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_THAT(ValuesOf(results[0].tensors[0]), ElementsAre(0.5f, 2, infinity));
  EXPECT_THAT(ValuesOf(results[0].tensors[1]), ElementsAre(0.5f, 2, infinity));
}

TEST_P(TensorOutputsTest, RowsAreReservedInTheBudgetWhileTheResultLives) {
  ASSERT_NO_FATAL_FAILURE(LoadWithin(int64_t{1} << 30));
  for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
    const std::vector<InferResult> results =
        Run({{.cloud = Cloud(kCloud), .tensors = {"of_voxels"}, .tensor_dtype = dtype}});
    const OutputTensor& tensor = results[0].tensors[0];
    ASSERT_NE(results[0].memory, nullptr);
    EXPECT_EQ(results[0].memory->bytes(), static_cast<int64_t>(tensor.bytes.size() + tensor.coordinates.size()));
  }
}

// On a GPU, the budget has too little memory for the answer's page-locked memory; on a CPU, for the computation.
TEST_P(TensorOutputsTest, ABatchWithoutRoomInTheBudgetIsRefused) {
  ASSERT_NO_FATAL_FAILURE(LoadWithin(int64_t{1} << 19));
  const InferTask task{.cloud = Cloud(kCloud)};
  const BatchReport output = runner_->Run(program_, {task});
  EXPECT_TRUE(IsOutOfMemory(output.status)) << output.status;
  EXPECT_TRUE(output.host_is_full);
  EXPECT_EQ(budget_->held(), 0);
}

}  // namespace
}  // namespace voxserve::tensor_outputs_test
