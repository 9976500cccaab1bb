// Compiled programs against an interpreter that runs a graph node by node in double precision, with maps of coordinates
// and no fusion, no shared buffer, no rulebook: whatever the compiler folds, fuses, places or reuses must not show.

#include "engine/graph/compiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/graph/executor.h"

namespace voxserve {
namespace {

using Site = std::array<int32_t, 3>;
using Values = std::map<Site, std::vector<double>>;  // rows of a tensor by site

constexpr int kFine = 0;                        // level 0, the voxels
constexpr int kCoarse = 1;                      // what the graph's rule makes of it
constexpr kernels::Axes kShape = {7, 5, 4, 1};  // of the voxels

// Builds graphs as the loader leaves them. Every method returns the new node's index.
class GraphBuilder {
 public:
  explicit GraphBuilder(uint32_t seed, kernels::CoordinateRule rule = kernels::CoordinateRule::kFloor)
      : random_(seed), rule_(rule) {
    graph_.levels = LevelTable(kShape);
    VoxelizeOp op;
    op.origin = kernels::VoxelOrigin::kRange;
    op.has_range = true;
    for (size_t axis = 0; axis < 3; ++axis) op.range_max[axis] = static_cast<float>(kShape[axis]);
    op.grid_shape = kShape;
    op.voxel_size = {1, 1, 1, 1};
    op.axes = {"x", "y", "z"};
    for (const char* name : {"x", "y", "z", "f"}) op.features.push_back({.name = name, .unit = "1"});
    Add("voxels", {}, op, kFine, 4);
  }

  int Submanifold(int input, int out_channels, bool bias) {
    SparseConvOp op;
    op.sites.geometry = Cube(3, 1, 1);
    op.rulebook = graph_.levels.Rulebook(Level(input), Level(input), op.geometry());
    return AddConv(input, std::move(op), out_channels, bias, Level(input));
  }
  int Down(int input, int out_channels) {
    SparseConvOp op;
    op.kind = SparseConvOp::Kind::kStrided;
    op.sites.rule = rule_;
    op.sites.geometry = rule_ == kernels::CoordinateRule::kFloor ? Cube(2, 2, 0) : Cube(3, 2, 1);
    const int level = graph_.levels.Apply(kFine, op.sites);
    op.rulebook = graph_.levels.Rulebook(kFine, level, op.geometry());
    return AddConv(input, std::move(op), out_channels, false, level);
  }
  int Up(int input, int down, int out_channels) {
    SparseConvOp op = std::get<SparseConvOp>(graph_.nodes[static_cast<size_t>(down)].op);
    op.kind = SparseConvOp::Kind::kInverse;
    op.paired_with = down;
    op.bias = nullptr;
    return AddConv(input, std::move(op), out_channels, true, kFine);
  }
  int Norm(int input) {
    const int channels = Channels(input);
    std::vector<float> variance(static_cast<size_t>(channels));
    for (float& v : variance) v = std::uniform_real_distribution<float>(0.5f, 2.0f)(random_);
    return Add("norm", {input},
               BatchNormOp{.epsilon = 1e-3f,
                           .weight = RandomTensor({channels}),
                           .bias = RandomTensor({channels}),
                           .running_mean = RandomTensor({channels}),
                           .running_var = std::make_shared<HostTensor>(HostTensor{{channels}, variance})},
               Level(input), channels);
  }
  int Relu(int input) { return Add("relu", {input}, ActivationOp(), Level(input), Channels(input)); }
  int Sum(int a, int b) { return Add("add", {a, b}, AddOp(), Level(a), Channels(a)); }
  int Concat(const std::vector<int>& inputs) {
    int channels = 0;
    for (const int input : inputs) channels += Channels(input);
    return Add("concat", inputs, ConcatOp(), Level(inputs[0]), channels);
  }
  int Linear(int input, int out_channels, bool bias) {
    const int in_channels = Channels(input);
    return Add("linear", {input},
               LinearOp{.in_channels = in_channels,
                        .out_channels = out_channels,
                        .weight = RandomTensor({out_channels, in_channels}),
                        .bias = bias ? RandomTensor({out_channels}) : nullptr},
               Level(input), out_channels);
  }

