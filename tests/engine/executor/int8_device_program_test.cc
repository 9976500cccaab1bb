// Tests what the compiler makes of networks in 8 bits for a GPU, without a GPU: which layers multiply in 8 bits, in
// which types values are stored, where they are converted, and which shortcuts are fused, there and on the CPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/compiler/compiler.h"
#include "engine/compiler/int8_values.h"
#include "engine/ops/image/conv2d.h"
#include "engine/ops/int8/int8_conv.h"
#include "engine/ops/int8/int8_conv2d.h"
#include "engine/ops/int8/int8_conversion.h"
#include "engine/ops/int8/int8_linear.h"
#include "engine/ops/rows/linear.h"
#include "tests/engine/executor/graph_builder.h"
#include "tests/engine/executor/image_network.h"

namespace voxserve::int8_device_program_test {
namespace {

Graph WithScales(Graph graph) {
  for (const Int8Value& value : FindInt8Candidates(graph).values) {
    graph.nodes[static_cast<size_t>(value.node)].scale = 0.125f;
  }
  return graph;
}

Program CompileFor(bool on_cuda, const Graph& graph, const std::vector<std::string>& float_nodes = {},
                   bool has_int8_images = true) {
  return Compile(graph, Plan(),
                 {.on_cuda = on_cuda,
                  .dtype = on_cuda ? DType::kFloat16 : DType::kFloat32,
                  .merges_products = true,
                  .is_int8 = true,
                  .float_nodes = float_nodes,
                  .has_int8_images = on_cuda && has_int8_images});
}

template <typename Kind>
std::vector<const Kind*> StepsOf(const Program& program) {
  std::vector<const Kind*> found;
  for (const auto& step : program.steps) {
    if (const auto* const kind = dynamic_cast<const Kind*>(step.get())) found.push_back(kind);
  }
  return found;
}
template <typename Kind>
int64_t Count(const Program& program) {
  return static_cast<int64_t>(StepsOf<Kind>(program).size());
}
int64_t CountBuffers(const Program& program, DType dtype) {
  return std::count_if(program.buffers.begin(), program.buffers.end(),
                       [&](const Buffer& buffer) { return buffer.dtype == dtype; });
}
int64_t CountFused(const Program& program) {
  const auto convs = StepsOf<Int8ConvStep>(program);
  return std::count_if(convs.begin(), convs.end(),
                       [](const Int8ConvStep* conv) { return conv->options().shortcut_in.buffer >= 0; });
}

// A small U-Net with a shortcut and a concatenation, as MinkUNet has them, of channels that fill vectors of 16 bytes.
struct UNet {
  Graph graph;
  std::string stem, head;

