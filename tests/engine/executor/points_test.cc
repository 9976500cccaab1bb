// Tests networks with rows of points and rows of sites against an interpreter of graphs: operators on rows of points,
// and operators between points and the sites of any level.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "tests/engine/executor/program_comparison.h"

namespace voxserve::points_test {
namespace {

using kernels::ActivationFunction;
using kernels::CoordinateRule;
using kernels::PoolReduce;

constexpr PoolReduce kReduces[] = {PoolReduce::kMax, PoolReduce::kAverage, PoolReduce::kSum};
constexpr CoordinateRule kRules[] = {CoordinateRule::kFloor, CoordinateRule::kPadded, CoordinateRule::kExpand};

int CountSteps(const Graph& graph) { return static_cast<int>(Compile(graph, Plan(), {}).steps.size()); }

PointCloud Cloud(const Points& points) {
  return *PointCloud::FromFloats({"x", "y", "z", "f"}, points.values.data(), points.size());
}

// Returns a small SPVCNN: a branch of voxels with one convolution down and one up, and a branch of points. The branches
// exchange features at the stem, at the coarse level and at the end.
Graph SmallSpvcnn(uint32_t seed, CoordinateRule rule = CoordinateRule::kFloor) {
  GraphBuilder b(seed, rule);
  const auto layer = [&](int input, int channels) { return b.Relu(b.Norm(b.Linear(input, channels, true))); };
  const int points = b.PointFeatures();
  const int first = b.PointToVoxel(points, PoolReduce::kAverage);
  const int stem = b.Relu(b.Norm(b.Submanifold(b.Concat({first, 0}), 8, false)));
  const int z0 = b.Sum(b.Devoxelize(stem), layer(points, 8));
  const int x1 = b.PointToVoxel(z0, PoolReduce::kAverage);
  const int down = b.Relu(b.Norm(b.Down(x1, 12)));
  const int z1 = b.Sum(b.Devoxelize(down), layer(z0, 12));
  const int y1 = b.PointToVoxel(z1, PoolReduce::kAverage, down);
  const int up = b.Relu(b.Norm(b.Up(y1, down - 2, 8)));
  const int fine = b.Relu(b.Submanifold(b.Concat({up, stem}), 8, true));
  const int z2 = b.Relu(b.Sum(b.Devoxelize(fine), layer(z1, 8)));
  return b.Finish(b.Linear(z2, 3, true));
}

class PointsTest : public testing::TestWithParam<support::Device> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam()); }
  void Expect(const Graph& graph, uint32_t seed) {
    ExpectEqual(GetParam(), graph, RandomScan(seed));
    ExpectEqual(GetParam(), graph, RandomPoints(seed));
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, PointsTest, support::AllDevices(), support::DeviceName);

TEST_P(PointsTest, NetworkOfPointsAlone) {
  GraphBuilder b(1);
  const int features = b.PointFeatures();
  const int hidden = b.Relu(b.Norm(b.Linear(features, 7, true)));
  const int sum = b.Activation(b.Sum(b.Linear(hidden, 7, false), hidden), ActivationFunction::kSilu);
  const Graph graph = b.Finish(b.Linear(b.Concat({sum, features, hidden}), 3, true));
  // The steps are: point features, two linear layers that write into the concatenation, linear, argmax and the two
  // outputs. The features of voxels are not computed, since no node reads them.
  EXPECT_EQ(CountSteps(graph), 7);
  Expect(graph, 1);
}

// Expects the cloud's features, unchanged, as scores. A point without a voxel gets 0.
TEST_P(PointsTest, FeaturesAsScores) {
  GraphBuilder b(2);
  Expect(b.Finish(b.PointFeatures()), 2);
}

TEST_P(PointsTest, VoxelToPointInTheMiddle) {
  for (const bool has_sum : {false, true}) {
    GraphBuilder b(3);
    const int points = b.VoxelToPoint(b.Submanifold(0, 5, true));
    const int branch = b.Linear(b.PointFeatures(), 5, true);
    const int next = has_sum ? b.Relu(b.Sum(branch, points)) : b.Concat({points, branch, points});
    Expect(b.Finish(b.Linear(next, 3, true)), 3);
  }
}

