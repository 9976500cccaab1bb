// Implicit GEMMs one behind the other. A launch begins before the one in front of it has ended, so it must wait before
// it reads what that one stores, and before it overwrites what that one reads.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/kernels/conv/implicit_gemm/implicit_gemm_testing.h"

namespace voxserve::kernels {
namespace {

using support::DeviceArray;
using support::ExpectCudaSuccess;
using support::TestStream;

using ImplicitGemmChainTest = ImplicitGemmTest;

constexpr int32_t kOffsets = 27;
constexpr int32_t kChannels = 96;
constexpr int kLaunches = 16;

// Convolutions to and fro between two matrices, each with its input as the residual.
class Chain {
 public:
  Chain(DType dtype, int64_t num_rows, Random& random)
      : dtype_(dtype),
        table_(RandomNeighbours(Presence::kRandom, 0.2, kOffsets, num_rows, num_rows, num_rows, random)),
        tiles_(table_, RowsInTileOrder(table_, SortOrder{}), num_rows),
        start_(num_rows, kChannels, {}, &random, dtype),
        weights_(PackedWeights(kOffsets, kChannels, kChannels, dtype, SmallWeights(dtype, random))) {}

  // waits: until each launch has ended.
  std::vector<uint8_t> Run(const ConvBlock& block, bool waits) const {
    const DeviceMatrix matrices[] = {{Device::kCuda, dtype_, start_}, {Device::kCuda, dtype_, start_}};
    ImplicitGemmParams params = ParamsOf(matrices[0], matrices[1], block);
    const DeviceArray<uint8_t> workspace(Device::kCuda, cuda::ImplicitGemmWorkspaceBytes(params));
    support::Synchronize();
    for (int i = 0; i < kLaunches; ++i) {
      params = ParamsOf(matrices[i % 2], matrices[1 - i % 2], block);
      params.workspace = workspace.data();
      ExpectCudaSuccess(cuda::ImplicitGemm(params, TestStream()));
      if (waits) support::Synchronize();
    }
    support::Synchronize();
    return matrices[kLaunches % 2].Bytes();
  }

 private:
  static std::vector<float> SmallWeights(DType dtype, Random& random) {
    std::vector<float> weights = random.Floats(int64_t{kOffsets} * kChannels * kChannels, dtype);
    for (float& weight : weights) weight *= 0.0625f;
    return weights;
  }

  ImplicitGemmParams ParamsOf(const DeviceMatrix& in, const DeviceMatrix& out, const ConvBlock& block) const {
    return {.tiles = tiles_.View(),
            .operands = {in.View(),
                         out.View(),
                         weights_.data(),
                         {.residual = ConstRows(in.View()), .activation = ActivationFunction::kTanh}},
            .block = block};
  }

  DType dtype_;
  NeighbourTable table_;
  DeviceTiles tiles_;
  Matrix start_;
  DeviceValues weights_;
};

TEST_P(ImplicitGemmChainTest, LaunchesInARowGiveWhatTheyGiveOneByOne) {
  Random random(88);
  // Fewer items than a GPU runs blocks, so that those of several launches are there at once; and more.
  for (const int64_t num_rows : {int64_t{300}, int64_t{5'000}, int64_t{40'000}}) {
    const Chain chain(GetParam(), num_rows, random);
    for (const ConvBlock& block : AllBlocks(GetParam(), kChannels)) {
      SCOPED_TRACE(testing::Message() << num_rows << " rows, " << testing::PrintToString(block));
      const std::vector<uint8_t> expected = chain.Run(block, /*waits=*/true);
      for (int run = 0; run < 4; ++run) ASSERT_EQ(chain.Run(block, /*waits=*/false), expected) << "run " << run;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, ImplicitGemmChainTest, FactorDTypes(), DTypeName);

}  // namespace
}  // namespace voxserve::kernels
