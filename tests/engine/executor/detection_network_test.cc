// Tests detection heads in networks: compares the boxes of compiled programs with boxes that are decoded from the
// images of a graph interpreter. The kernels' own tests compare the decoding with plain loops.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error_reason.h"
#include "engine/compiler/buffer_placement.h"
#include "engine/executor/batch_checks.h"
#include "engine/ops/boxes/decode_boxes.h"
#include "engine/ops/boxes/nms.h"
#include "engine/ops/image/conv2d.h"
#include "kernels/boxes/rotated_nms.h"
#include "tests/engine/device_runner.h"
#include "tests/engine/executor/graph_interpreter.h"

namespace voxserve::detection_network_test {
namespace {

using kernels::CenterHeadConvention;

constexpr kernels::Conv2dGeometry kSame3x3 = {.kernel_size = {3, 3}, .padding = {1, 1}};

class DetectionNetworkTest : public testing::TestWithParam<support::Device> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Devices, DetectionNetworkTest, support::AllDevices(), support::DeviceName);

// Adds a branch of a head, like CenterPoint's.
int Branch(GraphBuilder& b, int shared, int channels) {
  return b.Conv2d(b.Relu(b.Norm(b.Conv2d(shared, kSame3x3, 4, true))), kSame3x3, channels, true);
}

// iou_powers: one for each class; none: the head has no IoUs.
int CenterTask(GraphBuilder& b, int shared, CenterHeadConvention convention, const std::vector<int>& class_ids,
               bool has_velocity, const std::vector<float>& iou_powers = {}) {
  kernels::CenterHead head{.convention = convention,
                           .num_classes = static_cast<int32_t>(class_ids.size()),
                           .score_threshold = 0.3f,
                           .center_min = {-20, -20, -20},
                           .center_max = {20, 20, 20},
                           .max_boxes = 40};
  std::copy(class_ids.begin(), class_ids.end(), head.class_ids.begin());
  std::vector<int> images;
  for (const int channels : {head.num_classes, 2, 1, 3, 2}) images.push_back(Branch(b, shared, channels));
  if (has_velocity) images.push_back(Branch(b, shared, 2));
  std::copy(iou_powers.begin(), iou_powers.end(), head.iou_powers.begin());
  if (!iou_powers.empty()) images.push_back(Branch(b, shared, 1));
  return b.CenterHead(images, head, !iou_powers.empty());
}

int AnchorTask(GraphBuilder& b, int bev) {
  kernels::AnchorHeadParams head{.num_classes = 2,
                                 .class_ids = {3, 1},
                                 .num_anchors = 3,
                                 .direction_offset = 0.7f,
                                 .score_threshold = 0.4f,
                                 .max_boxes = 30};
  head.anchors[0] = {.size = {2, 1, 1}, .bottom = -1};
  head.anchors[1] = {.size = {2, 1, 1}, .bottom = -1, .yaw = 1.57f};
  head.anchors[2] = {.size = {0.5f, 0.4f, 1.5f}, .bottom = 0.5f};
  const int scores = b.Linear(bev, 6, true), residuals = b.Linear(bev, 21, true), directions = b.Linear(bev, 6, true);
  return b.AnchorHead({scores, residuals, directions}, head);
}

int Bev(GraphBuilder& b) { return b.ToBev(b.Relu(b.Submanifold(0, 6, true))); }

// Decodes the interpreter's images with the CPU's kernels.
class ExpectedBoxes {
 public:
  ExpectedBoxes(const Graph& graph, const Points& points) : graph_(graph), interpreter_(graph, points) {}