// Tests networks in which a node is both an output and the input of another node.
TEST_P(PointsTest, OutputsThatTheNetworkReadsOn) {
  GraphBuilder b(4);
  const int stem = b.Submanifold(0, 3, true);
  b.AddScores(stem);
  const int scores = b.num_nodes() - 1;
  b.AddLabels(b.Linear(b.Relu(scores), 3, true));
  Expect(b.FinishOutputs(), 4);

  GraphBuilder other(5);
  const int logits = other.Linear(other.PointFeatures(), 3, true);
  other.AddScores(logits);
  other.AddLabels(other.Relu(logits));  // the only reader of the scores, but it must not overwrite them
  Expect(other.FinishOutputs(), 5);
}

TEST_P(PointsTest, LabelsOfPointsAndScoresOfVoxelsAndTheOtherWayRound) {
  for (const bool labels_of_points : {false, true}) {
    GraphBuilder b(6);
    const int voxels = b.Linear(0, 4, true);
    const int points = b.Linear(b.Concat({b.PointFeatures(), b.VoxelToPoint(voxels)}), 4, true);
    b.AddLabels(labels_of_points ? points : voxels);
    b.AddScores(labels_of_points ? voxels : points);
    Expect(b.FinishOutputs(), 6);
  }
}

TEST_P(PointsTest, DevoxelizeToPointsByEveryRule) {
  uint32_t seed = 10;
  for (const CoordinateRule rule : kRules) {
    for (const bool floors : {false, true}) {
      GraphBuilder b(++seed, rule);
      if (floors) b.Floor();
      const int stem = b.Submanifold(0, 5, true);
      const int down = b.Down(stem, 8);
      Expect(b.Finish(b.Linear(b.Concat({b.Devoxelize(stem), b.Devoxelize(down)}), 3, true)), seed);
    }
  }
}

TEST_P(PointsTest, DevoxelizeToSitesByEveryRule) {
  uint32_t seed = 20;
  for (const CoordinateRule rule : kRules) {
    GraphBuilder b(++seed, rule);
    const int stem = b.Linear(0, 6, true);
    const int down = b.Down(stem, 6);
    const int same = b.Devoxelize(stem, stem);
    const int coarse = b.Devoxelize(b.Submanifold(down, 6, true), down);
    const int fine = b.Relu(b.Sum(b.Devoxelize(coarse, stem), same));
    Expect(b.Finish(b.Linear(fine, 3, true)), seed);
  }
}

// The neighbours and weights of an interpolation are found by one search for all tensors of a level, whether labels or
// scores need the results. Sums and activations take no step of their own.
TEST_P(PointsTest, DevoxelizesOfOneLevelShareTheirSearch) {
  GraphBuilder b(30);
  const int one = b.Linear(0, 4, true), other = b.Submanifold(0, 4, true);
  b.AddScores(b.Devoxelize(one));
  b.AddLabels(b.Relu(b.Sum(b.Devoxelize(other), b.Devoxelize(one))));
  const Graph graph = b.FinishOutputs();
  // The steps are: voxel features, linear, conv, search, three devoxelizations, argmax and the two outputs.
  EXPECT_EQ(CountSteps(graph), 10);
  Expect(graph, 30);
  const Program program = Compile(graph, Plan(), {});
  const auto search = std::find_if(program.steps.begin(), program.steps.end(),
                                   [](const std::unique_ptr<Step>& step) { return step->name == "devoxelize3"; });
  ASSERT_NE(search, program.steps.end());
  EXPECT_TRUE((*search)->is_for_all) << "labels need what the scores asked for first";
  EXPECT_TRUE((*search)->is_for_scores);
}

