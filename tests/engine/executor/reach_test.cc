// Tests ReachOf against probes: one point of a cloud is changed or taken away, and the scores of all points farther
// away than the reach must stay as they are. Networks of a single row of voxels are small enough to probe every point,
// so the tests also see how far changes do reach.

#include "engine/model/reach.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/executor/conv_network_run.h"
#include "tests/engine/executor/operator_networks.h"
#include "tests/engine/program_fixture.h"

namespace voxserve::reach_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FloatEq;

constexpr Place kOnes = {1, 1, 1, 1};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A cloud as rows of numbers: the coordinates, then the features.
struct Cloud {
  std::vector<std::string> fields;
  std::vector<std::vector<float>> points;

  PointCloud Encoded() const {
    std::vector<float> values;
    for (const std::vector<float>& point : points) values.insert(values.end(), point.begin(), point.end());
    return *PointCloud::FromFloats(fields, values.data(), points.size());
  }
};

class Prober {
 public:
  explicit Prober(const support::TestModel& model) {
    absl::StatusOr<Graph> graph = LoadTestGraph(model);
    EXPECT_TRUE(graph.ok()) << graph.status() << model.graph;
    graph_ = *std::move(graph);
    runner_ = *DeviceRunner::Create({.device = support::Device::kCpu});
    program_.emplace(*runner_->Compile(graph_, {.name = "Cpu"}, 2));
  }

  Reach reach() const { return ReachOf(graph_); }
  int dimension() const { return graph_.dimension; }

  // Returns the scores of each cloud's points.
  std::vector<std::vector<float>> Scores(const std::vector<Cloud>& clouds) {
    std::vector<PointCloud> encoded;
    for (const Cloud& cloud : clouds) encoded.push_back(cloud.Encoded());
    std::vector<const PointCloud*> batch;
    for (const PointCloud& cloud : encoded) batch.push_back(&cloud);
    const BatchReport report = runner_->Run(*program_, batch, true);
    EXPECT_TRUE(report.status.ok()) << report.status;
    std::vector<std::vector<float>> scores;
    for (const auto& sample : report.samples) {
      EXPECT_TRUE(sample.status.ok()) << sample.status;
      scores.emplace_back(sample.scores().begin(), sample.scores().end());
    }
    return scores;
  }

  // Changes, and then takes away, each of the points `probed`. Returns the greatest distance by axis, in the unit of
  // the coordinates, from such a point to one whose scores changed.
  std::vector<float> FarthestChange(const Cloud& cloud, const std::vector<size_t>& probed) {
    std::vector<Cloud> clouds = {cloud};
    for (const size_t point : probed) {
      Cloud& changed = clouds.emplace_back(cloud);
      for (size_t c = static_cast<size_t>(dimension()); c < cloud.fields.size(); ++c) changed.points[point][c] += 7;
      Cloud& less = clouds.emplace_back(cloud);
      less.points.erase(less.points.begin() + static_cast<std::ptrdiff_t>(point));
    }
    const std::vector<std::vector<float>> scores = Scores(clouds);
    const size_t width = scores[0].size() / cloud.points.size();
    float largest = 1;
    for (const float score : scores[0]) largest = std::max(largest, std::abs(score));
    std::vector<float> farthest(static_cast<size_t>(dimension()), 0);
    for (size_t i = 1; i < clouds.size(); ++i) {
      const size_t point = probed[(i - 1) / 2];
      const bool is_less = i % 2 == 0;
      for (size_t other = 0; other < cloud.points.size(); ++other) {
        if (other == point) continue;
        const size_t row = is_less && other > point ? other - 1 : other;
        bool has_changed = false;
        for (size_t c = 0; c < width; ++c) {
          has_changed |= std::abs(scores[i][row * width + c] - scores[0][other * width + c]) > 1e-5f * largest;
        }
        if (!has_changed) continue;
        for (size_t axis = 0; axis < farthest.size(); ++axis) {
          farthest[axis] = std::max(farthest[axis], std::abs(cloud.points[point][axis] - cloud.points[other][axis]));
        }
      }
    }
    return farthest;
  }