  std::vector<float> Kept() {
    const GraphNode& nms = Node(graph_.boxes_output);
    const auto& op = std::get<NmsOp>(nms.op);
    kernels::RotatedNmsParams params{.num_samples = 1,
                                     .num_inputs = static_cast<int32_t>(nms.inputs.size()),
                                     .iou_threshold = op.iou_threshold,
                                     .max_boxes_in = op.max_boxes_in,
                                     .max_boxes_out = op.max_boxes_out,
                                     .num_classes = static_cast<int32_t>(op.classes.size())};
    std::copy(op.classes.begin(), op.classes.end(), params.classes.begin());
    std::vector<std::vector<float>> decoded;
    for (const int input : nms.inputs) decoded.push_back(Decoded(Node(input)));
    for (size_t i = 0; i < decoded.size(); ++i) {
      params.inputs[i] = {.boxes = decoded[i].data(), .max_boxes = Node(nms.inputs[i]).max_boxes};
    }
    EXPECT_EQ(kernels::NmsRows(params), nms.max_boxes);
    std::vector<float> kept(static_cast<size_t>(nms.max_boxes) * kernels::kBoxPitch);
    params.boxes = kept.data();
    kernels::cpu::RotatedNms(params, pool_);
    return kept;
  }

 private:
  const GraphNode& Node(int node) const { return graph_.nodes[static_cast<size_t>(node)]; }

  kernels::ImageChannels Image(int node) {
    std::vector<float> values;
    for (const auto& [cell, row] : interpreter_.Evaluate(node)) values.insert(values.end(), row.begin(), row.end());
    images_.push_back(std::move(values));
    return {.data = images_.back().data(), .pitch = Node(node).channels};
  }

  std::vector<float> Decoded(const GraphNode& node) {
    std::vector<float> boxes(static_cast<size_t>(node.max_boxes) * kernels::kBoxPitch);
    if (const auto* center = std::get_if<CenterHeadDecodeOp>(&node.op)) {
      kernels::CenterHeadParams params{.num_samples = 1, .num_heads = 1};
      kernels::CenterHead& head = params.heads[0];
      head = center->head;
      head.heatmap = Image(node.inputs[0]);
      head.center = Image(node.inputs[1]);
      head.height = Image(node.inputs[2]);
      head.dim = Image(node.inputs[3]);
      head.rot = Image(node.inputs[4]);
      if (center->has_velocity) head.vel = Image(node.inputs[5]);
      if (center->has_iou) head.iou = Image(node.inputs[center->has_velocity ? 6 : 5]);
      head.boxes = boxes.data();
      kernels::cpu::DecodeCenterHeads(params, pool_);
    } else {
      kernels::AnchorHeadParams params = std::get<AnchorHeadDecodeOp>(node.op).head;
      params.num_samples = 1;
      params.scores = Image(node.inputs[0]);
      params.residuals = Image(node.inputs[1]);
      params.directions = Image(node.inputs[2]);
      params.boxes = boxes.data();
      kernels::cpu::DecodeAnchorHead(params, pool_);
    }
    return boxes;
  }

