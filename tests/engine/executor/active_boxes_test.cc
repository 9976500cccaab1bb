// Tests that networks of large images give the same bytes whether their convolutions leave out the boxes that do not
// depend on sites or not (kernels/image/sites/active_boxes.h), and which convolutions do.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/compiler/compiler.h"
#include "engine/ops/image/conv2d.h"
#include "engine/ops/image/list_active_boxes.h"
#include "tests/engine/executor/fusion_testing.h"
#include "tests/engine/executor/graph_builder.h"
#include "tests/engine/executor/random_points.h"

namespace voxserve::active_boxes_test {
namespace {

// So large that a GPU of 132 multiprocessors has boxes enough in half of the rows and columns too.
constexpr kernels::Axes kLargeShape = {480, 450, 1, 1};
constexpr kernels::Conv2dGeometry kPlain{.kernel_size = {3, 3}, .padding = {1, 1}};
constexpr kernels::Conv2dGeometry kHalving{.kernel_size = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
constexpr kernels::Conv2dGeometry kDoubling{.kernel_size = {2, 2}, .stride = {2, 2}, .is_transposed = true};

// A backbone of images as detectors have: residual blocks at two sizes, a transposed convolution, a concatenation.
Graph Backbone(const kernels::Axes& shape) {
  GraphBuilder b(31, kernels::CoordinateRule::kFloor, /*dimension=*/2, shape);
  const auto block = [&](int in, int channels) {
    const int inner = b.Relu(b.Norm(b.Conv2d(in, kPlain, channels, false)));
    return b.Relu(b.Sum(b.Conv2d(inner, kPlain, channels, true), in));
  };
  const int first = b.Relu(b.Conv2d(b.ToDense(b.Relu(b.Linear(0, 64, true))), kPlain, 64, true));
  const int fine = block(first, 64);
  const int coarse = block(b.Relu(b.Conv2d(fine, kHalving, 128, true)), 128);
  const int up = b.Relu(b.Conv2d(coarse, kDoubling, 64, true));
  return b.Finish(b.FromDense(b.Conv2d(b.Concat({fine, up}), kPlain, 40, true), 0));
}

// Returns points in clusters, far from each other.
PointCloud Clusters(int num_clusters, uint32_t seed) {
  std::mt19937 random(seed);
  std::set<Site> sites;
  for (int i = 0; i < num_clusters; ++i) {
    const auto x = static_cast<int32_t>(random() % 460), y = static_cast<int32_t>(random() % 430);
    for (int k = 0; k < 30; ++k) {
      sites.insert({x + static_cast<int32_t>(random() % 20), y + static_cast<int32_t>(random() % 20), 0});
    }
  }
  return CloudOf(PointsAt(sites, random));
}

template <typename WantedStep>
int64_t Count(const Program& program, const auto& is_wanted) {
  return std::count_if(program.steps.begin(), program.steps.end(), [&](const std::unique_ptr<Step>& step) {
    const auto* const wanted = dynamic_cast<const WantedStep*>(step.get());
    return wanted != nullptr && is_wanted(*wanted);
  });
}

TEST(ActiveBoxesCompilerTest, OneStepListsTheBoxesOfAllConvolutionsOfAnImage) {
  const Graph graph = Backbone(kLargeShape);
  const auto lists = [](const ListActiveBoxesStep&) { return true; };
  const auto leaves_out = [](const Conv2dStep& step) { return step.options().active.lists != nullptr; };
  const CompileTarget half{.on_cuda = true, .dtype = DType::kFloat16, .leaves_out_boxes = true};
  const Program program = Compile(graph, Plan(), half);
  EXPECT_EQ(Count<ListActiveBoxesStep>(program, lists), 1);
  EXPECT_EQ(Count<Conv2dStep>(program, leaves_out), 7) << "all but the transposed one";
  for (const Buffer& buffer : program.buffers) EXPECT_GE(buffer.first_step, 0) << "no step writes a buffer";
  for (const CompileTarget& other : {CompileTarget{.on_cuda = true, .dtype = DType::kFloat16}, CompileTarget(),
                                     CompileTarget{.on_cuda = true, .leaves_out_boxes = true}}) {
    const Program whole = Compile(graph, Plan(), other);
    EXPECT_EQ(Count<ListActiveBoxesStep>(whole, lists), 0);
    EXPECT_EQ(Count<Conv2dStep>(whole, leaves_out), 0);
  }
}

TEST(ActiveBoxesTest, NetworksHaveTheBytesOfWholeImagesCuda) {
  SKIP_WITHOUT(support::Device::kCuda);
  const auto runner = DeviceRunner::Create({.device = support::Device::kCuda});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const Graph graph = Backbone(kLargeShape);
  for (const auto precision : {ModelConfig::Precision::kFloat16, ModelConfig::Precision::kBfloat16}) {
    Variant variant{.device = support::Device::kCuda,
                    .precision = precision,
                    .plan = DefaultPlanOf(support::Device::kCuda, precision)};
    const auto by_boxes = (*runner)->Compile(graph, variant);
    variant.leaves_out_boxes = false;
    const auto whole = (*runner)->Compile(graph, variant);
    ASSERT_TRUE(by_boxes.ok() && whole.ok()) << by_boxes.status() << whole.status();
    // The samples of a batch have boxes of their own. The first one has a single site.
    std::mt19937 random(1);
    const PointCloud single = CloudOf(PointsAt({{470, 3, 0}}, random)), few = Clusters(4, 18);
    const BatchReport together = (*runner)->Run(*by_boxes, {&single, &few, &single}, /*return_scores=*/true);
    const BatchReport alone = (*runner)->Run(*whole, {&single, &few, &single}, /*return_scores=*/true);
    ASSERT_TRUE(together.status.ok() && alone.status.ok()) << together.status << alone.status;
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(together.samples[i].scores(), alone.samples[i].scores()) << i;
    for (const int num_clusters : {0, 1, 3, 12, 300}) {
      SCOPED_TRACE(num_clusters);
      const PointCloud cloud = Clusters(num_clusters, 17);
      const std::vector<float> expected = ScoresOf(**runner, *whole, cloud);
      EXPECT_EQ(ScoresOf(**runner, *by_boxes, cloud), expected);
      for (int replay = 0; replay < 4; ++replay) {
        const BatchReport report = (*runner)->Run(*by_boxes, {&cloud}, /*return_scores=*/true, {}, {.captures = true});
        ASSERT_TRUE(report.status.ok()) << report.status;
        const absl::Span<const float> scores = report.samples[0].scores();
        EXPECT_TRUE(std::equal(scores.begin(), scores.end(), expected.begin(), expected.end())) << replay;
      }
    }
  }
}

}  // namespace
}  // namespace voxserve::active_boxes_test