 private:
  Graph graph_;
  std::unique_ptr<DeviceRunner> runner_;
  std::optional<Program> program_;
};

// Returns a cloud with a point in most places of a box of voxels of 1 m, and features of -1 to 1.
Cloud RandomCloud(const std::vector<std::string>& fields, const std::vector<int>& shape, uint32_t seed,
                  float first = 0) {
  Cloud cloud{.fields = fields};
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> unit(0, 1);
  std::vector<int> place(shape.size(), 0);
  for (;;) {
    if (unit(random) < 0.8f) {
      std::vector<float>& point = cloud.points.emplace_back();
      for (const int at : place) point.push_back(first + static_cast<float>(at) + 0.5f);
      while (point.size() < fields.size()) point.push_back(2 * unit(random) - 1);
    }
    size_t axis = 0;
    while (axis < shape.size() && ++place[axis] == shape[axis]) place[axis++] = 0;
    if (axis == shape.size()) return cloud;
  }
}

// Probes a network on a row of voxels. Returns how far changes reached.
float ExpectWithinReach(ConvNetwork& network, const std::string& head, uint32_t seed) {
  Prober prober(network.Finish(head));
  const Reach reach = prober.reach();
  EXPECT_EQ(reach.unbounded_by, "");
  const Cloud cloud = RandomCloud({"x", "f0", "f1"}, {150}, seed);
  std::vector<size_t> probed;
  for (size_t i = 40; i + 40 < cloud.points.size(); ++i) probed.push_back(i);
  const float farthest = prober.FarthestChange(cloud, probed)[0];
  EXPECT_LT(farthest, reach.distance[0]);
  EXPECT_LT(reach.distance[0], 75) << "else the probe sees nothing beyond it";
  return farthest;
}

class ReachTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  float Expect(bool has_grid, const std::function<std::string(ConvNetwork&, Draw&)>& build) {
    Draw draw(GetParam() * 17 + 3, 1);
    ConvNetwork network(1, 2, has_grid ? std::optional<Place>({150, 1, 1, 1}) : std::nullopt, GetParam());
    const std::string head = build(network, draw);
    return ExpectWithinReach(network, head, GetParam());
  }
};
INSTANTIATE_TEST_SUITE_P(Seeds, ReachTest, ::testing::Range(0u, 10u));

TEST_P(ReachTest, Submanifold) {
  Expect(false, [](ConvNetwork& network, Draw& draw) {
    return network.Submanifold(network.Submanifold("voxels", draw.Any(kOnes), 4), draw.Any(kOnes), 3);
  });
}

TEST_P(ReachTest, FloorAndItsInverse) {
  Expect(false, [](ConvNetwork& network, Draw& draw) {
    const KernelShape shape = draw.Any(draw.Axes(2, 3));
    const std::string down = network.Floor("voxels", shape, 4);
    return network.Inverse(network.Submanifold(down, draw.Any(kOnes), 4), down, "voxels", shape, 3, 1);
  });
}

TEST_P(ReachTest, PaddedTwiceAndTheirInverses) {
  Expect(true, [](ConvNetwork& network, Draw& draw) {
    const KernelShape first = network.Fitting("voxels", draw.PaddedBox());
    const std::string middle = network.Padded("voxels", first, 4);
    const KernelShape second = network.Fitting(middle, draw.PaddedBox());
    const std::string down = network.Padded(middle, second, 4);
    const std::string up = network.Inverse(down, down, middle, second, 4, 1);
    return network.Inverse(up, middle, "voxels", first, 3, 1);
  });
}

