// Tests networks in 8 bits on a GPU: against the same network on the CPU, byte by byte where all layers multiply in 8
// bits, with every block, in batches and replayed, and with layers of floats between them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/compiler/int8_values.h"
#include "engine/compiler/plan_table.h"
#include "kernels/image/int8/int8_im2col.h"
#include "tests/engine/device_runner.h"
#include "tests/engine/executor/graph_interpreter.h"
#include "tests/engine/executor/image_network.h"
#include "tests/engine/executor/random_points.h"
#include "tests/engine/executor/same_bytes.h"
#include "tests/engine/golden_scan.h"
#include "tests/engine/measured_scales.h"
#include "tests/support/float16.h"

namespace voxserve::int8_cuda_test {
namespace {

using support::Device;

Variant VariantOf(Device device, const std::vector<std::string>& float_nodes = {}) {
  constexpr auto kPrecision = ModelConfig::Precision::kInt8;
  return {.name = "Int8",
          .device = device,
          .precision = kPrecision,
          .plan = DefaultPlanOf(device, kPrecision),
          .float_nodes = float_nodes};
}

class Int8CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT(Device::kCuda);
    if (!MultipliesInInt8(Device::kCuda)) GTEST_SKIP() << "this GPU does not multiply in 8 bits";
    for (const Device device : {Device::kCpu, Device::kCuda}) {
      auto runner = DeviceRunner::Create({.device = device});
      ASSERT_TRUE(runner.ok()) << runner.status();
      (device == Device::kCpu ? cpu_ : cuda_) = *std::move(runner);
    }
  }

  Program ProgramOf(const Graph& graph, const Variant& variant) {
    DeviceRunner& runner = variant.device == Device::kCpu ? *cpu_ : *cuda_;
    absl::StatusOr<Program> program = runner.Compile(graph, variant);
    EXPECT_TRUE(program.ok()) << program.status();
    return program.ok() ? *std::move(program) : Program();
  }

  std::unique_ptr<DeviceRunner> cpu_, cuda_;
};

// Gives each value that a layer may read in 8 bits a scale, by its largest magnitude on these points.
Graph WithScales(Graph graph, const Points& points) {
  Interpreter interpreter(graph, points);
  for (const Int8Value& value : FindInt8Candidates(graph).values) {
    double largest = 0;
    for (const auto& [site, row] : interpreter.Evaluate(value.node)) {
      for (const double number : row) largest = std::max(largest, std::abs(number));
    }
    graph.nodes[static_cast<size_t>(value.node)].scale =
        static_cast<float>(largest / (value.is_non_negative ? 255 : 127));
  }
  return graph;
}

// A U-Net with residual blocks, a shortcut and a concatenation. width: of its channels.
struct UNet {
  Graph graph;
  std::string stem, inner, shortcut, head;

  UNet(int width, bool has_relu) {
    GraphBuilder b(11);
    const auto relu = [&](int node) { return has_relu ? b.Relu(node) : node; };
    const int first = b.Submanifold(0, width, false);
    const int a = relu(b.Norm(b.Submanifold(relu(b.Norm(first)), width, false)));
    const int block = relu(b.Sum(b.Norm(b.Submanifold(relu(b.Norm(b.Submanifold(a, width, false))), width, false)), a));
    const int down_conv = b.Down(block, 2 * width);
    const int down = relu(b.Norm(down_conv));
    const int wide = b.Linear(down, 6 * width, false);
    const int inner_conv = b.Submanifold(down, 6 * width, false);
    const int deep = relu(b.Sum(b.Norm(b.Submanifold(relu(b.Norm(inner_conv)), 6 * width, false)), b.Norm(wide)));
    const int up = relu(b.Norm(b.Up(deep, down_conv, 3 * width)));
    const int conv = relu(b.Submanifold(b.Concat({up, block}), 2 * width, true));
    const int last = b.Linear(conv, 5, true);
    graph = WithScales(b.Finish(last), RandomPoints(7));
    const auto name = [&](int node) { return graph.nodes[static_cast<size_t>(node)].name; };
    stem = name(first);
    inner = name(inner_conv);
    shortcut = name(wide);
    head = name(last);
  }
};