  // Ends the graph: scores and labels of `head`, on the fine level.
  Graph Finish(int head) {
    AddScores(head);
    AddLabels(head);
    return FinishOutputs();
  }
  void AddScores(int head) {
    graph_.scores_output = Add("scores", {head, 0}, VoxelToPointOp(), kFine, Channels(head));
    graph_.nodes.back().is_per_point = true;
  }
  void AddLabels(int head) {
    graph_.num_classes = Channels(head);
    const int argmax = Add("argmax", {head}, ArgmaxOp{.num_classes = Channels(head)}, kFine, 1);
    graph_.nodes.back().is_labels = true;
    graph_.labels_output = Add("labels", {argmax, 0}, VoxelToPointOp(), kFine, 1);
    graph_.nodes.back().is_per_point = true;
    graph_.nodes.back().is_labels = true;
  }
  // Takes out the nodes that nothing reads.
  Graph FinishOutputs() {
    RemoveUnread();
    return graph_;
  }

  int Level(int node) const { return graph_.nodes[static_cast<size_t>(node)].level; }
  int Channels(int node) const { return graph_.nodes[static_cast<size_t>(node)].channels; }
  int num_nodes() const { return static_cast<int>(graph_.nodes.size()); }

 private:
  static kernels::ConvGeometry Cube(int size, int stride, int padding) {
    return {.dimension = 3,
            .kernel_size = {size, size, size, 1},
            .stride = {stride, stride, stride, 1},
            .padding = {padding, padding, padding, 0}};
  }
  HostTensorPtr RandomTensor(const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    HostTensor tensor{shape, std::vector<float>(static_cast<size_t>(count))};
    for (float& value : tensor.values) value = std::uniform_real_distribution<float>(-0.5f, 0.5f)(random_);
    return std::make_shared<HostTensor>(std::move(tensor));
  }
  int AddConv(int input, SparseConvOp op, int out_channels, bool bias, int level) {
    op.in_channels = Channels(input);
    op.out_channels = out_channels;
    op.weight = RandomTensor({op.geometry().NumOffsets(), op.in_channels, out_channels});
    if (bias) op.bias = RandomTensor({out_channels});
    return Add("conv", {input}, std::move(op), level, out_channels);
  }
  int Add(const std::string& name, std::vector<int> inputs, GraphOp op, int level, int channels) {
    GraphNode node;
    node.name = absl::StrCat(name, graph_.nodes.size());
    node.inputs = std::move(inputs);
    node.op = std::move(op);
    node.level = level;
    node.channels = channels;
    graph_.nodes.push_back(std::move(node));
    return num_nodes() - 1;
  }
  void RemoveUnread() {
    std::vector<bool> is_read(graph_.nodes.size());
    is_read[static_cast<size_t>(graph_.scores_output)] = is_read[static_cast<size_t>(graph_.labels_output)] = true;
    for (size_t i = graph_.nodes.size(); i-- > 0;) {
      if (!is_read[i]) continue;
      for (const int input : graph_.nodes[i].inputs) is_read[static_cast<size_t>(input)] = true;
      if (const auto* conv = std::get_if<SparseConvOp>(&graph_.nodes[i].op); conv && conv->paired_with >= 0) {
        is_read[static_cast<size_t>(conv->paired_with)] = true;
      }
    }
    std::vector<int> moved(graph_.nodes.size(), -1);
    std::vector<GraphNode> kept;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (!is_read[i]) continue;
      moved[i] = static_cast<int>(kept.size());
      GraphNode node = graph_.nodes[i];
      for (int& input : node.inputs) input = moved[static_cast<size_t>(input)];
      if (auto* conv = std::get_if<SparseConvOp>(&node.op); conv && conv->paired_with >= 0) {
        conv->paired_with = moved[static_cast<size_t>(conv->paired_with)];
      }
      kept.push_back(std::move(node));
    }
    graph_.nodes = std::move(kept);
    graph_.scores_output = moved[static_cast<size_t>(graph_.scores_output)];
    graph_.labels_output = moved[static_cast<size_t>(graph_.labels_output)];
  }