TEST_P(ReachTest, ExpandAndItsInverse) {
  Expect(false, [](ConvNetwork& network, Draw& draw) {
    KernelShape shape = draw.Box({2, 1, 1, 1});
    shape.kernel_size[0] = 3;
    const std::string down = network.Expand("voxels", shape, 4, std::nullopt);
    return network.Inverse(network.Submanifold(down, draw.Box(kOnes), 4), down, "voxels", shape, 3, 1);
  });
}

TEST_P(ReachTest, TransposedAndGenerative) {
  Expect(false, [](ConvNetwork& network, Draw& draw) {
    const Place stride = draw.Axes(1, 3);
    const std::string coarse = network.Floor("voxels", draw.Any(stride), 4);
    const std::string fine = network.Generative(coarse, draw.Any(stride), 4);
    return network.Onto(network.Submanifold(fine, draw.Box(kOnes), 4), "voxels", draw.Any(kOnes), 3);
  });
  Expect(true, [](ConvNetwork& network, Draw& draw) {
    const Place stride = draw.Axes(1, 3);
    KernelShape shape = draw.Box(stride);
    shape.padding = Place{0, 0, 0, 0};
    const std::string fine = network.Transposed("voxels", shape, 4, kOnes);
    return network.Onto(fine, "voxels", draw.Any(stride), 3);
  });
}

TEST_P(ReachTest, GivenSitesUnionsPrunesAndPools) {
  Expect(false, [](ConvNetwork& network, Draw& draw) {
    const Place stride = draw.Axes(2, 3);
    KernelShape pool = draw.Box(stride);
    pool.reduce = draw.Reduce();
    const std::string coarse = network.Floor("voxels", pool, 2);
    const std::string scores = network.Submanifold(coarse, draw.Any(kOnes), 1);
    const std::string pruned = network.Prune(coarse, scores, 0.1f);
    const std::string onto = network.Onto("voxels", coarse, draw.Any(stride), 4);
    const std::string both = network.UnionConcat({pruned, onto});
    return network.TransposedOnto(both, "voxels", draw.Box(stride), 3);
  });
}

// In a dense row with positive weights, every cell counts. So the reach is exactly what the probe finds.
TEST(ReachExactTest, IsThatOfTheKernels) {
  const auto probe = [](const std::function<std::string(ConvNetwork&)>& build) {
    ConvNetwork network(1, 2, std::nullopt, 5);
    const std::string head = build(network);
    Prober prober(network.Finish(head));
    const float distance = prober.reach().distance[0];
    Cloud cloud{.fields = {"x", "f0", "f1"}};
    std::mt19937 random(1);
    for (int i = 0; i < 120; ++i) {
      const auto value = [&] { return std::uniform_real_distribution<float>(-1, 1)(random); };
      cloud.points.push_back({static_cast<float>(i) + 0.5f, value(), value()});
    }
    std::vector<size_t> probed(40);
    for (size_t i = 0; i < probed.size(); ++i) probed[i] = 40 + i;
    const float farthest = prober.FarthestChange(cloud, probed)[0];
    EXPECT_EQ(farthest + 1, distance) << "points of voxels n apart are less than n + 1 apart";
    return distance;
  };
  EXPECT_EQ(probe([](ConvNetwork& n) { return n.Submanifold("voxels", {.kernel_size = {3, 1, 1, 1}}, 3); }), 2);
  EXPECT_EQ(probe([](ConvNetwork& n) {
              return n.Submanifold("voxels", {.kernel_size = {5, 1, 1, 1}, .dilation = {3, 1, 1, 1}}, 3);
            }),
            7);
  EXPECT_EQ(probe([](ConvNetwork& n) {
              const KernelShape two{.kernel_size = {2, 1, 1, 1}, .stride = {2, 1, 1, 1}};
              const std::string half = n.Floor("voxels", two, 3);
              const std::string quarter = n.Floor(half, two, 3);
              const std::string same = n.Submanifold(quarter, {.kernel_size = {3, 1, 1, 1}}, 3);
              return n.Inverse(n.Inverse(same, quarter, half, two, 3, 1), half, "voxels", two, 3, 1);
            }),
            4 + 3 + 1)
      << "the next square of 4 voxels, and what is left of the own one";
}

