// Tests implicit GEMMs that are launched one after the other. A launch may start before its predecessor has ended, so
// it must wait before it reads the predecessor's results and before it overwrites the predecessor's inputs.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/kernels/conv/implicit_gemm/implicit_gemm_testing.h"

namespace voxserve::kernels::implicit_gemm_chain_cuda_test {
namespace {

using support::DeviceArray;
using support::ExpectCudaSuccess;
using support::TestStream;

using ImplicitGemmChainTest = ImplicitGemmTest;

constexpr int32_t kOffsets = 27;
constexpr int32_t kChannels = 96;
constexpr int kLaunches = 16;

std::vector<float> SmallWeights(int32_t num_offsets, DType dtype, Random& random) {
  std::vector<float> weights = random.Floats(int64_t{num_offsets} * kChannels * kChannels, dtype);
  for (float& weight : weights) weight *= 0.03125f;
  return weights;
}

// One convolution of a chain.
struct Link {
  ConvBlock block;
  ActivationFunction activation = ActivationFunction::kRelu;
  bool is_linear = false;  // each output row reads only the input row of the same index
};

// kOneByOne waits after each convolution, kInARow launches all without a wait, and kReplayed launches all from a
// captured graph.
enum class How { kOneByOne, kInARow, kReplayed };

// Runs convolutions that alternate between two matrices: each reads one, writes the other, and adds its input as
// residual.
class Chain {
 public:
  Chain(DType dtype, int64_t num_rows, Random& random)
      : dtype_(dtype),
        table_(RandomNeighbours(Presence::kRandom, 0.2, kOffsets, num_rows, num_rows, num_rows, random)),
        tiles_(table_, RowsInTileOrder(table_, SortOrder{}), num_rows),
        start_(num_rows, kChannels, {}, &random, dtype),
        weights_(PackedWeights(kOffsets, kChannels, kChannels, dtype, SmallWeights(kOffsets, dtype, random))),
        linear_weights_(PackedWeights(1, kChannels, kChannels, dtype, SmallWeights(1, dtype, random))) {}

  // Runs all links twice and returns the bytes of the result. The number of links must be even.
  std::vector<uint8_t> Run(const std::vector<Link>& links, How how) const {
    const DeviceMatrix matrices[] = {{Device::kCuda, dtype_, start_}, {Device::kCuda, dtype_, start_}};
    size_t workspace_bytes = 0;
    for (const Link& link : links) {
      workspace_bytes = std::max(workspace_bytes, cuda::ImplicitGemmWorkspaceBytes(ParamsOf(link, matrices, 0)));
    }
    const DeviceArray<uint8_t> workspace(Device::kCuda, workspace_bytes);
    const auto launch = [&] {
      for (size_t i = 0; i < links.size(); ++i) {
        ImplicitGemmParams params = ParamsOf(links[i], matrices, i);
        params.workspace = workspace.data();
        ExpectCudaSuccess(cuda::ImplicitGemm(params, TestStream()));
        if (how == How::kOneByOne) support::Synchronize();
      }
    };
    support::Synchronize();
    if (how == How::kReplayed) {
      ExpectCudaSuccess(cudaStreamBeginCapture(TestStream(), cudaStreamCaptureModeThreadLocal));
      launch();
      cudaGraph_t graph = nullptr;
      ExpectCudaSuccess(cudaStreamEndCapture(TestStream(), &graph));
      cudaGraphExec_t replay = nullptr;
      ExpectCudaSuccess(cudaGraphInstantiate(&replay, graph, 0));
      for (int round = 0; round < 2; ++round) ExpectCudaSuccess(cudaGraphLaunch(replay, TestStream()));
      support::Synchronize();
      ExpectCudaSuccess(cudaGraphExecDestroy(replay));
      ExpectCudaSuccess(cudaGraphDestroy(graph));
    } else {
      for (int round = 0; round < 2; ++round) launch();
      support::Synchronize();
    }
    const std::vector<int32_t> counters = tiles_.Counters();
    EXPECT_EQ(std::count(counters.begin(), counters.end(), 0), static_cast<ptrdiff_t>(counters.size()));
    const std::vector<float> values = matrices[0].ToHost().values;
    EXPECT_TRUE(std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); }));
    return matrices[0].Bytes();
  }

 private:
  ImplicitGemmParams ParamsOf(const Link& link, const DeviceMatrix (&matrices)[2], size_t index) const {
    const DeviceMatrix &in = matrices[index % 2], &out = matrices[1 - index % 2];
    TilesView tiles = tiles_.View();
    if (link.is_linear) {
      tiles.num_offsets = 1;
      tiles.out_rows = tiles.in_rows = nullptr;
      tiles.masks = nullptr;
    }
    return {.tiles = tiles,
            .operands = {in.View(),
                         out.View(),
                         (link.is_linear ? linear_weights_ : weights_).data(),
                         {.residual = ConstRows(in.View()), .activation = link.activation}},
            .block = link.block};
  }

  DType dtype_;
  NeighbourTable table_;
  DeviceTiles tiles_;
  Matrix start_;
  DeviceValues weights_;
  DeviceValues linear_weights_;
};

// With the first two counts, a launch has fewer items of work than the GPU runs blocks, so several launches run
// together. The last count gives more items.
constexpr int64_t kNumRows[] = {300, 5'000, 40'000};