std::vector<PointCloud> Clouds() {
  std::vector<PointCloud> clouds;
  for (uint32_t seed = 20; seed < 25; ++seed) clouds.push_back(CloudOf(RandomPoints(seed)));
  return clouds;
}

std::vector<const PointCloud*> PointersTo(const std::vector<PointCloud>& clouds) {
  std::vector<const PointCloud*> pointers;
  for (const PointCloud& cloud : clouds) pointers.push_back(&cloud);
  return pointers;
}

TEST_F(Int8CudaTest, HasTheBytesOfTheCpu) {
  const std::vector<PointCloud> clouds = Clouds();
  for (const int width : {16, 32}) {
    for (const bool has_relu : {true, false}) {
      SCOPED_TRACE(testing::Message() << "width " << width << ", ReLU " << has_relu);
      const UNet unet(width, has_relu);
      const Program on_cpu = ProgramOf(unet.graph, VariantOf(Device::kCpu));
      const Program on_gpu = ProgramOf(unet.graph, VariantOf(Device::kCuda));
      for (const PointCloud& cloud : clouds) {
        const BatchReport expected = cpu_->Run(on_cpu, {&cloud}, /*return_scores=*/true);
        ASSERT_TRUE(expected.status.ok()) << expected.status;
        ASSERT_NO_FATAL_FAILURE(ExpectSameBytes(cuda_->Run(on_gpu, {&cloud}, true), expected));
      }
      const BatchReport expected = cpu_->Run(on_cpu, PointersTo(clouds), true);
      ASSERT_NO_FATAL_FAILURE(ExpectSameBytes(cuda_->Run(on_gpu, PointersTo(clouds), true), expected));
    }
  }
}

// The last layer's values are float16 on a GPU, so scores are compared in float16. All values before them are the same
// numbers on both devices.
TEST_F(Int8CudaTest, ImagesHaveTheNumbersOfTheCpu) {
  if (!kernels::cuda::SupportsInt8Im2col()) GTEST_SKIP() << "images stay in float16 on this GPU";
  const Graph graph = WithScales(ImageNetwork(), ImagePoints(40));
  const Program on_cpu = ProgramOf(graph, VariantOf(Device::kCpu)), on_gpu = ProgramOf(graph, VariantOf(Device::kCuda));
  std::vector<PointCloud> clouds;
  for (uint32_t seed = 41; seed < 46; ++seed) clouds.push_back(CloudOf(ImagePoints(seed)));
  const BatchReport expected = cpu_->Run(on_cpu, PointersTo(clouds), true);
  const BatchReport together = cuda_->Run(on_gpu, PointersTo(clouds), true);
  ASSERT_TRUE(expected.status.ok() && together.status.ok()) << expected.status << together.status;
  for (size_t i = 0; i < clouds.size(); ++i) {
    const BatchReport alone = cuda_->Run(on_gpu, {&clouds[i]}, true);
    ASSERT_TRUE(alone.status.ok()) << alone.status;
    const absl::Span<const float> wanted = expected.samples[i].scores();
    for (const absl::Span<const float> found : {together.samples[i].scores(), alone.samples[0].scores()}) {
      ASSERT_EQ(found.size(), wanted.size());
      for (size_t s = 0; s < wanted.size(); ++s) {
        ASSERT_EQ(static_cast<float>(static_cast<Float16>(found[s])),
                  static_cast<float>(static_cast<Float16>(wanted[s])))
            << "cloud " << i << ", score " << s;
      }
    }
  }
}