// ---- Rows of points, images, and layers that read whole samples ----------------------------------------------------

constexpr char kVoxels[] = R"(
  nodes { name: "voxels" voxelize { voxel_size: [0.5, 0.5, 0.5] rounding: ROUNDING_FLOOR origin: $0 reduce: REDUCE_MEAN
          features { name: "f" } } }
)";
constexpr char kHead[] = R"(
  nodes { name: "best" inputs: "rows" argmax {} } outputs { kind: KIND_LABELS node: "best" }
  outputs { kind: KIND_SCORES node: "rows" }
)";

support::TestModel PointModel(const std::string& origin, const std::string& nodes) {
  support::TestModel model{.graph = absl::StrCat(kVoxels, nodes, kHead)};
  return model.Replace("$0", origin);
}

support::TestModel Pyramid(const std::string& origin) {
  return PointModel(origin, R"(
    nodes { name: "points" inputs: "voxels" point_features {} }
    nodes { name: "down" inputs: "voxels" pool { reduce: REDUCE_SUM kind: KIND_STRIDED rule: RULE_FLOOR
            kernel_size: [4, 4, 4] stride: [4, 4, 4] } }
    nodes { name: "sums" inputs: ["points", "voxels"] point_to_voxel { reduce: REDUCE_SUM sites_of: "down" } }
    nodes { name: "back" inputs: ["sums", "voxels"] devoxelize {} }
    nodes { name: "rows" inputs: ["back", "points"] concat {} })");
}

TEST(ReachOfPointsTest, HoldsForPointsAndTheirSites) {
  Prober prober(Pyramid("ORIGIN_ZERO"));
  const Reach reach = prober.reach();
  EXPECT_THAT(reach.distance, Each(FloatEq((4 + 1 + 3 + 1) * 0.5f)));
  EXPECT_THAT(reach.minimum_period, ElementsAre(1, 1, 1));
  const Cloud cloud = RandomCloud({"x", "y", "z", "f"}, {24, 3, 2}, 2);
  std::vector<size_t> probed;
  for (size_t i = 0; i < cloud.points.size(); i += 5) probed.push_back(i);
  const std::vector<float> farthest = prober.FarthestChange(cloud, probed);
  EXPECT_LE(farthest[0], reach.distance[0]);
  EXPECT_GE(farthest[0], 2) << "the reach is not far more than what changes";
}

// A point far away moves the minimum, and with it the squares of the coarse level, if it does not do so by whole ones.
TEST(ReachOfPointsTest, MinimumPeriodIsThatOfTheCoarsestLevel) {
  Prober prober(Pyramid("ORIGIN_MINIMUM"));
  EXPECT_THAT(prober.reach().minimum_period, ElementsAre(4, 4, 4));
  const Cloud cloud = RandomCloud({"x", "y", "z", "f"}, {24, 3, 2}, 3);
  const auto is_same_with_a_point_at = [&](float voxels) {
    Cloud more = cloud;
    more.points.push_back({0.25f - 0.5f * voxels, 0.5f, 0.5f, 1.0f});
    const std::vector<std::vector<float>> scores = prober.Scores({cloud, more});
    for (size_t i = 0; i < scores[0].size(); ++i) {
      if (std::abs(scores[0][i] - scores[1][i]) > 1e-4f) return false;
    }
    return true;
  };
  ASSERT_LT(cloud.points[0][0], 1) << "the cloud begins at 0.5";
  EXPECT_TRUE(is_same_with_a_point_at(39));
  EXPECT_TRUE(is_same_with_a_point_at(43));
  EXPECT_FALSE(is_same_with_a_point_at(40));
  EXPECT_FALSE(is_same_with_a_point_at(41));
}