TEST_P(ImplicitGemmChainTest, LaunchesInARowGiveWhatTheyGiveOneByOne) {
  Random random(88);
  for (const int64_t num_rows : kNumRows) {
    const Chain chain(GetParam(), num_rows, random);
    for (const ConvBlock& block : AllBlocks(GetParam(), kChannels)) {
      SCOPED_TRACE(testing::Message() << num_rows << " rows, " << testing::PrintToString(block));
      // ReLU has its own code for storing sums; tanh stands for all other activations.
      for (const ActivationFunction activation : {ActivationFunction::kRelu, ActivationFunction::kTanh}) {
        const std::vector<Link> links(kLaunches, {.block = block, .activation = activation});
        const std::vector<uint8_t> expected = chain.Run(links, How::kOneByOne);
        for (int run = 0; run < 2; ++run) ASSERT_EQ(chain.Run(links, How::kInARow), expected) << "run " << run;
      }
    }
  }
}

// Mixes blocks with and without split sums, blocks of single warps (which wait for the whole predecessor), and linear
// layers, in random order.
TEST_P(ImplicitGemmChainTest, LaunchesOfDifferentBlocksInARowToo) {
  Random random(89);
  const std::vector<ConvBlock> blocks = AllBlocks(GetParam(), kChannels);
  for (const int64_t num_rows : kNumRows) {
    const Chain chain(GetParam(), num_rows, random);
    for (int order = 0; order < 8; ++order) {
      SCOPED_TRACE(testing::Message() << num_rows << " rows, order " << order);
      std::vector<Link> links(kLaunches);
      for (Link& link : links) {
        link = {.block = random.OneOf(blocks),
                .activation = random.OneOf(std::vector<ActivationFunction>{
                    ActivationFunction::kNone, ActivationFunction::kRelu, ActivationFunction::kTanh}),
                .is_linear = random.Chance(0.3)};
        // Without a block of its own, a linear layer runs the kernel of linear_rows.h.
        if (link.is_linear && random.Chance(0.6)) link.block = {};
      }
      const std::vector<uint8_t> expected = chain.Run(links, How::kOneByOne);
      for (const How how : {How::kInARow, How::kReplayed}) {
        for (int run = 0; run < 2; ++run) ASSERT_EQ(chain.Run(links, how), expected) << "run " << run;
      }
    }
  }
}

// Makes new tiles in memory that an earlier launch may still read; the next launch begins while they are made. Two
// rulebooks with different masks, tile weights and numbers of rows alternate in that memory, and the number of rows in
// device memory changes too.
TEST_P(ImplicitGemmChainTest, TilesMadeBetweenLaunchesAreThoseThatTheyRead) {
  const DType dtype = GetParam();
  Random random(90);
  for (const int64_t capacity : {400, 5'000}) {
    const NeighbourTable tables[] = {
        RandomNeighbours(Presence::kRandom, 0.05, kOffsets, capacity - 3, capacity, capacity, random),
        RandomNeighbours(Presence::kAlike, 0.5, kOffsets, capacity / 2, capacity, capacity, random)};
    const DeviceArray<int32_t> neighbours[] = {{Device::kCuda, tables[0].in_rows}, {Device::kCuda, tables[1].in_rows}};
    const DeviceArray<int64_t> counts(Device::kCuda, {tables[0].num_rows, tables[1].num_rows});
    const TilesMemory memory(kOffsets, capacity);
    const DeviceArray<uint8_t> scratch(Device::kCuda, memory.WorkspaceBytes());
    const Matrix start(capacity, kChannels, {}, &random, dtype);
    const DeviceValues weights =
        PackedWeights(kOffsets, kChannels, kChannels, dtype, SmallWeights(kOffsets, dtype, random));
    const auto run = [&](const ConvBlock& block, bool waits) {
      const DeviceMatrix matrices[] = {{Device::kCuda, dtype, start}, {Device::kCuda, dtype, start}};
      ImplicitGemmParams params{.tiles = memory.View(), .block = block};
      params.operands = {.out = matrices[0].View()};  // the size of the workspace depends only on its channels
      const DeviceArray<uint8_t> workspace(Device::kCuda, cuda::ImplicitGemmWorkspaceBytes(params));
      params.workspace = workspace.data();
      const auto step = [&](cudaError_t status) {
        ExpectCudaSuccess(status);
        if (waits) support::Synchronize();
      };
      support::Synchronize();
      for (size_t i = 0; i < 2 * kLaunches; ++i) {
        const DeviceMatrix &in = matrices[i % 2], &out = matrices[1 - i % 2];
        step(cudaMemcpyAsync(memory.num_out(), counts.data() + i % 2, sizeof(int64_t), cudaMemcpyDeviceToDevice,
                             TestStream()));
        step(memory.Make(neighbours[i % 2].data(), capacity, scratch.data()));
        params.operands = {in.View(), out.View(), weights.data(), {.residual = ConstRows(in.View())}};
        params.operands.epilogue.activation = ActivationFunction::kRelu;
        step(cuda::ImplicitGemm(params, TestStream()));
      }
      support::Synchronize();
      return matrices[0].Bytes();
    };
    for (const ConvBlock& block : AllBlocks(dtype, kChannels)) {
      SCOPED_TRACE(testing::Message() << capacity << " rows, " << testing::PrintToString(block));
      const std::vector<uint8_t> expected = run(block, /*waits=*/true);
      for (int repetition = 0; repetition < 3; ++repetition) {
        ASSERT_EQ(run(block, /*waits=*/false), expected) << "repetition " << repetition;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, ImplicitGemmChainTest, FactorDTypes(), DTypeName);

}  // namespace
}  // namespace voxserve::kernels::implicit_gemm_chain_cuda_test