// Each plan gives one block to all convolutions that the GPU serves with it, also with split K.
TEST_F(Int8CudaTest, EveryBlockGivesTheSameBytes) {
  const UNet unet(16, /*has_relu=*/true);
  const PointCloud cloud = CloudOf(RandomPoints(30));
  const BatchReport expected = cpu_->Run(ProgramOf(unet.graph, VariantOf(Device::kCpu)), {&cloud}, true);
  const Program program = ProgramOf(unet.graph, VariantOf(Device::kCuda));
  std::vector<kernels::ConvBlock> blocks;
  for (const ProgramConv& conv : program.convs) {
    for (const kernels::ConvBlock& block : *conv.served.front().blocks) {
      if (std::find(blocks.begin(), blocks.end(), block) == blocks.end()) blocks.push_back(block);
    }
  }
  ASSERT_GT(blocks.size(), 3U);
  for (const kernels::ConvBlock& block : blocks) {
    SCOPED_TRACE(Describe(block));
    std::vector<ConvPlan> plans;
    for (const ProgramConv& conv : program.convs) {
      ConvPlan plan = kDefaultCudaConvPlan;
      plan.block = block;
      plans.push_back(conv.Serves(plan) ? plan : kDefaultCudaConvPlan);
    }
    const PlanTable table(program, plans);
    for (const bool captures : {false, true}) {
      if (captures && !kCanCapture) continue;
      BatchReport output;
      for (int run = 0; run < (captures ? 8 : 1) && !output.is_replay; ++run) {
        output = cuda_->Run(program, {&cloud}, true, {}, {.plans = &table, .captures = captures});
        ASSERT_NO_FATAL_FAILURE(ExpectSameBytes(output, expected));
      }
      EXPECT_EQ(output.is_replay, captures);
    }
  }
}

// Returns how far scores are from others: the root of the sum of the squares of the differences.
double Distance(const BatchReport& found, const BatchReport& expected) {
  double sum = 0;
  for (size_t i = 0; i < expected.samples.size(); ++i) {
    const absl::Span<const float> a = found.samples[i].scores(), b = expected.samples[i].scores();
    EXPECT_EQ(a.size(), b.size());
    for (size_t s = 0; s < std::min(a.size(), b.size()); ++s) sum += std::pow(double{a[s]} - b[s], 2);
  }
  return std::sqrt(sum);
}

// Values between floats and 8 bits are rounded to float16 on a GPU. A difference there moves some values to the next of
// 256 steps, and each layer behind it moves more. So the scores are not those of the CPU, but they are as near to those
// of float32.
TEST_F(Int8CudaTest, LayersOfFloatsBetweenThem) {
  const std::vector<PointCloud> clouds = Clouds();
  for (const bool has_relu : {true, false}) {
    const UNet unet(16, has_relu);
    const BatchReport exact =
        cpu_->Run(ProgramOf(unet.graph, {.name = "Float32", .device = Device::kCpu}), PointersTo(clouds), true);
    ASSERT_TRUE(exact.status.ok()) << exact.status;
    for (const std::vector<std::string>& float_nodes :
         {std::vector{unet.stem, unet.head}, std::vector{unet.inner}, std::vector{unet.shortcut},
          std::vector{unet.stem, unet.inner, unet.shortcut}}) {
      SCOPED_TRACE(testing::Message() << float_nodes.front() << " of " << float_nodes.size() << ", ReLU " << has_relu);
      const Program on_cpu = ProgramOf(unet.graph, VariantOf(Device::kCpu, float_nodes));
      const Program on_gpu = ProgramOf(unet.graph, VariantOf(Device::kCuda, float_nodes));
      const BatchReport expected = cpu_->Run(on_cpu, PointersTo(clouds), true);
      const BatchReport found = cuda_->Run(on_gpu, PointersTo(clouds), true);
      ASSERT_TRUE(expected.status.ok() && found.status.ok()) << expected.status << found.status;
      const double error = Distance(expected, exact);
      EXPECT_GT(error, 0);
      EXPECT_LE(Distance(found, exact), 1.3 * error);
      EXPECT_LE(Distance(found, expected), 1.5 * error);
      for (size_t i = 0; i < clouds.size(); ++i) {  // a sample has the same bytes alone
        const BatchReport alone = cuda_->Run(on_gpu, {&clouds[i]}, true);
        ASSERT_TRUE(alone.status.ok()) << alone.status;
        const absl::Span<const float> scores = alone.samples[0].scores(), in_batch = found.samples[i].scores();
        EXPECT_TRUE(std::equal(scores.begin(), scores.end(), in_batch.begin(), in_batch.end()));
      }
    }
  }
}