TEST_P(PointsTest, PointToVoxelByEveryRule) {
  uint32_t seed = 40;
  for (const CoordinateRule rule : kRules) {
    for (const PoolReduce reduce : kReduces) {
      GraphBuilder b(++seed, rule);
      if (seed % 2 == 0) b.Floor();
      const int down = b.Down(b.Linear(0, 4, true), 5);
      const int points = b.Linear(b.PointFeatures(), 8, true);
      const int coarse = b.Concat({b.PointToVoxel(points, reduce, down), down});
      const int up = b.Up(b.Linear(coarse, 5, true), down, 8);
      Expect(b.Finish(b.Linear(b.Sum(up, b.PointToVoxel(points, reduce)), 3, true)), seed);
    }
  }
}

// Pools the sites of a finer level as if they were points. On one level, each site is its own pool.
TEST_P(PointsTest, SitesToCoarserSites) {
  uint32_t seed = 45;
  for (const CoordinateRule rule : kRules) {
    for (const PoolReduce reduce : kReduces) {
      GraphBuilder b(++seed, rule);
      const int fine = b.Linear(0, 8, true);
      const int down = b.Down(fine, 5);
      const int coarse = b.Concat({b.PointToVoxel(fine, reduce, down), down});
      const int up = b.Up(b.Linear(coarse, 5, true), down, 8);
      Expect(b.Finish(b.Linear(b.Sum(up, b.PointToVoxel(fine, reduce)), 3, true)), seed);
    }
  }
}

// If other nodes read the sites of a convolution but not its values, it takes no step and no kernel map.
TEST_P(PointsTest, SitesOfANodeThatIsNotComputed) {
  GraphBuilder b(50);
  const int down = b.Down(0, 5);
  const int coarse = b.PointToVoxel(b.PointFeatures(), PoolReduce::kMax, down);
  const int points = b.Devoxelize(b.Devoxelize(coarse, b.Concat({0, 0})));
  const Graph graph = b.Finish(b.Linear(points, 3, true));
  const Program program = Compile(graph, Plan(), {});
  EXPECT_TRUE(program.convs.empty());
  EXPECT_TRUE(program.rulebooks.empty());
  // The steps are: features, point_to_voxel, two searches and two sums, linear, argmax and the two outputs.
  EXPECT_EQ(program.steps.size(), 10u);
  Expect(graph, 50);
}

TEST_P(PointsTest, SmallSpvcnnEqualsTheInterpreter) {
  uint32_t seed = 60;
  for (const CoordinateRule rule : kRules) {
    ++seed;
    Expect(SmallSpvcnn(seed, rule), seed);
  }
}

// The clouds have no points, or no valid points.
TEST_P(PointsTest, BatchesWithoutPointsAndWithoutVoxels) {
  const Points nowhere = {{-1, 0, 0, 1, std::nanf(""), 1, 1, 1}};
  const auto runner = DeviceRunner::Create({.device = GetParam()});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const auto program = (*runner)->Compile(SmallSpvcnn(80), {.device = GetParam()});
  ASSERT_TRUE(program.ok()) << program.status();
  for (const Points& points : {Points(), nowhere}) {
    const PointCloud cloud = Cloud(points);
    for (const bool wants_scores : {false, true}) {
      const BatchReport output = (*runner)->Run(*program, {&cloud, &cloud}, wants_scores);
      ASSERT_TRUE(output.status.ok()) << output.status;
      for (const InferResult& sample : output.samples) {
        EXPECT_TRUE(sample.status.ok()) << sample.status;
        EXPECT_EQ(sample.labels(), std::vector<uint8_t>(points.size(), 255));
        EXPECT_EQ(sample.scores(), std::vector<float>(wants_scores ? 3 * points.size() : 0, 0.0f));
      }
    }
  }
}