  std::mt19937 random_;
  const kernels::CoordinateRule rule_;
  Graph graph_;
};

// One point a voxel: x, y, z are the site and the features are x, y, z, f.
struct Points {
  std::vector<float> values;  // [n, 4]
  size_t size() const { return values.size() / 4; }
};

Points RandomPoints(uint32_t seed) {
  std::mt19937 random(seed);
  std::set<Site> sites = {{0, 0, 0}};  // so that the minimum is 0 and sites are the points
  std::uniform_int_distribution<int32_t> x(0, 6), y(0, 4), z(0, 3);
  for (int i = 0; i < 40; ++i) sites.insert({x(random), y(random), z(random)});
  Points points;
  std::uniform_real_distribution<float> f(-1, 1);
  for (const Site& site : sites) {
    for (const int32_t c : site) points.values.push_back(static_cast<float>(c));
    points.values.push_back(f(random));
  }
  return points;
}

class Interpreter {
 public:
  Interpreter(const Graph& graph, const Points& points) : graph_(graph) {
    for (size_t i = 0; i < points.size(); ++i) {
      const float* p = points.values.data() + i * 4;
      const Site site = {static_cast<int32_t>(p[0]), static_cast<int32_t>(p[1]), static_cast<int32_t>(p[2])};
      voxels_[site] = {p[0], p[1], p[2], p[3]};
    }
  }

  const Values& Evaluate(int node) {
    const auto found = values_.find(node);
    if (found != values_.end()) return found->second;
    return values_[node] = Compute(graph_.nodes[static_cast<size_t>(node)]);
  }

 private:
  Values Compute(const GraphNode& node) {
    if (std::holds_alternative<VoxelizeOp>(node.op)) return voxels_;
    const Values in = Evaluate(node.inputs[0]);
    if (const auto* conv = std::get_if<SparseConvOp>(&node.op)) return Convolve(*conv, node, in);
    Values out = in;
    for (auto& [site, row] : out) {
      if (const auto* linear = std::get_if<LinearOp>(&node.op)) {
        std::vector<double> result(static_cast<size_t>(linear->out_channels));
        for (size_t o = 0; o < result.size(); ++o) {
          result[o] = linear->bias ? linear->bias->values[o] : 0.0;
          for (size_t i = 0; i < row.size(); ++i) result[o] += row[i] * linear->weight->values[o * row.size() + i];
        }
        row = result;
      } else if (const auto* norm = std::get_if<BatchNormOp>(&node.op)) {
        for (size_t c = 0; c < row.size(); ++c) {
          row[c] = (row[c] - norm->running_mean->values[c]) /
                       std::sqrt(double{norm->running_var->values[c]} + double{norm->epsilon}) *
                       norm->weight->values[c] +
                   norm->bias->values[c];
        }
      } else if (std::holds_alternative<ActivationOp>(node.op)) {
        for (double& value : row) value = std::max(value, 0.0);
      } else if (std::holds_alternative<AddOp>(node.op)) {
        const std::vector<double> other = Evaluate(node.inputs[1]).at(site);
        for (size_t c = 0; c < row.size(); ++c) row[c] += other[c];
      } else if (std::holds_alternative<ConcatOp>(node.op)) {
        for (size_t i = 1; i < node.inputs.size(); ++i) {
          const std::vector<double> other = Evaluate(node.inputs[i]).at(site);
          row.insert(row.end(), other.begin(), other.end());
        }
      }
    }
    return out;
  }

  // The coarse sites by the rule's definition; all sites here are 0 or more, and the sample's minimum is 0.
  std::set<Site> CoarseSites(const SiteRule& rule) const {
    std::set<Site> sites;
    for (const auto& [site, unused] : voxels_) {
      if (rule.rule == kernels::CoordinateRule::kFloor) {
        sites.insert({site[0] / 2, site[1] / 2, site[2] / 2});
        continue;
      }
      for (int32_t k = 0; k < rule.geometry.NumOffsets(); ++k) {
        const kernels::Axes delta = rule.geometry.Delta(k);
        Site out;
        bool exists = true;
        for (size_t axis = 0; axis < 3; ++axis) {
          const int32_t reached = site[axis] - delta[axis];
          out[axis] = reached / 2;
          exists &= reached >= 0 && reached % 2 == 0;
          // (shape + 2 * 1 - (3 - 1) - 1) / 2 + 1
          if (rule.rule == kernels::CoordinateRule::kPadded) exists &= out[axis] < (kShape[axis] - 1) / 2 + 1;
        }
        if (exists) sites.insert(out);
      }
    }
    return sites;
  }