// Operators without 8 bits read converted copies, and channels fill no vectors.
TEST_F(Int8CudaTest, OtherOperatorsReadFloats) {
  GraphBuilder b(13);
  const int a = b.Relu(b.Submanifold(0, 8, true));
  const int conv = b.Activation(b.Submanifold(a, 20, true), {kernels::ActivationFunction::kLeakyRelu, 0.1f});
  const int pool = b.PoolDown(conv, kernels::PoolReduce::kMax);
  const int back = b.Unpool(b.Activation(b.Submanifold(pool, 20, true), kernels::ActivationFunction::kSigmoid), pool,
                            kernels::PoolReduce::kMax);
  const int summed = b.Submanifold(b.Sum(back, conv), 8, true);
  const int weighed = b.Submanifold(b.Multiply(summed, b.Submanifold(summed, 1, true)), 8, false);
  const int attended =
      b.Attention(b.Linear(weighed, 8, true), b.Linear(weighed, 8, false), b.Linear(a, 8, false), 2, 0.5f);
  const Points points = RandomPoints(9);
  const Graph graph = WithScales(b.Finish(b.Linear(b.Concat({attended, weighed, a}), 4, true)), points);
  const PointCloud cloud = CloudOf(points);
  const BatchReport expected = cpu_->Run(ProgramOf(graph, VariantOf(Device::kCpu)), {&cloud}, true);
  const BatchReport found = cuda_->Run(ProgramOf(graph, VariantOf(Device::kCuda)), {&cloud}, true);
  ASSERT_TRUE(expected.status.ok() && found.status.ok()) << expected.status << found.status;
  const absl::Span<const float> scores = found.samples[0].scores(), others = expected.samples[0].scores();
  ASSERT_EQ(scores.size(), others.size());
  float largest = 0, difference = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    largest = std::max(largest, std::fabs(others[i]));
    difference = std::max(difference, std::fabs(scores[i] - others[i]));
  }
  EXPECT_LE(difference, 0.05f * largest);
}

// The CPU makes the maps of a batch that does not fit the GPU's memory, also in the form that convolutions in 8 bits
// read.
TEST_F(Int8CudaTest, MapsThatDoNotFitAreMadeOnTheCpuWithTheSameLabels) {
  const auto scan = LoadGoldenScan("pandaset_063");
  auto model = LoadMinkUNetModel();
  ASSERT_TRUE(scan.ok() && model.ok()) << scan.status() << model.status();
  ASSERT_TRUE(SetMeasuredScales(scan->cloud, model->graph).ok());
  std::vector<float> points;
  for (int copy = 0; copy < 12; ++copy) points.insert(points.end(), scan->points.begin(), scan->points.end());
  const PointCloud cloud = *PointCloud::FromFloats({"x", "y", "z", "intensity"}, points.data(), points.size() / 4);
  const BatchReport expected = cuda_->Run(ProgramOf(model->graph, VariantOf(Device::kCuda)), {&cloud}, false);
  ASSERT_TRUE(expected.status.ok()) << expected.status;
  constexpr int64_t kMiB = int64_t{1} << 20;
  bool fell_back = false;
  for (int64_t limit = 96 * kMiB; limit < 8192 * kMiB && !fell_back; limit += limit / 8) {
    const auto limited = DeviceRunner::Create({.device = Device::kCuda, .device_memory_limit = limit});
    ASSERT_TRUE(limited.ok()) << limited.status();
    const auto program = (*limited)->Compile(model->graph, VariantOf(Device::kCuda));
    if (!program.ok()) continue;  // its weights do not fit
    const BatchReport output = (*limited)->Run(*program, {&cloud}, false);
    if (!output.status.ok()) continue;
    ASSERT_TRUE(output.geometry_on_cpu) << "no limit was found under which the CPU has to help; last: " << limit;
    fell_back = true;
    // The points of a voxel are added in another order.
    int64_t different = 0;
    for (size_t i = 0; i < expected.samples[0].labels().size(); ++i) {
      different += output.samples[0].labels()[i] != expected.samples[0].labels()[i];
    }
    EXPECT_LE(different, static_cast<int64_t>(cloud.num_points()) / 1000);
  }
  EXPECT_TRUE(fell_back);
}

}  // namespace
}  // namespace voxserve::int8_cuda_test