// Points that the limit of voxels drops get the ignore label and scores of 0. The other points get the same results as
// in a cloud without the dropped points.
TEST_P(PointsTest, PointsOfDroppedVoxels) {
  GraphBuilder b(90);
  const int down = b.Down(b.PointToVoxel(b.PointFeatures(), PoolReduce::kSum), 6);
  const Graph graph = b.Finish(b.Linear(b.Concat({b.Devoxelize(down), b.PointFeatures()}), 3, true));
  const Points all = RandomScan(90);
  const auto runner = DeviceRunner::Create({.device = GetParam()});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const auto program = (*runner)->Compile(graph, {.device = GetParam()});
  ASSERT_TRUE(program.ok()) << program.status();
  const PointCloud cloud = Cloud(all);
  const RunLimits limits{.max_voxels = 12, .voxel_overflow = ModelConfig::VoxelOverflow::kNearestFirst};
  const BatchReport limited = (*runner)->Run(*program, {&cloud}, true, limits);
  ASSERT_TRUE(limited.status.ok()) << limited.status;
  EXPECT_GT(limited.samples[0].counts.dropped, 10);
  Points kept;
  std::vector<size_t> places;
  for (size_t i = 0; i < all.size(); ++i) {
    if (limited.samples[0].labels()[i] == 255) {
      for (size_t c = 0; c < 3; ++c) EXPECT_EQ(limited.samples[0].scores()[3 * i + c], 0) << i;
      continue;
    }
    places.push_back(i);
    for (size_t c = 0; c < 4; ++c) kept.values.push_back(all.values[4 * i + c]);
  }
  ASSERT_GT(places.size(), 5u);
  const PointCloud kept_cloud = Cloud(kept);
  const BatchReport expected = (*runner)->Run(*program, {&kept_cloud}, true);
  ASSERT_TRUE(expected.status.ok()) << expected.status;
  EXPECT_EQ(expected.samples[0].counts.voxels, 12);
  for (size_t i = 0; i < places.size(); ++i) {
    EXPECT_EQ(limited.samples[0].labels()[places[i]], expected.samples[0].labels()[i]) << i;
    for (size_t c = 0; c < 3; ++c) {
      EXPECT_NEAR(limited.samples[0].scores()[3 * places[i] + c], expected.samples[0].scores()[3 * i + c], 1e-4f) << i;
    }
  }
}

// Tests that the points of all sweeps enter the network, and that only the points of the first sweep get answers.
TEST_P(PointsTest, AnswersOfTheFirstSweep) {
  const Points all = RandomScan(95, 120);
  const size_t num_first = 40;
  const Points first = {{all.values.begin(), all.values.begin() + 4 * num_first}};
  const Points second = {{all.values.begin() + 4 * num_first, all.values.end()}};
  const auto sweep = [](const Points& points) {
    return PlacedSweep{.sweep = std::make_shared<Sweep>(Sweep{.cloud = Cloud(points)})};
  };
  const std::vector<PlacedSweep> sweeps = {sweep(first), sweep(second)};
  const PointCloud cloud = Cloud(all);
  const auto runner = DeviceRunner::Create({.device = GetParam()});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const auto program = (*runner)->Compile(SmallSpvcnn(96), {.device = GetParam()});
  ASSERT_TRUE(program.ok()) << program.status();
  const std::vector<InferTask> inputs = {{.cloud = sweeps[0].sweep->cloud, .return_scores = true, .sweeps = sweeps},
                                         {.cloud = cloud, .return_scores = true},
                                         {.cloud = sweeps[0].sweep->cloud, .return_scores = true, .sweeps = sweeps}};
  const BatchReport output = (*runner)->Run(*program, inputs);
  ASSERT_TRUE(output.status.ok()) << output.status;
  const InferResult& whole = output.samples[1];
  ASSERT_EQ(whole.labels().size(), all.size());
  for (const size_t i : {0u, 2u}) {
    const InferResult& sample = output.samples[i];
    ASSERT_TRUE(sample.status.ok()) << sample.status;
    EXPECT_EQ(sample.labels(), std::vector<uint8_t>(whole.labels().begin(), whole.labels().begin() + num_first));
    ASSERT_EQ(sample.scores().size(), 3 * num_first);
    for (size_t j = 0; j < sample.scores().size(); ++j) EXPECT_NEAR(sample.scores()[j], whole.scores()[j], 1e-4f) << j;
  }
}