  const Graph& graph_;
  Interpreter interpreter_;
  kernels::ThreadPool pool_{1};
  std::vector<std::vector<float>> images_;
};

std::array<float, kernels::kBoxColumns> ValuesOf(const Box& box) {
  return {box.x,
          box.y,
          box.z,
          box.length,
          box.width,
          box.height,
          box.yaw,
          box.velocity_x,
          box.velocity_y,
          box.score,
          static_cast<float>(box.class_id)};
}

// Expects that `boxes` has the boxes of `rows`, which are in the layout of box_rows.h.
void ExpectBoxes(const std::vector<Box>& boxes, const std::vector<float>& rows) {
  size_t count = 0;
  while (count * kernels::kBoxPitch < rows.size() &&
         rows[count * kernels::kBoxPitch + kernels::kBoxScore] != kernels::kNoBox) {
    ++count;
  }
  EXPECT_GT(count, 3u);
  ASSERT_EQ(boxes.size(), count);
  for (size_t i = 0; i < count; ++i) {
    const auto values = ValuesOf(boxes[i]);
    for (size_t column = 0; column < values.size(); ++column) {
      const float expected = rows[i * kernels::kBoxPitch + column];
      double difference = double{values[column]} - expected;
      if (column == kernels::kBoxYaw) difference = std::remainder(difference, 2 * M_PI);
      ASSERT_LE(std::abs(difference), 1e-3 * std::max(1.0f, std::abs(expected))) << "box " << i << " column " << column;
    }
  }
}

PointCloud Cloud(const Points& points) {
  return *PointCloud::FromFloats({"x", "y", "z", "f"}, points.values.data(), points.size());
}

void ExpectEqualBoxes(support::Device device, const Graph& graph, uint32_t seed) {
  const Points points = RandomPoints(seed);
  const PointCloud cloud = Cloud(points);
  const auto runner = DeviceRunner::Create({.device = device});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const std::vector<float> expected = ExpectedBoxes(graph, points).Kept();
  for (const bool merges_products : {false, true}) {
    const auto program = (*runner)->Compile(graph, {.device = device, .merges_products = merges_products});
    ASSERT_TRUE(program.ok()) << program.status();
    EXPECT_TRUE(program->has_boxes);
    const BatchReport output = (*runner)->Run(*program, {&cloud}, false);
    ASSERT_TRUE(output.status.ok()) << output.status;
    ASSERT_TRUE(output.samples[0].status.ok()) << output.samples[0].status;
    ExpectBoxes(output.samples[0].boxes(), expected);
  }
}

Graph CenterPoint(uint32_t seed) {
  GraphBuilder b(seed);
  const int shared = b.Relu(b.Norm(b.Conv2d(Bev(b), kSame3x3, 8, true)));
  const int first = CenterTask(b, shared, CenterHeadConvention::kOpenPcdet, {4}, true);
  const int second = CenterTask(b, shared, CenterHeadConvention::kDet3d, {1, 0}, true);
  const int third = CenterTask(b, shared, CenterHeadConvention::kOpenPcdet, {2, 3}, false);
  return b.FinishBoxes(b.Nms({first, second, third}, {.iou_threshold = 0.2f, .max_boxes_in = 30, .max_boxes_out = 12}),
                       5);
}

TEST_P(DetectionNetworkTest, CenterPointsTasks) {
  for (const uint32_t seed : {1u, 2u, 3u}) ExpectEqualBoxes(GetParam(), CenterPoint(seed), seed);
}

TEST_P(DetectionNetworkTest, SecondsAnchors) {
  for (const uint32_t seed : {4u, 5u}) {
    GraphBuilder b(seed);
    const int boxes = AnchorTask(b, Bev(b));
    ExpectEqualBoxes(GetParam(), b.FinishBoxes(b.Nms({boxes}, {.iou_threshold = 0.01f, .max_boxes_out = 20}), 4), seed);
  }
}

TEST_P(DetectionNetworkTest, HeadsOfBothKinds) {
  GraphBuilder b(6);
  const int bev = Bev(b);
  const int anchors = AnchorTask(b, bev);
  const int center = CenterTask(b, bev, CenterHeadConvention::kDet3d, {0}, false);
  ExpectEqualBoxes(GetParam(), b.FinishBoxes(b.Nms({anchors, center}, {.iou_threshold = 0.5f, .max_boxes_out = 9}), 4),
                   6);
}

// A head's IoUs follow its velocities, if it has any. The heads without IoUs are decoded in the same launch.
TEST_P(DetectionNetworkTest, IousRectifyTheScoresOfTheirHead) {
  for (const uint32_t seed : {8u, 9u}) {
    GraphBuilder b(seed);
    const int bev = Bev(b);
    const int first = CenterTask(b, bev, CenterHeadConvention::kOpenPcdet, {1, 3}, true, {0.68f, 0.3f});
    const int second = CenterTask(b, bev, CenterHeadConvention::kOpenPcdet, {0}, false, {0.5f});
    const int third = CenterTask(b, bev, CenterHeadConvention::kOpenPcdet, {2}, true);
    const int nms = b.Nms({first, second, third}, {.iou_threshold = 0.3f, .max_boxes_out = 15});
    ExpectEqualBoxes(GetParam(), b.FinishBoxes(nms, 4), seed);
  }
}

TEST_P(DetectionNetworkTest, EachClassHasASuppressionOfItsOwn) {
  for (const uint32_t seed : {10u, 11u}) {
    GraphBuilder b(seed);
    const int bev = Bev(b);
    const int center = CenterTask(b, bev, CenterHeadConvention::kOpenPcdet, {3, 1}, true, {0.6f, 0.2f});
    const int anchors = AnchorTask(b, bev);
    const NmsOp op = {.classes = {{.class_id = 1, .iou_threshold = 0.1f, .max_boxes_in = 25, .max_boxes_out = 9},
                                  {.class_id = 3, .iou_threshold = 0.6f, .max_boxes_in = 0, .max_boxes_out = 12}}};
    ExpectEqualBoxes(GetParam(), b.FinishBoxes(b.Nms({center, anchors}, op), 4), seed);
  }
}

// Computes rectified scores, and the best boxes of each class, from the images alone. A suppression that no overlap
// exceeds removes nothing.
TEST_P(DetectionNetworkTest, RectifiedScoresAndClassesAreThoseOfTheDefinition) {
  constexpr uint32_t kSeed = 12;
  const std::vector<int> class_ids = {2, 0};
  const std::vector<float> powers = {0.68f, 0.25f};
  GraphBuilder b(kSeed);
  const int decoder = CenterTask(b, Bev(b), CenterHeadConvention::kOpenPcdet, class_ids, true, powers);
  const NmsOp op = {.classes = {{.class_id = 0, .iou_threshold = 1, .max_boxes_in = 0, .max_boxes_out = 11},
                                {.class_id = 2, .iou_threshold = 1, .max_boxes_in = 0, .max_boxes_out = 40}}};
  const Graph graph = b.FinishBoxes(b.Nms({decoder}, op), 3);

  const Points points = RandomPoints(kSeed);
  Interpreter interpreter(graph, points);
  const std::vector<int>& images = graph.nodes[static_cast<size_t>(decoder)].inputs;
  ASSERT_EQ(images.size(), 7u);
  const auto &heatmap = interpreter.Evaluate(images[0]), &ious = interpreter.Evaluate(images[6]);
  std::vector<std::array<double, 3>> candidates;  // minus the logit, the class's number, the rectified score
  auto iou = ious.begin();
  for (const auto& [cell, logits] : heatmap) {
    for (size_t k = 0; k < class_ids.size(); ++k) {
      const double score = 1 / (1 + std::exp(-double{logits[k]}));
      const double limited = std::clamp(double{iou->second[0]}, 0.0, 1.0), power = powers[k];
      if (score > 0.3) {
        candidates.push_back(
            {-double{logits[k]}, static_cast<double>(k), std::pow(score, 1 - power) * std::pow(limited, power)});
      }
    }
    ++iou;
  }
  std::sort(candidates.begin(), candidates.end());
  candidates.resize(std::min<size_t>(candidates.size(), 40));  // the head's max_boxes
  std::vector<std::pair<uint32_t, double>> expected;           // class ids and scores
  for (const kernels::NmsClass& limits : op.classes) {
    std::vector<double> scores;
    for (const auto& [logit, k, score] : candidates) {
      if (class_ids[static_cast<size_t>(k)] == limits.class_id) scores.push_back(score);
    }
    std::sort(scores.rbegin(), scores.rend());
    scores.resize(std::min(scores.size(), static_cast<size_t>(limits.max_boxes_out)));
    for (const double score : scores) expected.emplace_back(static_cast<uint32_t>(limits.class_id), score);
  }

  const PointCloud cloud = Cloud(points);
  const auto runner = DeviceRunner::Create({.device = GetParam()});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const auto program = (*runner)->Compile(graph, {.device = GetParam()});
  ASSERT_TRUE(program.ok()) << program.status();
  const BatchReport output = (*runner)->Run(*program, {&cloud}, false);
  ASSERT_TRUE(output.status.ok()) << output.status;
  const std::vector<Box>& boxes = output.samples[0].boxes();
  ASSERT_EQ(boxes.size(), expected.size());
  ASSERT_GT(boxes.size(), 12u);
  ASSERT_GT(boxes.back().class_id, boxes.front().class_id) << "both classes have boxes";
  for (size_t i = 0; i < boxes.size(); ++i) {
    EXPECT_EQ(boxes[i].class_id, expected[i].first) << i;
    EXPECT_NEAR(boxes[i].score, expected[i].second, 1e-3) << i;
  }
}

TEST_P(DetectionNetworkTest, CenterPointsTasksAreDecodedTogether) {
  const Program program = Compile(CenterPoint(7), Plan(), {});
  int decoded = 0, suppressed = 0;
  for (const auto& step : program.steps) {
    decoded += dynamic_cast<const DecodeCenterHeadsStep*>(step.get()) != nullptr ? 1 : 0;
    suppressed += dynamic_cast<const NmsStep*>(step.get()) != nullptr ? 1 : 0;
  }
  EXPECT_EQ(decoded, 1);
  EXPECT_EQ(suppressed, 1);
}

// Each sample must take about as much GPU memory as Program::sample_bytes says, which bounds the size of a batch.
TEST(DetectionMemoryTest, SamplesTakeOfAGpuWhatTheProgramSays) {
  SKIP_WITHOUT(support::Device::kCuda);
  const auto runner = DeviceRunner::Create({.device = support::Device::kCuda});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const PointCloud cloud = Cloud({{3, 2, 1, 0.5f}});
  for (const bool has_anchors : {false, true}) {
    SCOPED_TRACE(has_anchors ? "anchors" : "center");
    GraphBuilder b(31);
    const int boxes =
        has_anchors ? AnchorTask(b, Bev(b)) : CenterTask(b, Bev(b), CenterHeadConvention::kDet3d, {0}, true);
    const Graph graph = b.FinishBoxes(b.Nms({boxes}, {.iou_threshold = 0.2f, .max_boxes_out = 10}), 4);
    const auto program = (*runner)->Compile(graph, {.device = support::Device::kCuda, .plan = kDefaultCudaConvPlan});
    ASSERT_TRUE(program.ok()) << program.status();
    const auto features_of = [&](size_t num_samples) {
      const BatchReport output = (*runner)->Run(*program, std::vector<const PointCloud*>(num_samples, &cloud), false);
      EXPECT_TRUE(output.status.ok()) << output.status;
      return output.bytes.features;
    };
    // The cloud's only voxel adds almost nothing. The bytes of one sample include the rounding up of arrays.
    const int64_t one = features_of(1);
    for (const int64_t num_samples : {2, 7, 24}) {
      const int64_t taken = features_of(static_cast<size_t>(num_samples));
      EXPECT_LE(taken, num_samples * program->sample_bytes + one / 4) << num_samples;
      EXPECT_GE(taken, num_samples * program->sample_bytes * 9 / 10) << num_samples;
    }
  }
}

// Tests Program::sample_bytes without a GPU: it must include the scratch memory of every step, once.
TEST(DetectionMemoryTest, ASamplesBytesHaveTheScratchOfItsSteps) {
  if constexpr (!kernels::kHasCuda) GTEST_SKIP() << "built without CUDA";
  GraphBuilder b(32);
  const int boxes = AnchorTask(b, b.ToBev(b.Linear(0, 4, true)));
  const Graph graph = b.FinishBoxes(b.Nms({boxes}, {.iou_threshold = 0.2f, .max_boxes_out = 10}), 4);
  const int64_t of_buffers = Compile(graph, Plan(), {}).sample_bytes;
  const Program program = Compile(graph, Plan(), {.on_cuda = true});
  const int64_t of_scratch = program.sample_bytes - of_buffers;
  EXPECT_GT(of_buffers, 0);
  if constexpr (kernels::kHasCuda) {
    kernels::AnchorHeadParams decoder;
    for (const GraphNode& node : graph.nodes) {
      if (const auto* op = std::get_if<AnchorHeadDecodeOp>(&node.op)) decoder = op->head;
    }
    decoder.num_samples = 1;
    EXPECT_GE(of_scratch, static_cast<int64_t>(kernels::cuda::AnchorHeadWorkspaceBytes(decoder)));
    EXPECT_GE(of_scratch, static_cast<int64_t>(kernels::cuda::RotatedNmsWorkspaceBytes(
                              {.num_samples = 1,
                               .num_inputs = 1,
                               .inputs = {{{.boxes = nullptr, .max_boxes = decoder.max_boxes}}},
                               .max_boxes_out = 10})));
  }
  for (const int64_t num_samples : {1, 4, 9}) {
    const int64_t bytes = BytesOfSamples(program, num_samples, /*on_cuda=*/true);
    EXPECT_LE(bytes, num_samples * program.sample_bytes) << num_samples;
    EXPECT_GE(bytes, num_samples * program.sample_bytes * 9 / 10) << num_samples;
  }
}

// oneDNN refuses a convolution whose groups do not divide its channels. The loader refuses such models, so the test
// breaks a compiled program.
TEST(RefusedConvolutionTest, FailsTheLoadAndARequestButNotTheProcess) {
  const auto runner = DeviceRunner::Create({});
  ASSERT_TRUE(runner.ok()) << runner.status();
  GraphBuilder b(33);
  const int image = b.Conv2d(b.ToBev(b.Linear(0, 3, true)), kSame3x3, 56, true);
  const int boxes = AnchorTask(b, image);
  Program program = Compile(b.FinishBoxes(b.Nms({boxes}, {.iou_threshold = 0.2f, .max_boxes_out = 10}), 4), Plan(), {});
  EXPECT_TRUE(program.Check().ok()) << program.Check();
  const PointCloud cloud = Cloud(RandomPoints(33));
  EXPECT_TRUE((*runner)->Run(program, {&cloud}, false).status.ok());

  const auto is_conv = [](const std::unique_ptr<Step>& step) {
    return dynamic_cast<const Conv2dStep*>(step.get()) != nullptr;
  };
  const auto conv = std::find_if(program.steps.begin(), program.steps.end(), is_conv);
  ASSERT_NE(conv, program.steps.end());
  const Conv2dStep::Options& good = static_cast<const Conv2dStep&>(**conv).options();
  Conv2dStep::Options options{.in = good.in,
                              .out = good.out,
                              .in_rows = good.in_rows,
                              .in_columns = good.in_columns,
                              .geometry = good.geometry};
  options.geometry.groups = 7;
  ASSERT_NE(options.in.channels % 7, 0);
  const std::vector<float> weights(static_cast<size_t>(options.in.channels / 7) * 56 * 9, 1.0f);
  const std::string name = (*conv)->name;
  *conv = std::make_unique<Conv2dStep>(std::move(options), weights);
  (*conv)->name = name;
  (*conv)->is_for_all = true;
  const absl::Status checked = program.Check();
  EXPECT_EQ(checked.code(), absl::StatusCode::kInternal) << checked;
  EXPECT_THAT(std::string(checked.message()), testing::HasSubstr("step \"" + name + "\""));
  const BatchReport refused = (*runner)->Run(program, {&cloud}, false);
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kInternal) << refused.status;
  EXPECT_EQ(ReasonOf(refused.status), error_reason::kInternal);
  EXPECT_TRUE(refused.samples.empty());
}