TEST(ReachOfPointsTest, ReadingWholeSamplesHasNoEnd) {
  const support::TestModel model = PointModel("ORIGIN_ZERO", R"(
    nodes { name: "mean" inputs: "voxels" global_pool { reduce: REDUCE_AVERAGE } }
    nodes { name: "both" inputs: ["voxels", "mean"] broadcast { function: FUNCTION_CONCAT } }
    nodes { name: "rows" inputs: ["both", "voxels"] voxel_to_point {} })");
  const Reach reach = ReachOf(*LoadTestGraph(model));
  EXPECT_THAT(reach.distance, ElementsAre(kInfinity, kInfinity, kInfinity));
  EXPECT_EQ(reach.unbounded_by, "mean");
}

// Every operator is in one of these networks.
TEST(ReachOfAllOperatorsTest, IsInfiniteForThoseThatReadSamples) {
  int num_bounded = 0;
  for (const OperatorNetwork& network : OperatorNetworks()) {
    const absl::StatusOr<Graph> graph = LoadTestGraph(network.model);
    ASSERT_TRUE(graph.ok()) << graph.status();
    const Reach reach = ReachOf(*graph);
    ASSERT_EQ(reach.distance.size(), static_cast<size_t>(graph->dimension)) << network.name;
    const bool reads_samples = std::any_of(graph->nodes.begin(), graph->nodes.end(), [](const GraphNode& node) {
      const auto* const attention = std::get_if<AttentionOp>(&node.op);
      return std::holds_alternative<GlobalPoolOp>(node.op) || std::holds_alternative<SampleNormOp>(node.op) ||
             std::holds_alternative<NmsOp>(node.op) || std::holds_alternative<SelectOp>(node.op) ||
             std::holds_alternative<FarthestPointSampleOp>(node.op) || IsDecoder(node.op) ||
             (attention != nullptr && attention->groups_of >= 0);
    });
    if (reads_samples) {
      EXPECT_EQ(reach.distance[0], kInfinity) << network.name;
      EXPECT_NE(reach.unbounded_by, "") << network.name;
    }
    num_bounded += reach.unbounded_by.empty() ? 1 : 0;
  }
  EXPECT_GT(num_bounded, 0);
}

// The image of a level of 2 x 2 voxels, through a convolution of stride 2 and back.
TEST(ReachOfImagesTest, AddsTheirCellsInTheLevelsUnit) {
  const std::string text = R"(
    nodes { name: "voxels" voxelize { voxel_size: [0.5, 0.25, 1] origin: ORIGIN_RANGE rounding: ROUNDING_FLOOR
            range_min: [0, 0, 0] range_max: [16, 8, 4] reduce: REDUCE_FIRST features { name: "f" } } }
    nodes { name: "down" inputs: "voxels" pool { reduce: REDUCE_MAX kind: KIND_STRIDED rule: RULE_PADDED
            kernel_size: [2, 2, 2] stride: [2, 2, 2] } }
    nodes { name: "image" inputs: "down" to_bev {} }
    nodes { name: "wide" inputs: "image" conv2d { out_channels: 2 kernel_size: [3, 5] stride: [2, 2] padding: [1, 2] } }
    outputs { kind: KIND_TENSOR node: "wide" name: "wide" })";
  support::TestModel model{.graph = text};
  model.weights["wide.weight"] = support::FilledTensor({2, 2, 3, 5});
  const absl::StatusOr<Graph> graph = LoadTestGraph(model);
  ASSERT_TRUE(graph.ok()) << graph.status();
  // x is the image's columns: 2 cells of 2 voxels and what is left of the last; y its rows: 1 cell. The whole height.
  EXPECT_THAT(ReachOf(*graph).distance,
              ElementsAre(FloatEq((4 + 1 + 1) * 0.5f), FloatEq((2 + 1 + 1) * 0.25f), FloatEq((4 + 1) * 1.0f)));
}

}  // namespace
}  // namespace voxserve::reach_test