// If the GPU has too little memory, the CPU makes the coordinate levels and kernel maps. They must include the keys
// that operators on points read.
TEST(PointsCudaTest, MapsThatAreMadeOnTheCpu) {
  SKIP_WITHOUT(support::Device::kCuda);
  const Graph graph = SmallSpvcnn(97);
  // The cloud has two million points in few voxels. The GPU does not know the number of voxels yet, so it takes memory
  // for two million. Under a low limit, only the CPU can make the maps.
  const PointCloud cloud = Cloud(RandomScan(97, 2'000'000));
  ExpectEqualWithMapsOfTheCpu(graph, cloud, /*limit_steps=*/8);
}

class RandomPointGraphTest : public testing::TestWithParam<std::tuple<support::Device, uint32_t>> {};

TEST_P(RandomPointGraphTest, ProgramEqualsInterpreter) {
  const auto [device, seed] = GetParam();
  SKIP_WITHOUT(device);
  std::mt19937 random(seed);
  const auto pick = [&](int count) { return std::uniform_int_distribution<int>(0, count - 1)(random); };
  GraphBuilder b(seed, kRules[seed % 3]);
  if (pick(2) == 0) b.Floor();
  const int stem = b.Submanifold(0, 6, true);
  const int down = b.Down(stem, 6);
  std::vector<int> nodes = {0, stem, down, b.PointFeatures()};
  for (int i = 0; i < 25; ++i) {
    const int input = nodes[static_cast<size_t>(pick(static_cast<int>(nodes.size())))];
    std::vector<int> alike, same_level;
    for (const int node : nodes) {
      if (b.Level(node) == b.Level(input)) same_level.push_back(node);
      if (b.Level(node) == b.Level(input) && b.Channels(node) == b.Channels(input)) alike.push_back(node);
    }
    const auto one_of = [&](const std::vector<int>& from) {
      return from[static_cast<size_t>(pick(static_cast<int>(from.size())))];
    };
    const bool is_on_points = b.Level(input) == kPointLevel;
    const int channels = 1 + pick(9);
    switch (pick(10)) {
      case 0:
        nodes.push_back(b.Norm(input));
        break;
      case 1:
        nodes.push_back(b.Relu(input));
        break;
      case 2:
        nodes.push_back(b.Sum(input, one_of(alike)));
        break;
      case 3:
        if (b.Channels(input) < 100) nodes.push_back(b.Concat({input, one_of(same_level)}));
        break;
      case 4:
        nodes.push_back(b.Linear(input, channels, pick(2) == 0));
        break;
      case 5:
      case 6: {
        if (!is_on_points) {
          nodes.push_back(b.Devoxelize(input));
          break;
        }
        // kSum is left out, since sums of sums would grow until rounding errors fail the comparison.
        const PoolReduce reduce = pick(2) == 0 ? PoolReduce::kMax : PoolReduce::kAverage;
        nodes.push_back(b.PointToVoxel(input, reduce, pick(2) == 0 ? down : -1));
        break;
      }
      case 7:
        if (b.Level(input) == kFine) nodes.push_back(b.VoxelToPoint(input));
        break;
      case 8:
        if (b.Level(input) == kCoarse) nodes.push_back(b.Devoxelize(input, pick(2) == 0 ? stem : down));
        break;
      default:
        if (!is_on_points) nodes.push_back(b.Submanifold(input, channels, true));
    }
  }
  // The last nodes of each level feed the head, so that most of the graph is read.
  int fine = 0, coarse = down, points = nodes[3];
  for (const int node : nodes) {
    (b.Level(node) == kFine ? fine : b.Level(node) == kCoarse ? coarse : points) = node;
  }
  const int trunk = b.Concat({points, b.Devoxelize(coarse), b.VoxelToPoint(fine)});
  const Graph graph = b.FinishWithTwoHeads(trunk, fine, /*reads_trunk_alone=*/pick(2) == 0);
  ExpectEqual(device, graph, RandomScan(seed));
  ExpectEqual(device, graph, RandomScan(seed + 1));
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomPointGraphTest,
                         testing::Combine(support::AllDevices(), testing::Range(100u, 150u)), [](const auto& seed) {
                           return (std::get<0>(seed.param) == support::Device::kCpu ? "Cpu" : "Cuda") +
                                  std::to_string(std::get<1>(seed.param));
                         });

}  // namespace
}  // namespace voxserve::points_test