// The program computes in float16. A head's images are float32 if only decoders read them. All images of a head must
// have one type, so if another node reads one of them, all are float16.
TEST(DetectionProgramTest, ImagesStayFloat32WhereDecodersAloneReadThem) {
  for (const bool is_read_again : {false, true}) {
    GraphBuilder b(20);
    const int bev = b.ToBev(b.Linear(0, 4, true));
    const int heatmap = b.Conv2d(bev, kSame3x3, 2, true);
    std::vector<int> images = {heatmap, b.Conv2d(is_read_again ? heatmap : bev, kSame3x3, 2, true)};
    for (const int channels : {1, 3, 2}) images.push_back(b.Conv2d(bev, kSame3x3, channels, true));
    const int decoded = b.CenterHead(images, {.num_classes = 2, .class_ids = {0, 1}, .max_boxes = 8});
    const int nms = b.Nms({decoded}, {.iou_threshold = 0.5f, .max_boxes_in = 8, .max_boxes_out = 4});
    const Program program = Compile(b.FinishBoxes(nms, 2), Plan(), {.dtype = kernels::DType::kFloat16});
    int num_convs = 0;
    for (const auto& step : program.steps) {
      const auto* const conv = dynamic_cast<const Conv2dStep*>(step.get());
      if (conv == nullptr) continue;
      ++num_convs;
      EXPECT_EQ(program.buffers[static_cast<size_t>(conv->options().out.buffer)].dtype,
                is_read_again ? kernels::DType::kFloat16 : kernels::DType::kFloat32);
    }
    EXPECT_EQ(num_convs, 5);
  }
}

}  // namespace
}  // namespace voxserve::detection_network_test