  Values Convolve(const SparseConvOp& conv, const GraphNode& node, const Values& in) {
    if (conv.kind == SparseConvOp::Kind::kStrided) coarse_ = CoarseSites(conv.sites);
    Values out;
    const auto add_site = [&](const Site& site) {
      std::vector<double>& row = out[site];
      row.assign(static_cast<size_t>(conv.out_channels), 0.0);
      if (conv.bias) row.assign(conv.bias->values.begin(), conv.bias->values.end());
    };
    if (node.level == kCoarse) {
      for (const Site& site : coarse_) add_site(site);
    } else {
      for (const auto& [site, unused] : voxels_) add_site(site);
    }
    const kernels::ConvGeometry& geometry = conv.geometry();
    for (auto& [site, row] : out) {
      for (int32_t k = 0; k < geometry.NumOffsets(); ++k) {
        const kernels::Axes delta = geometry.Delta(k);
        Site from;
        bool reaches = true;
        for (size_t axis = 0; axis < 3; ++axis) {
          if (conv.kind == SparseConvOp::Kind::kInverse) {  // site = 2 * from + delta
            reaches &= (site[axis] - delta[axis]) % 2 == 0;
            from[axis] = (site[axis] - delta[axis]) / 2;
          } else {
            from[axis] = geometry.stride[axis] * site[axis] + delta[axis];
          }
        }
        const auto found = reaches ? in.find(from) : in.end();
        if (found == in.end()) continue;
        for (size_t i = 0; i < found->second.size(); ++i) {
          for (size_t o = 0; o < row.size(); ++o) {
            row[o] += found->second[i] *
                      conv.weight->values[(static_cast<size_t>(k) * found->second.size() + i) * row.size() + o];
          }
        }
      }
    }
    return out;
  }

