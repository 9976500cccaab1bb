#pragma once

// Helpers for tests of the GPU's implicit GEMM (a sparse convolution that reads its input rows in place). They give the
// block sizes (ConvBlock) and dtypes to test, put packed weights and tiles into device memory, run the kernel and wait
// for its end, and check that the run leaves the memory around its output unchanged.

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/conv/implicit_gemm/implicit_gemm.h"
#include "tests/kernels/conv/tiles_testing.h"

namespace voxserve::kernels {

inline auto FactorDTypes() { return testing::Values(DType::kFloat16, DType::kBfloat16, DType::kFloat32); }
inline std::string DTypeName(const testing::TestParamInfo<DType>& dtype) { return NameOf(dtype.param); }

inline void PrintTo(const ConvBlock& block, std::ostream* os) {
  *os << block.rows << " x " << block.columns << ", split K " << block.split_k
      << (block.uses_mma_sync ? ", by warps" : "");
}

// Returns all block sizes that this GPU supports for the dtype and number of channels, and {}, which stands for the
// default block size.
inline std::vector<ConvBlock> AllBlocks(DType dtype, int32_t out_channels) {
  std::vector<ConvBlock> blocks = cuda::ImplicitGemmBlocks(dtype, out_channels);
  blocks.push_back({});
  return blocks;
}

class ImplicitGemmTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    SKIP_WITHOUT(Device::kCuda);
    if (cuda::ImplicitGemmBlocks(GetParam(), 16).empty()) GTEST_SKIP() << "not served by this GPU";
  }
};

// Returns the tolerance of a sum whose terms' magnitudes add up to `magnitude`. It is wider for float32 than
// Tolerance, because the kernel rounds float32 factors to TensorFloat-32, which has only 11 significant bits.
inline double GemmTolerance(DType dtype, double magnitude) {
  return dtype == DType::kFloat32 ? 2e-3 * magnitude + 1e-6 : Tolerance(dtype, magnitude);
}

// Packs weights [K, in channels, out channels] in the layout of implicit GEMMs and copies them to the GPU.
inline DeviceValues PackedWeights(int32_t num_offsets, int32_t in_channels, int32_t out_channels, DType dtype,
                                  const std::vector<float>& weights) {
  return {Device::kCuda, dtype, PackImplicitGemmWeights(num_offsets, in_channels, out_channels, dtype, weights.data())};
}

// Owns the device memory of tiles (kernels/conv/tiles.h), and lets the GPU make them.
class TilesMemory {
 public:
  TilesMemory(int32_t num_offsets, int64_t capacity)
      : num_offsets_(num_offsets),
        capacity_(capacity),
        out_rows_(support::Device::kCuda, static_cast<size_t>(NumTilePlaces(capacity))),
        masks_(support::Device::kCuda,
               static_cast<size_t>(NumTilePlaces(capacity) / kMaskTileRows * MaskWords(num_offsets))),
        in_rows_(support::Device::kCuda, static_cast<size_t>(NumTilePlaces(capacity) * num_offsets)),
        counters_(support::Device::kCuda, static_cast<size_t>(NumTileCounters(capacity))),
        by_weight_(support::Device::kCuda, static_cast<size_t>(NumTilesByWeight(capacity))),
        num_out_(support::Device::kCuda, 1) {}

  // Returns the device address of the number of output rows. The caller sets the number before Make.
  int64_t* num_out() const { return num_out_.data(); }
  size_t WorkspaceBytes() const {
    const TilesParams params = ParamsOf(nullptr, capacity_);
    return cuda::TilesWorkspaceBytes({&params, 1});
  }
  // Queues on TestStream the kernels that make the tiles, and does not wait. neighbours: [num_offsets, pitch], on the
  // GPU.
  cudaError_t Make(const int32_t* neighbours, int64_t pitch, void* workspace) const {
    const TilesParams params = ParamsOf(neighbours, pitch);
    return cuda::MakeTiles({&params, 1}, workspace, support::TestStream());
  }
  TilesView View() const {
    return {.num_offsets = num_offsets_,
            .out_rows = out_rows_.data(),
            .masks = masks_.data(),
            .in_rows = in_rows_.data(),
            .counters = counters_.data(),
            .by_weight = by_weight_.data(),
            .num_out = num_out_.data(),
            .out_capacity = capacity_};
  }

 private:
  TilesParams ParamsOf(const int32_t* neighbours, int64_t pitch) const {
    TilesParams params{.num_offsets = num_offsets_,
                       .neighbours = neighbours,
                       .pitch = pitch,
                       .out_capacity = capacity_,
                       .num_out = num_out_.data(),
                       .out_rows = out_rows_.data(),
                       .masks = masks_.data(),
                       .in_rows = in_rows_.data(),
                       .counters = counters_.data(),
                       .by_weight = by_weight_.data()};
    if (num_offsets_ <= kSortBits) std::iota(params.order.begin(), params.order.begin() + num_offsets_, int8_t{0});
    return params;
  }

  int32_t num_offsets_;
  int64_t capacity_;
  support::DeviceArray<int32_t> out_rows_;
  support::DeviceArray<uint32_t> masks_;
  support::DeviceArray<int32_t> in_rows_;
  support::DeviceArray<int32_t> counters_;
  support::DeviceArray<WeighedTile> by_weight_;
  support::DeviceArray<int64_t> num_out_;
};

// Runs an implicit GEMM with a workspace that is allocated here, and waits until the GPU has finished.
inline cudaError_t RunImplicitGemm(ImplicitGemmParams params) {
  const support::DeviceArray<uint8_t> workspace(support::Device::kCuda, cuda::ImplicitGemmWorkspaceBytes(params));
  params.workspace = workspace.data();
  const cudaError_t status = cuda::ImplicitGemm(params, support::TestStream());
  support::Synchronize();
  return status;
}

// Returns the contents of an output matrix before a run: NaN in the first num_rows rows, where the run must write
// results, and kUntouched in the rows behind and in the margins between rows.
inline Matrix OutBefore(int64_t num_rows, int64_t capacity, int64_t channels, const Margins& margins) {
  Matrix out(capacity, channels, margins, nullptr);
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t c = 0; c < channels; ++c) out.at(row, c) = std::numeric_limits<float>::quiet_NaN();
  }
  return out;
}

// Expects that a run changed neither the margins between rows nor the rows behind the first num_rows.
inline void ExpectUntouched(const Matrix& out, int64_t num_rows) {
  EXPECT_TRUE(out.MarginsAreUntouched());
  for (int64_t row = num_rows; row < out.rows; ++row) {
    for (int64_t c = 0; c < out.channels; ++c) ASSERT_EQ(out.at(row, c), kUntouched) << "row " << row << " of no site";
  }
}

}  // namespace voxserve::kernels
