// Tests unions of sites, crops and prunes in networks, on the CPU and a GPU. Networks in 1 to 4 dimensions are compared
// with plain loops, and random graphs with an interpreter. Each sample must get the same result in a batch and alone.

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "engine/base/error_reason.h"
#include "kernels/coordinates/coordinate_key.h"
#include "tests/engine/executor/conv_network_run.h"
#include "tests/engine/executor/program_comparison.h"

namespace voxserve::new_sites_test {
namespace {

constexpr Place kOnes = {1, 1, 1, 1};
constexpr Place kTwos = {2, 2, 2, 2};
constexpr Place kFar = {1000, 1000, 1000, 1000};
constexpr Place kBeyond = {1001, 1001, 1001, 1001};

// device, dimension, seed
class NewSitesTest : public ::testing::TestWithParam<std::tuple<support::Device, int, uint32_t>> {
 protected:
  void SetUp() override { SKIP_WITHOUT(std::get<0>(GetParam())); }

  // Runs a network on three samples, one of which is often empty. Features are multiples of 1/2.
  void Run(const std::function<std::string(ConvNetwork&, Draw&)>& build) {
    const auto [device, dimension, seed] = GetParam();
    Draw draw(seed * 37 + static_cast<uint32_t>(dimension), dimension);
    const int largest[] = {30, 9, 6, 4};
    ConvNetwork network(dimension, 4, std::nullopt, seed);
    network.UseHalves();
    const std::string head = build(network, draw);
    std::vector<Rows> samples;
    for (int i = 0; i < 3; ++i) {
      samples.push_back(RandomVoxels(dimension, 4, draw.Axes(-9, 0),
                                     draw.Axes(largest[dimension - 1] / 2 + 1, largest[dimension - 1]), draw.random()));
      for (auto& [site, row] : samples.back()) {
        for (double& value : row) value = std::round(2 * value) / 2;
      }
    }
    if (seed % 2 == 0) samples[1].clear();
    ExpectWhatIsDefined(device, network, head, samples);
  }
};

std::string NameOfNetwork(const ::testing::TestParamInfo<NewSitesTest::ParamType>& test) {
  const auto [device, dimension, seed] = test.param;
  return absl::StrCat(device == support::Device::kCpu ? "Cpu" : "Cuda", dimension, "d", seed);
}

INSTANTIATE_TEST_SUITE_P(Seeds, NewSitesTest,
                         ::testing::Combine(support::AllDevices(), ::testing::Range(1, 5), ::testing::Range(0u, 4u)),
                         NameOfNetwork);

TEST_P(NewSitesTest, SumAcrossSites) {
  Run([](ConvNetwork& network, Draw& draw) {
    const std::string part = network.Crop("voxels", draw.Axes(-9, -4), draw.Axes(-3, 2));
    const std::string wider = network.Generative("voxels", draw.List(kOnes), 4);
    const std::string sum = draw.Up(0, 1) == 0 ? network.UnionAdd({part, wider}) : network.UnionAdd({wider, part});
    return network.Onto(network.Submanifold(sum, draw.Box(kOnes), 3), "voxels", draw.Any(kOnes), 3);
  });
}

TEST_P(NewSitesTest, ConcatenationOfThreeAndWhatConvolutionsMakeOfIt) {
  Run([](ConvNetwork& network, Draw& draw) {
    const std::string low = network.Crop("voxels", draw.Axes(-9, -6), draw.Axes(-3, 0));
    const std::string high = network.Crop("voxels", draw.Axes(-4, -3), draw.Axes(2, 5));
    const std::string wider = network.Generative(low, draw.List(kOnes), 3);
    const std::string all = network.UnionConcat({high, wider, low});
    const KernelShape shape = draw.Box(kTwos);
    const std::string coarse = network.Floor(all, shape, 5);
    const std::string back = network.Inverse(coarse, coarse, all, shape, 4, 1);
    return network.Onto(network.UnionAdd({back, "voxels"}), "voxels", draw.Any(kOnes), 3);
  });
}

// Unites sites with a part of themselves, and a node with itself.
TEST_P(NewSitesTest, UnionsThatAddNothing) {
  Run([](ConvNetwork& network, Draw& draw) {
    const std::string part = network.Crop("voxels", draw.Axes(-9, -6), draw.Axes(-3, 2));
    const std::string sum = network.UnionAdd({network.UnionAdd({part, "voxels"}), part});
    const std::string both = network.UnionConcat({sum, network.UnionAdd({"voxels", "voxels"}), sum});
    return network.Onto(both, "voxels", draw.Box(kOnes), 3);
  });
}

TEST_P(NewSitesTest, CropsOfNothing) {
  Run([](ConvNetwork& network, Draw& draw) {
    const std::string none = network.Crop("voxels", kFar, kBeyond);
    const std::string coarse = network.Floor(network.Submanifold(none, draw.Box(kOnes), 4), draw.Box(kTwos), 4);
    const std::string fine = network.Generative(coarse, draw.Box(kTwos), 4);
    const std::string nothing = network.UnionAdd({fine, none});
    const std::string sum = network.UnionAdd({network.Onto(nothing, "voxels", draw.Box(kOnes), 4), "voxels"});
    return network.UnionAdd({sum, network.Onto(network.UnionAdd({none, "voxels"}), "voxels", draw.Box(kOnes), 4)});
  });
}

TEST_P(NewSitesTest, PruneAfterGeneration) {
  Run([](ConvNetwork& network, Draw& draw) {
    const std::string coarse = network.Floor("voxels", draw.List(kTwos), 3);
    const std::string fine = network.Generative(coarse, {.kernel_size = kTwos, .stride = kTwos}, 4);
    const std::string score = network.Submanifold(fine, {.kernel_size = kOnes}, 1);
    const std::string pruned = network.Prune(fine, score, 0.03125f);
    return network.Onto(network.Submanifold(pruned, draw.Box(kOnes), 4), "voxels", draw.Any(kOnes), 3);
  });
}

// Only the pruned node's sites are used, not its rows. Without the prune, the sum would be fused into the layer that
// makes the scores.
TEST_P(NewSitesTest, PruneThatIsNamedForItsSitesAlone) {
  Run([](ConvNetwork& network, Draw& draw) {
    const std::string other = network.Submanifold("voxels", {.kernel_size = kOnes}, 1);
    const std::string score = network.Submanifold("voxels", {.kernel_size = kOnes}, 1);
    const std::string sum = network.UnionAdd({other, score});
    const std::string pruned = network.Prune("voxels", score, 0.03125f);
    const std::string onto = network.Onto(sum, pruned, draw.Box(kOnes), 4);
    return network.Onto(onto, "voxels", draw.Box(kOnes), 3);
  });
}

// The network has three segments, since the second prune reads what the first one keeps. Unions, strided and inverse
// convolutions read sites that depend on scores. Some steps on sites of the first segment run in a later segment.
TEST_P(NewSitesTest, PrunesBehindPrunes) {
  Run([](ConvNetwork& network, Draw& draw) {
    const std::string first_score = network.Submanifold("voxels", {.kernel_size = kOnes}, 1);
    const std::string first = network.Prune("voxels", first_score, -0.125f);
    const std::string onto = network.Onto(first, "voxels", {.kernel_size = kOnes}, 1);
    const std::string second = network.Prune("voxels", onto, 0.125f);
    const KernelShape shape = draw.Box(kTwos);
    const std::string coarse = network.Floor(first, shape, 5);
    const std::string back = network.Inverse(coarse, coarse, first, shape, 4, 1);
    const std::string all = network.UnionAdd({back, second});
    return network.Onto(network.UnionConcat({all, "voxels"}), "voxels", draw.Any(kOnes), 3);
  });
}

TEST_P(NewSitesTest, PrunesThatKeepAllOrNothing) {
  Run([](ConvNetwork& network, Draw& draw) {
    const std::string score = network.Submanifold("voxels", {.kernel_size = kOnes}, 1);
    const std::string all = network.Prune("voxels", score, -1000);
    const std::string none = network.Prune("voxels", score, 1000);
    const std::string wider = network.Generative(network.Floor(none, draw.Box(kTwos), 3), draw.Box(kTwos), 4);
    const std::string sum = network.UnionAdd({network.UnionAdd({wider, none}), all});
    return network.Onto(network.Submanifold(sum, draw.Box(kOnes), 4), "voxels", draw.Box(kOnes), 3);
  });
}

class NewSiteGraphTest : public ::testing::TestWithParam<std::tuple<support::Device, uint32_t>> {
 protected:
  void SetUp() override { SKIP_WITHOUT(std::get<0>(GetParam())); }
};

std::string NameOfGraph(const ::testing::TestParamInfo<NewSiteGraphTest::ParamType>& test) {
  const auto [device, seed] = test.param;
  return absl::StrCat(device == support::Device::kCpu ? "Cpu" : "Cuda", seed);
}

INSTANTIATE_TEST_SUITE_P(Seeds, NewSiteGraphTest,
                         ::testing::Combine(support::AllDevices(), ::testing::Range(200u, 230u)), NameOfGraph);

// No node changes the size of a voxel. Every third graph has prunes.
TEST_P(NewSiteGraphTest, ProgramEqualsInterpreter) {
  const auto [device, seed] = GetParam();
  std::mt19937 random(seed);
  const auto pick = [&](int count) { return std::uniform_int_distribution<int>(0, count - 1)(random); };
  const auto one_of = [&](const std::vector<int>& nodes) {
    return nodes[static_cast<size_t>(pick(static_cast<int>(nodes.size())))];
  };
  GraphBuilder b(seed);
  std::vector<int> nodes = {0};
  for (int i = 0; i < 20; ++i) {
    const int input = pick(2) == 0 ? nodes.back() : one_of(nodes);
    std::vector<int> alike, same_level;
    for (const int node : nodes) {
      if (b.Channels(node) == b.Channels(input)) alike.push_back(node);
      if (b.Level(node) == b.Level(input)) same_level.push_back(node);
    }
    const kernels::PoolReduce reduce = pick(2) == 0 ? kernels::PoolReduce::kMax : kernels::PoolReduce::kAverage;
    switch (pick(11)) {
      case 0:
        nodes.push_back(b.Submanifold(input, 1 + pick(9), pick(2) == 0));
        break;
      case 1:
        nodes.push_back(b.Norm(input));
        break;
      case 2:
        nodes.push_back(b.Relu(input));
        break;
      case 3:
        nodes.push_back(b.UnionSum(input, one_of(alike)));
        break;
      case 4:
        nodes.push_back(b.UnionConcat({input, one_of(nodes), one_of(same_level)}));
        break;
      case 5:
        nodes.push_back(b.PoolSubmanifold(input, reduce));
        break;
      case 6:
        nodes.push_back(b.SampleNorm(input, pick(2), pick(2) == 0));
        break;
      case 7: {
        const int gate = b.Activation(b.GlobalPool(input, reduce), kernels::ActivationFunction::kSigmoid);
        nodes.push_back(b.Broadcast(input, gate, BroadcastOp::Function::kMultiply));
        break;
      }
      case 8:
        nodes.push_back(b.Onto(input, one_of(nodes), 1 + pick(6)));
        break;
      case 9:
        if (seed % 3 == 0) {
          nodes.push_back(b.Prune(input, b.Linear(one_of(same_level), 1, true), 0.05f));
          break;
        }
        [[fallthrough]];
      default: {
        const kernels::Axes lower = {pick(4), pick(2), pick(2), 0};
        nodes.push_back(b.Crop(input, lower, {lower[0] + 1 + pick(6), lower[1] + 1 + pick(5), 4, 1}));
      }
    }
  }
  const int last = nodes.back(), other = nodes[nodes.size() - 2];
  const int head = b.Onto(b.UnionConcat({last, other, 0}), 0, 6);
  const Graph graph = b.Finish(b.Linear(b.Relu(head), 4, true));
  ExpectEqual(device, graph, seed);
  ExpectEqual(device, graph, seed, kernels::MapSearch::kGrid);
  ExpectEqual(device, graph, seed, kernels::MapSearch::kHash);
}

TEST(SegmentTest, OnlyPrunesMakeMoreThanOne) {
  GraphBuilder b(1);
  const int part = b.Crop(0, {1, 0, 0, 0}, {5, 5, 5, 1});
  const Program one = Compile(b.Finish(b.Onto(b.UnionSum(part, 0), 0, 3)), Plan(), {});
  ASSERT_EQ(one.segments.size(), 1u);
  EXPECT_EQ(one.segments[0].levels.size(), one.levels.size() - 1);
  EXPECT_EQ(one.segments[0].rulebooks.size(), one.rulebooks.size());
  EXPECT_EQ(static_cast<size_t>(one.segments[0].end_step), one.steps.size());

  // Two prunes whose scores are known at the same time share a segment. A prune that reads their result needs another
  // segment.
  GraphBuilder c(2);
  const int score = c.Linear(0, 1, true);
  const int first = c.Prune(0, score, 0.1f), second = c.Prune(0, score, 0.2f);
  const int sum = c.UnionSum(first, second);
  const int third = c.Prune(sum, c.Linear(sum, 1, true), 0);
  const Program three = Compile(c.Finish(c.Onto(third, 0, 3)), Plan(), {});
  ASSERT_EQ(three.segments.size(), 3u);
  EXPECT_TRUE(three.segments[0].levels.empty());
  EXPECT_EQ(three.segments[1].levels.size(), 3u);
  EXPECT_EQ(three.segments[2].levels.size(), 1u);
  EXPECT_EQ(three.segments[1].first_step, three.segments[0].end_step);
  EXPECT_EQ(three.segments[2].first_step, three.segments[1].end_step);
}

class NewSiteLimitsTest : public ::testing::TestWithParam<support::Device> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Devices, NewSiteLimitsTest, support::AllDevices(), support::DeviceName);

// The sites with coordinates that a key cannot hold are made in the second segment only.
TEST_P(NewSiteLimitsTest, SitesBeyondTheKeyRefuseTheirSampleAlone) {
  ConvNetwork network(3, 1, std::nullopt, 1);
  network.UseHalves();
  const Place twos = {2, 2, 2, 1};
  const std::string score = network.Submanifold("voxels", {.kernel_size = {1, 1, 1, 1}}, 1);
  const std::string kept = network.Prune("voxels", score, -1000);
  const std::string fine = network.Generative(kept, {.kernel_size = twos, .stride = twos}, 2);
  const support::TestModel model =
      network.Finish(network.Onto(fine, "voxels", {.kernel_size = twos, .stride = twos}, 2));
  const support::TemporaryFolder folder;
  model.WriteTo(folder.path());
  const absl::StatusOr<Graph> graph = LoadGraph(folder.path() / "1");
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto runner = DeviceRunner::Create({.device = GetParam()});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const auto program = (*runner)->Compile(*graph, VariantsOf(GetParam())[0]);
  ASSERT_TRUE(program.ok()) << program.status();
  const int32_t half = kernels::CoordinateKey(3).max_coordinate() / 2;
  const PointCloud within = CloudOf({{{half, 0, 0, 0}, {1.0}}}, 3, 1);
  const PointCloud beyond = CloudOf({{{half + 1, 0, 0, 0}, {1.0}}}, 3, 1);
  const BatchReport output = (*runner)->Run(*program, {&within, &beyond, &within}, true);
  ASSERT_TRUE(output.status.ok()) << output.status;
  for (const size_t i : {0, 2}) {
    EXPECT_TRUE(output.samples[i].status.ok()) << output.samples[i].status;
    EXPECT_EQ(output.samples[i].labels().size(), 1u);
  }
  EXPECT_EQ(ReasonOf(output.samples[1].status), error_reason::kCoordinateLimits) << output.samples[1].status;
}

// After a large batch, a context runs small ones, and one whose points are all out of the network's range.
TEST_P(NewSiteLimitsTest, BatchesOfAnySizeOneAfterTheOther) {
  GraphBuilder b(9);
  const int stem = b.Submanifold(0, 6, true);
  const int pruned = b.Prune(stem, b.Linear(stem, 1, true), 0);
  const Graph graph = b.Finish(b.Linear(b.Onto(b.Submanifold(pruned, 5, true), 0, 4), 3, true));
  const auto runner = DeviceRunner::Create({.device = GetParam()});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const auto program = (*runner)->Compile(graph, VariantsOf(GetParam())[0]);
  ASSERT_TRUE(program.ok()) << program.status();
  const Points points = RandomPoints(3);
  const auto full = PointCloud::FromFloats({"x", "y", "z", "f"}, points.values.data(), points.size());
  const std::vector<float> outside = {-5, -5, -5, 0};
  const auto unseen = PointCloud::FromFloats({"x", "y", "z", "f"}, outside.data(), 1);
  const BatchReport alone = (*runner)->Run(*program, {&*full}, true);
  const absl::Span<const float> expected = alone.samples.at(0).scores();
  for (const auto& batch : std::vector<std::vector<const PointCloud*>>{
           {&*full, &*full, &*unseen, &*full}, {&*unseen}, {&*full}, {&*unseen, &*full}}) {
    const BatchReport output = (*runner)->Run(*program, batch, true, {}, {.times_convs = true});
    ASSERT_TRUE(output.status.ok()) << output.status;
    if (batch.size() > 1) {  // the tuner reads these, for convolutions of every segment
      EXPECT_EQ(output.conv_times.size(), program->convs.size());
      EXPECT_EQ(output.rulebook_sizes.size(), program->rulebooks.size());
    }
    for (size_t i = 0; i < batch.size(); ++i) {
      ASSERT_TRUE(output.samples[i].status.ok()) << output.samples[i].status;
      if (batch[i] == &*unseen) continue;
      ASSERT_EQ(output.samples[i].scores().size(), expected.size());
      for (size_t v = 0; v < expected.size(); ++v) ASSERT_NEAR(output.samples[i].scores()[v], expected[v], 1e-4f);
    }
  }
}

// The scores are on the GPU, so the CPU cannot make the maps that depend on them. If the GPU lacks memory, the batch is
// refused.
TEST(NewSitesCudaTest, PrunesWithoutCapacities) {
  SKIP_WITHOUT(support::Device::kCuda);
  GraphBuilder b(10);
  const int stem = b.Submanifold(0, 8, true);
  const int pruned = b.Prune(stem, b.Linear(stem, 1, true), 0);
  const Graph graph = b.Finish(b.Linear(b.Onto(pruned, 0, 4), 3, true));
  std::mt19937 random(10);
  std::uniform_real_distribution<float> unit(0, 1);
  std::vector<float> values;  // two million points in few voxels; maps get memory for two million sites
  for (int i = 0; i < 2'000'000; ++i) {
    for (size_t axis = 0; axis < 3; ++axis) values.push_back(unit(random) * static_cast<float>(kShape[axis]));
    values.push_back(unit(random));
  }
  const PointCloud cloud = *PointCloud::FromFloats({"x", "y", "z", "f"}, values.data(), values.size() / 4);
  bool was_refused = false, was_served = false;
  for (int64_t limit = int64_t{96} << 20; limit < int64_t{16384} << 20 && !was_served; limit *= 2) {
    const auto runner = DeviceRunner::Create({.device = support::Device::kCuda, .device_memory_limit = limit});
    if (!runner.ok()) continue;
    const auto program = (*runner)->Compile(graph, {.device = support::Device::kCuda, .plan = kDefaultCudaConvPlan});
    if (!program.ok()) continue;
    const BatchReport output = (*runner)->Run(*program, {&cloud}, true);
    EXPECT_FALSE(output.geometry_on_cpu);
    was_served = output.status.ok();
    if (was_served) continue;
    was_refused = true;
    EXPECT_EQ(output.status.code(), absl::StatusCode::kResourceExhausted) << output.status;
    EXPECT_EQ(ReasonOf(output.status), error_reason::kOutOfMemory) << output.status;
  }
  EXPECT_TRUE(was_refused);
  EXPECT_TRUE(was_served);
}

}  // namespace
}  // namespace voxserve::new_sites_test
