// Compares boxes that a head decodes from rows of sites with boxes that it decodes from images of the same rows. Where
// there is no site, to_bev writes 0; a score of 0 is below the threshold of a half, so such cells give no box.

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/ops/boxes/decode_boxes.h"
#include "engine/runtime/aligned_bytes.h"
#include "tests/engine/box_matching.h"
#include "tests/engine/executor/detector_networks.h"
#include "tests/engine/executor/expected_scores.h"

namespace voxserve::site_boxes_test {
namespace {

// Returns the detector of sites with a second head, which reads images of the first head's rows.
support::TestModel BothDetector() {
  support::TestModel model = SiteDetector();
  for (const char* branch : {"heatmap", "center", "height", "dim", "rot", "vel"}) {
    absl::StrAppend(&model.graph, "nodes { name: \"", branch, ".image\" inputs: \"", branch, "\" to_bev {} }\n");
  }
  absl::StrAppend(&model.graph, R"(
nodes { name: "of_images" inputs: ["heatmap.image", "center.image", "height.image", "dim.image", "rot.image", "vel.image"]
        center_head_decode { convention: CONVENTION_OPENPCDET class_ids: [0, 1] stride: 2 score_threshold: 0.5
                             max_boxes: 30 has_velocity: true } })");
  model.Replace("score_threshold: 0.3", "score_threshold: 0.5");
  model.Replace("inputs: \"decoded\" nms", "inputs: [\"decoded\", \"of_images\"] nms");
  return model;
}

PointCloud RandomCloud(uint32_t seed, int num_points) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> unit(0, 1);
  std::vector<float> values;
  for (int i = 0; i < num_points; ++i) {
    for (const float size : {6.0f, 5.0f, 4.0f, 1.0f}) values.push_back(unit(random) * size);
  }
  return *PointCloud::FromFloats({"x", "y", "z", "f"}, values.data(), static_cast<size_t>(num_points));
}

class SiteBoxesTest : public ::testing::TestWithParam<support::Device> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Devices, SiteBoxesTest, support::AllDevices(), support::DeviceName);

TEST_P(SiteBoxesTest, AreThoseOfImages) {
  const absl::StatusOr<Graph> graph = LoadTestGraph(BothDetector());
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto runner = DeviceRunner::Create({.device = GetParam()});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const std::vector<PointCloud> clouds = {RandomCloud(1, 60), RandomCloud(2, 0), RandomCloud(3, 150)};
  for (const Variant& variant : VariantsOf(GetParam())) {
    SCOPED_TRACE(variant.name);
    const auto program = (*runner)->Compile(*graph, variant);
    ASSERT_TRUE(program.ok()) << program.status();
    const BatchReport output = (*runner)->Run(*program, {&clouds[0], &clouds[1], &clouds[2]}, false);
    ASSERT_TRUE(output.status.ok()) << output.status;
    for (size_t sample = 0; sample < clouds.size(); ++sample) {
      ASSERT_TRUE(output.samples[sample].status.ok()) << output.samples[sample].status;
      const std::vector<BoxRow> rows = RowsOf(output.samples[sample].boxes());
      ASSERT_EQ(rows.size() % 2, 0u);
      EXPECT_EQ(rows.size() > 8, sample != 1) << sample;
      const auto middle = rows.begin() + static_cast<int64_t>(rows.size() / 2);
      EXPECT_EQ(std::vector<BoxRow>(rows.begin(), middle), std::vector<BoxRow>(middle, rows.end())) << sample;
    }
  }
}

TEST(SiteBoxesProgramTest, HeadsOfImagesAndOfSitesHaveAStepEach) {
  const absl::StatusOr<Graph> graph = LoadTestGraph(BothDetector());
  ASSERT_TRUE(graph.ok()) << graph.status();
  const Program program = Compile(*graph, Plan(), {});
  int num_decoded = 0;
  for (const auto& step : program.steps) {
    num_decoded += dynamic_cast<const DecodeCenterHeadsStep*>(step.get()) != nullptr ? 1 : 0;
  }
  EXPECT_EQ(num_decoded, 2);
}

// On a GPU, the scratch memory must hold the table from cells to sites, and after it the workspace of the decoding.
TEST(SiteBoxesProgramTest, TheTableIsInTheScratch) {
  if constexpr (!kernels::kHasCuda) GTEST_SKIP() << "built without CUDA";
  const absl::StatusOr<Graph> graph = LoadTestGraph(SiteDetector());
  ASSERT_TRUE(graph.ok()) << graph.status();
  kernels::CenterHeadParams decoder{.num_samples = 65, .num_heads = 1};
  for (const GraphNode& node : graph->nodes) {
    if (const auto* op = std::get_if<CenterHeadDecodeOp>(&node.op)) decoder.heads[0] = op->head;
  }
  ASSERT_EQ(decoder.heads[0].num_columns, 12);
  ASSERT_EQ(decoder.heads[0].num_rows, 10);
  const Program program = Compile(*graph, Plan(), {.on_cuda = true});
  const std::vector<int64_t> no_sites(program.levels.size()), no_points(66);
  const std::vector<char*> no_memory(program.buffers.size());
  const StepContext context{
      .num_sites = &no_sites, .buffers = &program.buffers, .buffer_data = &no_memory, .point_begin = &no_points};
  if constexpr (kernels::kHasCuda) {
    const size_t expected =
        static_cast<size_t>(AlignedBytes(65 * 12 * 10 * 4)) + kernels::cuda::CenterHeadWorkspaceBytes(decoder);
    int num_decoded = 0;
    for (const auto& step : program.steps) {
      if (dynamic_cast<const DecodeCenterHeadsStep*>(step.get()) == nullptr) continue;
      ++num_decoded;
      EXPECT_TRUE(step->has_scratch_of_samples());
      EXPECT_EQ(step->ScratchBytes(context), expected);
    }
    EXPECT_EQ(num_decoded, 1);
  }
}

}  // namespace
}  // namespace voxserve::site_boxes_test