  const Graph& graph_;
  Values voxels_;
  std::set<Site> coarse_;  // of the strided convolutions, which share their level
  std::map<int, Values> values_;
};

void ExpectEqual(const Graph& graph, uint32_t seed, Dataflow dataflow,
                 kernels::MapSearch map_search = kernels::MapSearch::kMerge, int64_t max_grid_bytes = 1 << 20) {
  const Points points = RandomPoints(seed);
  const auto cloud = PointCloud::FromFloats({"x", "y", "z", "f"}, points.values.data(), points.size());
  ASSERT_TRUE(cloud.ok());
  Plan plan;
  plan.fallback.dataflow = dataflow;
  plan.fallback.map_search = map_search;
  const Program program = Compile(graph, plan, 1);
  kernels::ThreadPool pool(2);
  ExecutionContext context{.device = "cpu", .pool = &pool};
  Executor executor(&context);
  const BatchOutput output =
      executor.Run(program, {{.cloud = &*cloud, .return_scores = true}}, {.max_grid_bytes = max_grid_bytes});
  ASSERT_TRUE(output.status.ok()) << output.status;
  EXPECT_EQ(output.grid_fallbacks > 0, map_search == kernels::MapSearch::kGrid && max_grid_bytes == 0);
  const SampleOutput& sample = output.samples[0];
  ASSERT_TRUE(sample.status.ok()) << sample.status;

  Interpreter interpreter(graph, points);
  const auto input_of = [&](int node) { return graph.nodes[static_cast<size_t>(node)].inputs[0]; };
  const Values expected = interpreter.Evaluate(input_of(graph.scores_output));
  const Values labelled = interpreter.Evaluate(input_of(input_of(graph.labels_output)));
  const auto classes = static_cast<size_t>(graph.num_classes);
  ASSERT_EQ(sample.scores.size(), points.size() * classes);
  for (size_t i = 0; i < points.size(); ++i) {
    const float* p = points.values.data() + i * 4;
    const Site site = {static_cast<int32_t>(p[0]), static_cast<int32_t>(p[1]), static_cast<int32_t>(p[2])};
    const std::vector<double>& row = expected.at(site);
    for (size_t c = 0; c < classes; ++c) {
      ASSERT_NEAR(sample.scores[i * classes + c], row[c], 1e-3 * std::max(1.0, std::abs(row[c]))) << i << " " << c;
    }
    std::vector<double> values = labelled.at(site);
    const auto best = std::max_element(values.begin(), values.end());
    const auto label = best - values.begin();
    const double best_value = *best;
    *best = -std::numeric_limits<double>::infinity();
    const double second = *std::max_element(values.begin(), values.end());
    if (best_value - second > 1e-3 * std::max(1.0, std::abs(best_value))) {
      EXPECT_EQ(sample.labels[i], label) << i;
    }
  }
}

int CountSteps(const Graph& graph) { return static_cast<int>(Compile(graph, Plan(), 1).steps.size()); }

TEST(CompilerTest, NormActivationAndResidualCostNoStep) {
  GraphBuilder b(1);
  const int stem = b.Relu(b.Norm(b.Submanifold(0, 8, false)));
  const int block = b.Norm(b.Submanifold(stem, 8, true));
  const Graph graph = b.Finish(b.Linear(b.Relu(b.Sum(block, stem)), 3, true));
  // voxel features, two convolutions, linear, argmax and the two outputs
  EXPECT_EQ(CountSteps(graph), 7);
  ExpectEqual(graph, 1, Dataflow::kFetchOnDemand);
}

TEST(CompilerTest, OfTwoSummandsTheLaterOneAbsorbsTheSum) {
  GraphBuilder b(2);
  const int stem = b.Submanifold(0, 4, false);
  const int main = b.Norm(b.Submanifold(stem, 8, false));
  const int shortcut = b.Norm(b.Linear(stem, 8, false));
  const Graph graph = b.Finish(b.Linear(b.Relu(b.Sum(main, shortcut)), 3, true));
  EXPECT_EQ(CountSteps(graph), 8);
  ExpectEqual(graph, 2, Dataflow::kFetchOnDemand);
}

TEST(CompilerTest, ValueThatIsReadTwiceIsNotFusedAway) {
  GraphBuilder b(3);
  const int conv = b.Submanifold(0, 6, true);
  const int norm = b.Norm(conv);  // conv is read by norm and by the sum
  const Graph graph = b.Finish(b.Linear(b.Sum(b.Relu(norm), conv), 3, false));
  ExpectEqual(graph, 3, Dataflow::kFetchOnDemand);
}

TEST(CompilerTest, SumOfAValueWithItself) {
  GraphBuilder b(4);
  const int conv = b.Submanifold(0, 6, true);
  ExpectEqual(b.Finish(b.Linear(b.Sum(conv, conv), 3, false)), 4, Dataflow::kFetchOnDemand);
}

TEST(CompilerTest, ConcatenationsAreWrittenInPlaceAndNest) {
  GraphBuilder b(5);
  const int skip = b.Relu(b.Submanifold(0, 5, true));  // odd channels: columns that are not aligned
  const int down = b.Down(skip, 8);
  const int up = b.Relu(b.Up(down, down, 7));
  const int inner = b.Concat({up, skip});
  const int outer = b.Concat({b.Submanifold(inner, 3, false), inner});
  const Graph graph = b.Finish(b.Linear(outer, 4, true));
  // voxel features, skip, down, up, conv, linear, argmax, two outputs: no copy
  EXPECT_EQ(CountSteps(graph), 9);
  ExpectEqual(graph, 5, Dataflow::kFetchOnDemand);
}

TEST(CompilerTest, ConcatenationCopiesWhatCannotBeWrittenInPlace) {
  GraphBuilder b(6);
  const int conv = b.Submanifold(0, 5, true);
  const int twice = b.Concat({conv, 0, conv});  // conv twice, and the voxels' own features
  const int again = b.Concat({b.Relu(twice), conv});
  const Graph graph = b.Finish(b.Linear(again, 4, true));
  ExpectEqual(graph, 6, Dataflow::kFetchOnDemand);
}

// Layers that scores alone need may stand after the labels in the file: memory of the labels' logits is not theirs yet.
TEST(CompilerTest, OutputsOfDifferentHeadsInAnyOrder) {
  for (const bool labels_first : {true, false}) {
    GraphBuilder b(8);
    const int conv = b.Submanifold(0, 32, true);
    if (labels_first) b.AddLabels(b.Linear(conv, 3, true));
    b.AddScores(b.Linear(b.Relu(b.Linear(conv, 3, true)), 3, true));
    if (!labels_first) b.AddLabels(b.Linear(conv, 3, true));
    ExpectEqual(b.FinishOutputs(), 8, Dataflow::kFetchOnDemand);
  }
}

TEST(CompilerTest, LabelsCanBeWide) {
  GraphBuilder b(7);
  const Graph graph = b.Finish(b.Linear(0, 3, true));
  EXPECT_EQ(Compile(graph, Plan(), 2).label_dtype, DType::kUint16);
  EXPECT_EQ(Compile(graph, Plan(), 1).label_dtype, DType::kUint8);
}

class RandomGraphTest : public testing::TestWithParam<uint32_t> {};

TEST_P(RandomGraphTest, ProgramEqualsInterpreter) {
  const uint32_t seed = GetParam();
  std::mt19937 random(seed);
  const auto pick = [&](int count) { return std::uniform_int_distribution<int>(0, count - 1)(random); };
  const kernels::CoordinateRule rules[] = {kernels::CoordinateRule::kFloor, kernels::CoordinateRule::kPadded,
                                           kernels::CoordinateRule::kExpand};
  GraphBuilder b(seed, rules[seed % 3]);
  const int down = b.Down(b.Submanifold(0, 6, true), 6);
  std::vector<int> nodes = {0, down - 1, down};
  for (int i = 0; i < 25; ++i) {
    const int input = nodes[static_cast<size_t>(pick(static_cast<int>(nodes.size())))];
    std::vector<int> alike, same_level;
    for (const int node : nodes) {
      if (b.Level(node) == b.Level(input)) same_level.push_back(node);
      if (b.Level(node) == b.Level(input) && b.Channels(node) == b.Channels(input)) alike.push_back(node);
    }
    const int channels = 1 + pick(9);
    switch (pick(8)) {
      case 0:
        nodes.push_back(b.Submanifold(input, channels, pick(2) == 0));
        break;
      case 1:
        nodes.push_back(b.Norm(input));
        break;
      case 2:
        nodes.push_back(b.Relu(input));
        break;
      case 3:
      case 4:
        nodes.push_back(b.Sum(input, alike[static_cast<size_t>(pick(static_cast<int>(alike.size())))]));
        break;
      case 5:
        nodes.push_back(b.Concat({input, same_level[static_cast<size_t>(pick(static_cast<int>(same_level.size())))]}));
        break;
      case 6:
        nodes.push_back(b.Linear(input, channels, pick(2) == 0));
        break;
      default:
        nodes.push_back(b.Level(input) == kFine ? b.Down(input, channels) : b.Up(input, down, channels));
    }
  }
  // The last two nodes of each level feed the head, so that most of the graph is read.
  int fine = 0, coarse = down;
  for (const int node : nodes) (b.Level(node) == kFine ? fine : coarse) = node;
  const int trunk = b.Concat({fine, b.Up(coarse, down, 4)});
  if (pick(2) == 0) {
    b.AddLabels(b.Linear(trunk, 5, true));
    b.AddScores(b.Linear(b.Relu(b.Linear(trunk, 7, true)), 5, true));
  } else {
    b.AddScores(b.Linear(trunk, 5, true));
    b.AddLabels(b.Linear(b.Norm(fine), 5, true));
  }
  const Graph graph = b.FinishOutputs();
  ExpectEqual(graph, seed, Dataflow::kFetchOnDemand);
  ExpectEqual(graph, seed, Dataflow::kGatherGemmScatter);
  ExpectEqual(graph, seed, Dataflow::kFetchOnDemand, kernels::MapSearch::kGrid);
  ExpectEqual(graph, seed, Dataflow::kFetchOnDemand, kernels::MapSearch::kHash);
  ExpectEqual(graph, seed, Dataflow::kFetchOnDemand, kernels::MapSearch::kGrid, /*max_grid_bytes=*/0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomGraphTest, testing::Range(100u, 160u));

}  // namespace
}  // namespace voxserve