  UNet() {
    GraphBuilder b(11);
    const int first = b.Submanifold(0, 16, false);
    const int a = b.Relu(b.Norm(b.Submanifold(b.Relu(b.Norm(first)), 16, false)));
    const int down_conv = b.Down(a, 32);
    const int down = b.Relu(b.Norm(down_conv));
    const int inner = b.Relu(b.Norm(b.Submanifold(down, 48, false)));
    const int deep = b.Relu(b.Sum(b.Norm(b.Submanifold(inner, 48, false)), b.Norm(b.Linear(down, 48, false))));
    const int up = b.Relu(b.Norm(b.Up(deep, down_conv, 32)));
    const int conv = b.Relu(b.Submanifold(b.Concat({up, a}), 32, true));
    const int last = b.Linear(conv, 5, true);
    graph = WithScales(b.Finish(last));
    stem = graph.nodes[static_cast<size_t>(first)].name;
    head = graph.nodes[static_cast<size_t>(last)].name;
  }
};

TEST(Int8DeviceProgramTest, FloatLayersAreInFloat16AndOnlyBordersAreConverted) {
  const UNet unet;
  const Program program = CompileFor(/*on_cuda=*/true, unet.graph, {unet.stem, unet.head});
  EXPECT_EQ(Count<Int8ConvStep>(program), 6);
  EXPECT_EQ(Count<Int8LinearStep>(program), 0) << "the shortcut is fused";
  EXPECT_EQ(CountFused(program), 1);
  EXPECT_EQ(Count<Int8ConversionStep>(program), 1) << "of the stem's value";
  // The voxels' features, the stem's value and that of the last convolution.
  EXPECT_EQ(CountBuffers(program, DType::kFloat16), 3);
  EXPECT_EQ(CountBuffers(program, DType::kFloat32), 1) << "the head's";
  // The stem's value converted, three inner values, and the concatenation with its parts.
  EXPECT_EQ(CountBuffers(program, DType::kUint8) - 1, 5) << "one is the labels'";
  EXPECT_EQ(CountBuffers(program, DType::kInt8), 0);
}

TEST(Int8DeviceProgramTest, ConvolutionsHaveThePlansOfTheImplicitGemm) {
  const UNet unet;
  const Program program = CompileFor(/*on_cuda=*/true, unet.graph, {unet.stem});
  for (const ProgramConv& conv : program.convs) {
    const bool is_stem = conv.node == unet.stem;
    EXPECT_EQ(conv.dtype, is_stem ? DType::kFloat16 : DType::kInt8);
    EXPECT_NE(conv.Find(Dataflow::kGatherGemmScatter) == nullptr, is_stem);
    if (is_stem) continue;
    ASSERT_EQ(conv.served.size(), 1U);
    EXPECT_TRUE(conv.Serves(kDefaultCudaConvPlan));
    EXPECT_FALSE(conv.Serves({.dataflow = Dataflow::kImplicitGemm, .block = {.rows = 7, .columns = 7, .split_k = 1}}));
  }
  for (const ConvPlan& plan : program.default_plans.ForVoxels(1)) {
    const auto index = static_cast<size_t>(&plan - program.default_plans.ForVoxels(1).data());
    if (program.convs[index].dtype != DType::kInt8) continue;
    EXPECT_EQ(plan.dataflow, Dataflow::kImplicitGemm);
  }
}

// The rows of both inputs must be whole vectors on a GPU. The CPU fuses the same pairs, so that both give the same
// bytes.
TEST(Int8DeviceProgramTest, ShortcutsAreFusedOnBothDevicesOrOnNone) {
  struct Case {
    const char* name;
    std::function<int(GraphBuilder& b, int in)> block;
    int num_fused;
  };
  const std::vector<Case> cases = {
      {"whole vectors",
       [](GraphBuilder& b, int in) {
         return b.Sum(b.Submanifold(b.Relu(b.Submanifold(in, 32, true)), 20, true), b.Linear(in, 20, true));
       },
       1},
      {"the shortcut first",
       [](GraphBuilder& b, int in) {
         const int shortcut = b.Linear(in, 32, true);
         return b.Sum(b.Submanifold(b.Relu(b.Submanifold(in, 32, true)), 32, true), shortcut);
       },
       1},
      {"inputs of two types: the inner value may be negative",
       [](GraphBuilder& b, int in) {
         return b.Sum(b.Submanifold(b.Submanifold(in, 32, true), 32, true), b.Linear(in, 32, true));
       },
       0},
      {"a part of a vector",
       [](GraphBuilder& b, int in) {
         return b.Sum(b.Submanifold(b.Relu(b.Submanifold(in, 24, true)), 32, true), b.Linear(in, 32, true));
       },
       0}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    GraphBuilder b(3);
    const int in = b.Relu(b.Submanifold(0, 16, true));
    const int out = b.Relu(c.block(b, in));
    const Graph graph = WithScales(b.Finish(b.Linear(b.Relu(b.Submanifold(out, 8, true)), 4, true)));
    for (const bool on_cuda : {false, true}) {
      const Program program = CompileFor(on_cuda, graph);
      EXPECT_EQ(CountFused(program), c.num_fused);
      EXPECT_EQ(Count<Int8LinearStep>(program), 2 - c.num_fused);
    }
  }
}

TEST(Int8DeviceProgramTest, AShortcutInFloatsIsNotFusedWithAConvolutionIn8Bits) {
  GraphBuilder b(3);
  const int in = b.Relu(b.Submanifold(0, 16, true));
  const int shortcut = b.Linear(in, 32, true);
  const int conv = b.Submanifold(b.Relu(b.Submanifold(in, 32, true)), 32, true);
  const int out = b.Relu(b.Sum(conv, shortcut));
  const Graph graph = WithScales(b.Finish(b.Linear(b.Relu(b.Submanifold(out, 8, true)), 4, true)));
  const auto name = [&](int node) { return graph.nodes[static_cast<size_t>(node)].name; };
  for (const std::vector<std::string>& float_nodes :
       {std::vector{name(shortcut)}, std::vector{name(conv)}, std::vector{name(shortcut), name(conv)}}) {
    const Program program = CompileFor(/*on_cuda=*/true, graph, float_nodes);
    EXPECT_EQ(CountFused(program), 0);
    // Two layers of floats are fused in float16.
    EXPECT_EQ(Count<LinearStep>(program) + Count<Int8LinearStep>(program), float_nodes.size() == 2 ? 1 : 2);
    // The CPU's kernel in float32 fuses none.
    const Program on_cpu = CompileFor(/*on_cuda=*/false, graph, float_nodes);
    EXPECT_EQ(CountFused(on_cpu), 0);
    EXPECT_EQ(Count<LinearStep>(on_cpu) + Count<Int8LinearStep>(on_cpu), 2);
  }
}

TEST(Int8DeviceProgramTest, ImagesAreIn8BitsOnBothDevices) {
  const Graph graph = WithScales(ImageNetwork());
  for (const bool on_cuda : {false, true}) {
    const Program program = CompileFor(on_cuda, graph);
    EXPECT_EQ(Count<Int8Conv2dStep>(program), kImageNetworkConvolutions);
    EXPECT_EQ(Count<Int8LinearStep>(program), 1) << "of one cell";
    EXPECT_EQ(Count<Conv2dStep>(program), 0);
    EXPECT_EQ(Count<Int8ConversionStep>(program), 1) << "of the voxels' image";
  }
}

TEST(Int8DeviceProgramTest, ImagesThatTheGpusKernelDoesNotServeStayInFloat16) {
  const kernels::Conv2dGeometry plain{.kernel_size = {3, 3}, .padding = {1, 1}};
  struct Case {
    const char* name;
    int in_channels, out_channels;
    kernels::Conv2dGeometry geometry;
    int on_gpu;  // steps in 8 bits
  };
  for (const Case& c : std::vector<Case>{
           {"served", 64, 64, plain, 1},
           {"channels that fill no chunk", 96, 64, plain, 0},
           {"few output channels", 64, 32, plain, 0},
           {"a stride beyond that of tensor copies",
            64,
            64,
            {.kernel_size = {7, 7}, .stride = {9, 9}, .padding = {3, 3}},
            0},
       }) {
    SCOPED_TRACE(c.name);
    GraphBuilder b(19, kernels::CoordinateRule::kFloor, /*dimension=*/2);
    const int image = b.ToDense(b.Relu(b.Linear(0, c.in_channels, true)));
    const int last = b.Conv2d(image, c.geometry, c.out_channels, true);
    const Graph graph = WithScales(b.Finish(b.GlobalPool(last, kernels::PoolReduce::kMax)));
    EXPECT_EQ(Count<Int8Conv2dStep>(CompileFor(/*on_cuda=*/false, graph)), 1);
    EXPECT_EQ(Count<Int8Conv2dStep>(CompileFor(/*on_cuda=*/true, graph)), c.on_gpu);
  }
}

TEST(Int8DeviceProgramTest, ImagesStayInFloat16OnAGpuWithoutTheirKernel) {
  const Graph graph = WithScales(ImageNetwork());
  const Program program = CompileFor(/*on_cuda=*/true, graph, {}, /*has_int8_images=*/false);
  EXPECT_EQ(Count<Int8Conv2dStep>(program), 0);
  EXPECT_GT(Count<Conv2dStep>(program), 0);
  EXPECT_EQ(Count<Int8LinearStep>(program), 1) << "of one cell";
}

// Two convolutions of one image are one product in float16.
TEST(Int8DeviceProgramTest, ConvolutionsOfOneImageAreMergedInFloat16OnAGpu) {
  GraphBuilder b(20, kernels::CoordinateRule::kFloor, /*dimension=*/2);
  const kernels::Conv2dGeometry plain{.kernel_size = {3, 3}, .padding = {1, 1}};
  const int image = b.Relu(b.Conv2d(b.ToDense(b.Relu(b.Linear(0, 64, true))), plain, 64, true));
  const int left = b.Relu(b.Conv2d(image, plain, 64, true)), right = b.Relu(b.Conv2d(image, plain, 64, true));
  const Graph graph = WithScales(b.Finish(b.FromDense(b.Sum(left, right), 0)));
  const Program on_gpu = CompileFor(/*on_cuda=*/true, graph);
  EXPECT_EQ(Count<Int8Conv2dStep>(on_gpu), 1);
  EXPECT_EQ(Count<Conv2dStep>(on_gpu), 1);
  EXPECT_EQ(Count<Int8Conv2dStep>(CompileFor(/*on_cuda=*/false, graph)), 3);
}

TEST(Int8DeviceProgramTest, NarrowImagesStayInFloat16OnAGpu) {
  GraphBuilder b(14, kernels::CoordinateRule::kFloor, /*dimension=*/2);
  const int sites = b.Relu(b.Linear(b.Relu(b.Submanifold(0, 16, true)), 16, true));
  const kernels::Conv2dGeometry plain{.kernel_size = {3, 3}, .padding = {1, 1}};
  const int image = b.Relu(b.Conv2d(b.ToDense(sites), plain, 32, true));
  const int left = b.Conv2d(image, plain, 8, true), right = b.Conv2d(image, plain, 8, true);
  const int back = b.FromDense(b.Sum(b.Relu(left), b.Relu(right)), sites);
  const Graph graph = WithScales(b.Finish(b.Linear(b.Relu(b.Submanifold(back, 16, true)), 4, true)));
  const Program on_gpu = CompileFor(/*on_cuda=*/true, graph), on_cpu = CompileFor(/*on_cuda=*/false, graph);
  EXPECT_EQ(Count<Int8Conv2dStep>(on_cpu), 3);
  EXPECT_EQ(Count<Int8Conv2dStep>(on_gpu), 0);
  EXPECT_EQ(Count<Conv2dStep>(on_gpu), 2) << "two read the same image and are merged";
  // Of the voxels, which a convolution reads, and of the rows that come back from the image.
  EXPECT_EQ(Count<Int8ConversionStep>(on_gpu), 2);
}

TEST(Int8DeviceProgramTest, ProductsOfFloatsAreMergedOnAGpuAndThoseIn8BitsAreNot) {
  GraphBuilder b(15);
  const int in = b.Relu(b.Submanifold(0, 16, true));
  std::vector<int> floats, others;
  for (int i = 0; i < 3; ++i) floats.push_back(b.Linear(in, 16, true));
  for (int i = 0; i < 3; ++i) others.push_back(b.Linear(in, 16, true));
  const int a = b.Attention(floats[0], floats[1], floats[2], 2, 0.5f);
  const int c = b.Attention(others[0], others[1], others[2], 2, 0.5f);
  const Graph graph = WithScales(b.Finish(b.Linear(b.Sum(a, c), 4, true)));
  std::vector<std::string> names;
  for (const int node : floats) names.push_back(graph.nodes[static_cast<size_t>(node)].name);
  const Program on_gpu = CompileFor(/*on_cuda=*/true, graph, names);
  EXPECT_EQ(Count<LinearStep>(on_gpu), 1);
  EXPECT_EQ(Count<Int8LinearStep>(on_gpu), 4);
  const Program on_cpu = CompileFor(/*on_cuda=*/false, graph, names);
  EXPECT_EQ(Count<LinearStep>(on_cpu), 3);
}

TEST(Int8DeviceProgramTest, VoxelsStayFloat32WhereOnlyLayersIn8BitsReadThem) {
  const UNet unet;
  const Program program = CompileFor(/*on_cuda=*/true, unet.graph);
  EXPECT_EQ(CountBuffers(program, DType::kFloat16), 0);
  EXPECT_EQ(CountBuffers(program, DType::kFloat32), 2) << "the voxels' and the head's";
  EXPECT_EQ(Count<Int8ConversionStep>(program), 1);
}

// A part whose rows would begin between multiples of 16 bytes is copied on a GPU.
TEST(Int8DeviceProgramTest, PartsOfAConcatenationAreWrittenInPlaceWhereTheyAreAligned) {
  for (const int channels : {16, 24}) {
    GraphBuilder b(16);
    const int left = b.Relu(b.Submanifold(0, channels, true)), right = b.Relu(b.Submanifold(0, 8, true));
    const Graph graph =
        WithScales(b.Finish(b.Linear(b.Relu(b.Submanifold(b.Concat({left, right}), 8, true)), 4, true)));
    // The voxels' features are converted in either case.
    EXPECT_EQ(Count<Int8ConversionStep>(CompileFor(/*on_cuda=*/true, graph)), channels == 16 ? 1 : 2);
    EXPECT_EQ(Count<Int8ConversionStep>(CompileFor(/*on_cuda=*/false, graph)), 1);
  }
}

// Where the activation commutes with a scale, the output's scale is part of the other arrays.
TEST(Int8DeviceProgramTest, TheOutputsScaleIsFoldedBehindReluAlone) {
  GraphBuilder b(17);
  const int relu = b.Relu(b.Submanifold(0, 16, true));
  const int plain = b.Submanifold(relu, 16, true);
  const int leaky = b.Activation(b.Submanifold(plain, 16, true), {kernels::ActivationFunction::kLeakyRelu, 0.1f});
  const int sum = b.Sum(b.Submanifold(leaky, 16, true), relu);
  const Graph graph = WithScales(b.Finish(b.Linear(b.Submanifold(sum, 16, true), 4, true)));
  const Program program = CompileFor(/*on_cuda=*/false, graph);
  const auto convs = StepsOf<Int8ConvStep>(program);
  ASSERT_EQ(convs.size(), 5U);
  const auto epilogue = [&](size_t conv) -> const FusedInt8Epilogue& { return convs[conv]->options().epilogue; };
  for (const size_t folded : {0, 1, 3, 4}) EXPECT_TRUE(epilogue(folded).inverse_scale.empty()) << folded;
  ASSERT_EQ(epilogue(2).inverse_scale.values().size(), 16U);
  EXPECT_EQ(epilogue(2).inverse_scale.values()[3], 8.0f);
  // The residual's scale and the output's are the same here.
  ASSERT_EQ(epilogue(3).residual_scale.values().size(), 16U);
  EXPECT_EQ(epilogue(3).residual_scale.values()[5], 1.0f);
}

}  // namespace
}  // namespace voxserve::int8_device_program_test
