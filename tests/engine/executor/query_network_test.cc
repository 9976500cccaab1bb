// Tests queries in networks against an interpreter of graphs: a select of an image's peaks, what gathers read there,
// and the boxes that a query_decode makes of them. The kernels' own tests compare each kernel with plain loops.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/ops/boxes/query_decode.h"
#include "engine/ops/boxes/select.h"
#include "tests/engine/box_matching.h"
#include "tests/engine/executor/detector_networks.h"
#include "tests/engine/executor/expected_scores.h"
#include "tests/engine/executor/program_comparison.h"
#include "tests/engine/executor/same_bytes.h"

namespace voxserve::query_network_test {
namespace {

using kernels::GatherOf;
using kernels::PeakBorder;

constexpr kernels::Conv2dGeometry kSame3x3 = {.kernel_size = {3, 3}, .padding = {1, 1}};
constexpr PeakBorder kBorders[] = {PeakBorder::kDrop, PeakBorder::kKeep, PeakBorder::kPad};

class QueryNetworkTest : public testing::TestWithParam<support::Device> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Devices, QueryNetworkTest, support::AllDevices(), support::DeviceName);

// Ends the graph with scores of points that depend on every row of the queries.
Graph FinishWithRows(GraphBuilder& b, int stem, int queries) {
  const int back = b.Attention(b.Linear(stem, b.Channels(queries), true), queries, queries, 1, 1);
  return b.Finish(b.Linear(back, 3, true));
}

// A decoder layer as TransFusion has it: queries of the features, classes and positions at the peaks, which attend to
// each other and to the cells of the image.
TEST_P(QueryNetworkTest, AttendToTheCellsOfAnImage) {
  for (const PeakBorder border : kBorders) {
    for (const int32_t k : {1, 9, 40}) {
      SCOPED_TRACE(testing::Message() << "border " << static_cast<int>(border) << ", " << k << " queries");
      GraphBuilder b(static_cast<uint32_t>(k));
      const int stem = b.Submanifold(0, 6, true);
      const int image = b.Relu(b.Conv2d(b.ToBev(stem), kSame3x3, 8, true));
      kernels::SelectPeaksParams parameters{.peak_kernel = 3, .border = border, .k = k};
      parameters.classes_without_test[1] = true;
      const int select = b.Select(b.Conv2d(image, kSame3x3, 3, true), parameters);
      const int features =
          b.Sum(b.Gather(GatherOf::kFeatures, select, image), b.Embedding(b.Gather(GatherOf::kClass, select), 0, 3, 8));
      const int queries = b.Sum(features, b.Linear(b.Gather(GatherOf::kPosition, select), 8, true));
      const int mixed = b.RowNorm(b.Sum(features, b.Attention(queries, queries, queries, 2, 0.5f)),
                                  kernels::RowNorm::kLayerNorm, 1e-5f, true);
      const int keys = b.Sum(image, b.Constant(image, 8));
      const int cross = b.Sum(mixed, b.Attention(mixed, keys, b.Linear(keys, 8, true), 4, 0.7f));
      const int scored = b.Elementwise(cross, b.Gather(GatherOf::kScore, select), kernels::Elementwise::kMultiply);
      ExpectEqual(GetParam(), FinishWithRows(b, stem, scored), static_cast<uint32_t>(k));
    }
  }
}

// Cells without voxels around them have equal logits, so their order decides. k is the number of all pairs.
TEST_P(QueryNetworkTest, TiesAtManyCellsAndAllPairs) {
  for (const PeakBorder border : kBorders) {
    GraphBuilder b(60);
    const int bev = b.ToBev(b.Linear(0, 2, true));
    const int logits = b.Linear(bev, 2, true);
    const auto num_pairs = static_cast<int32_t>(b.Grid(logits).num_cells() * 2);
    for (const int32_t k : {30, num_pairs}) {
      GraphBuilder again = b;
      const int select = again.Select(logits, {.peak_kernel = 3, .border = border, .k = k});
      const int rows =
          again.Concat({again.Gather(GatherOf::kPosition, select), again.Gather(GatherOf::kScore, select),
                        again.Gather(GatherOf::kClass, select), again.Gather(GatherOf::kFeatures, select, bev)});
      ExpectEqual(GetParam(), FinishWithRows(again, 0, again.Linear(rows, 5, true)), 60);
    }
  }
}

// The logarithm makes logits of NaN, and of -infinity where the sum is 0.
TEST_P(QueryNetworkTest, LogitsThatAreNotFinite) {
  for (const PeakBorder border : kBorders) {
    GraphBuilder b(70);
    const int bev = b.ToBev(b.Linear(0, 2, true));
    const int logits = b.Activation(b.Conv2d(bev, kSame3x3, 2, false), kernels::ActivationFunction::kLog);
    const int select = b.Select(logits, {.peak_kernel = 3, .border = border, .k = 25});
    const int rows = b.Concat({b.Gather(GatherOf::kPosition, select), b.Gather(GatherOf::kScore, select)});
    ExpectEqual(GetParam(), FinishWithRows(b, 0, b.Linear(rows, 5, true)), 70);
  }
}

struct Detector {
  Graph graph;
  std::vector<int> rows;  // the query_decode's inputs: the select, heatmap, center, ...
};

// max_boxes: of the query_decode. has_nms: false: the query_decode is the output.
Detector QueryBoxes(uint32_t seed, int32_t max_boxes, bool has_nms) {
  GraphBuilder b(seed);
  const int image = b.Relu(b.Conv2d(b.ToBev(b.Relu(b.Submanifold(0, 6, true))), kSame3x3, 8, true));
  const int logits = b.Conv2d(image, kSame3x3, 3, true);
  const int select = b.Select(logits, {.peak_kernel = 3, .border = PeakBorder::kKeep, .k = 24});
  const int queries = b.Relu(b.Linear(b.Gather(GatherOf::kFeatures, select, image), 8, true));
  std::vector<int> rows;
  for (const int channels : {3, 2, 1, 3, 2, 2}) rows.push_back(b.Linear(queries, channels, true));
  kernels::QueryDecodeParams head{.class_ids = {4, 0, 2},
                                  .score_thresholds = {0.1f, 0.15f, 0.05f},
                                  .center_min = {-2, -2, -3},
                                  .center_max = {7, 6, 3},
                                  .bounds_bottom = true,
                                  .max_boxes = max_boxes};
  int boxes = b.QueryDecode(select, rows, head);
  if (has_nms) boxes = b.Nms({boxes}, {.iou_threshold = 1, .max_boxes_out = max_boxes});
  Detector detector{b.FinishBoxes(boxes, 5), {select}};
  detector.rows.insert(detector.rows.end(), rows.begin(), rows.end());
  return detector;
}

// Decodes the interpreter's rows with the CPU's kernel.
std::vector<float> ExpectedBoxes(const Detector& detector, const Points& points) {
  Interpreter interpreter(detector.graph, points);
  std::vector<std::vector<float>> values;
  for (const int node : detector.rows) {
    values.emplace_back();
    for (const auto& [query, row] : interpreter.Evaluate(node)) {
      values.back().insert(values.back().end(), row.begin(), row.end());
    }
  }
  kernels::QueryDecodeParams params;
  for (const GraphNode& node : detector.graph.nodes) {
    if (const auto* op = std::get_if<QueryDecodeOp>(&node.op)) params = op->head;
  }
  std::vector<float> boxes(static_cast<size_t>(params.max_boxes) * kernels::kBoxPitch);
  params.num_samples = 1;
  params.selection = values[0].data();
  params.heatmap = {.data = values[1].data(), .pitch = 3};
  params.center = {.data = values[2].data(), .pitch = 2};
  params.height = {.data = values[3].data(), .pitch = 1};
  params.dim = {.data = values[4].data(), .pitch = 3};
  params.rot = {.data = values[5].data(), .pitch = 2};
  params.vel = {.data = values[6].data(), .pitch = 2};
  params.boxes = boxes.data();
  kernels::ThreadPool pool(1);
  kernels::cpu::DecodeQueries(params, pool);
  return boxes;
}

TEST_P(QueryNetworkTest, BoxesOfQueries) {
  const auto runner = DeviceRunner::Create({.device = GetParam()});
  ASSERT_TRUE(runner.ok()) << runner.status();
  int num_compared = 0;
  for (const uint32_t seed : {80u, 81u, 82u}) {
    for (const bool has_nms : {false, true}) {
      const int32_t max_boxes = has_nms ? 24 : 10;
      const Detector detector = QueryBoxes(seed, max_boxes, has_nms);
      const Points points = RandomPoints(seed);
      const PointCloud cloud = CloudOf(points);
      const auto program = (*runner)->Compile(detector.graph, {.device = GetParam()});
      ASSERT_TRUE(program.ok()) << program.status();
      const BatchReport output = (*runner)->Run(*program, {&cloud}, false);
      ASSERT_TRUE(output.status.ok()) << output.status;
      ASSERT_TRUE(output.samples[0].status.ok()) << output.samples[0].status;
      const std::vector<Box> boxes = output.samples[0].boxes();
      const std::vector<float> expected = ExpectedBoxes(detector, points);
      for (int32_t i = 0; i < max_boxes; ++i) {
        const Box box = BoxOf(&expected[static_cast<size_t>(i * kernels::kBoxPitch)]);
        ASSERT_EQ(box.score != kernels::kNoBox, static_cast<size_t>(i) < boxes.size()) << i;
        if (box.score == kernels::kNoBox) break;
        const Box& found = boxes[static_cast<size_t>(i)];
        EXPECT_EQ(found.query, box.query) << i;
        EXPECT_EQ(found.class_id, box.class_id) << i;
        for (float Box::*const field : {&Box::score, &Box::x, &Box::y, &Box::z, &Box::length, &Box::width, &Box::height,
                                        &Box::velocity_x, &Box::velocity_y}) {
          EXPECT_NEAR(found.*field, box.*field, 1e-3 * std::max(1.0f, std::abs(box.*field))) << i;
        }
        EXPECT_NEAR(std::remainder(double{found.yaw} - box.yaw, 2 * M_PI), 0, 1e-3) << i;
        ++num_compared;
      }
    }
  }
  EXPECT_GT(num_compared, 40);
}

// A sample without voxels has no boxes, and changes nothing for its batch-mates. The bytes are those of each sample
// alone.
TEST_P(QueryNetworkTest, SamplesAloneAndInABatchAreEqual) {
  const absl::StatusOr<Graph> graph = LoadTestGraph(QueryDetector());
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto runner = DeviceRunner::Create({.device = GetParam()});
  ASSERT_TRUE(runner.ok()) << runner.status();
  std::vector<InferTask> tasks;
  for (const int num_points : {60, 0, 150, 1}) {
    const Points points = RandomScan(static_cast<uint32_t>(num_points), num_points);
    tasks.push_back({.cloud = CloudOf(points), .tensor_set = AllTensors(1)});
  }
  for (Variant variant : VariantsOf(GetParam())) {
    SCOPED_TRACE(variant.name);
    variant.is_deterministic = true;
    const auto program = (*runner)->Compile(*graph, variant);
    ASSERT_TRUE(program.ok()) << program.status();
    const BatchReport together = (*runner)->Run(*program, tasks);
    ASSERT_TRUE(together.status.ok()) << together.status;
    for (size_t i = 0; i < tasks.size(); ++i) {
      SCOPED_TRACE(i);
      BatchReport alone = (*runner)->Run(*program, {tasks[i]});
      BatchReport of_batch{.status = alone.status};
      of_batch.samples.push_back(together.samples[i]);
      ASSERT_NO_FATAL_FAILURE(ExpectSameBytes(of_batch, alone));
      const std::vector<Box> boxes = alone.samples[0].boxes();
      EXPECT_EQ(boxes.empty(), i == 1);
      for (const Box& box : boxes) {
        EXPECT_GE(box.query, 0);
        EXPECT_LT(box.query, 24);
      }
      ASSERT_EQ(alone.samples[0].tensors.size(), 1u);
      EXPECT_EQ(alone.samples[0].tensors[0].num_rows(), 24);
    }
  }
}

// The program computes in float16. The logits that a select compares, and the rows that a query_decode reads, are
// float32 if nothing else reads them; so is the selection.
TEST(QueryProgramTest, LogitsStayFloat32WhereASelectAloneReadsThem) {
  for (const bool is_read_again : {false, true}) {
    GraphBuilder b(90);
    const int bev = b.ToBev(b.Linear(0, 4, true));
    const int logits = b.Conv2d(bev, kSame3x3, 2, true);
    const int select = b.Select(logits, {.peak_kernel = 3, .k = 8});
    const int cells = b.Gather(GatherOf::kFeatures, select, is_read_again ? logits : bev);
    std::vector<int> rows;
    for (const int channels : {2, 2, 1, 3, 2}) rows.push_back(b.Linear(cells, channels, true));
    const int boxes = b.QueryDecode(select, rows, {.class_ids = {0, 1}, .max_boxes = 8});
    const Program program = Compile(b.FinishBoxes(boxes, 2), Plan(), {.dtype = kernels::DType::kFloat16});
    const auto dtype_of = [&](const BufferSlice& slice) {
      return program.buffers[static_cast<size_t>(slice.buffer)].dtype;
    };
    int num_steps = 0;
    for (const auto& step : program.steps) {
      if (const auto* select_step = dynamic_cast<const SelectStep*>(step.get())) {
        ++num_steps;
        EXPECT_EQ(dtype_of(select_step->options().scores),
                  is_read_again ? kernels::DType::kFloat16 : kernels::DType::kFloat32);
        EXPECT_EQ(dtype_of(select_step->options().out), kernels::DType::kFloat32);
      } else if (const auto* decode = dynamic_cast<const QueryDecodeStep*>(step.get())) {
        ++num_steps;
        for (const BufferSlice& slice : {decode->options().heatmap, decode->options().center, decode->options().rot}) {
          EXPECT_EQ(dtype_of(slice), kernels::DType::kFloat32);
        }
      }
    }
    EXPECT_EQ(num_steps, 2);
  }
}

}  // namespace
}  // namespace voxserve::query_network_test
