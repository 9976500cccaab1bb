// Times the implicit GEMM on layers of more than 128 output channels, with every block of 128 columns or more that does
// not split sums (ConvBlock). The rows and their neighbours are those of a real scan: MinkUNet's levels, with 27
// offsets, and the same rows as a linear layer. Features are fp16, with bias and ReLU. The default is one of the
// blocks.
//
//   wide_blocks_cuda_bench [SCAN]
//
// SCAN is a name in tests/support/real_scans.h. Without it the scan is semantickitti-00/000000. Voxels are 5 cm there
// and 10 cm elsewhere. Blocks take turns; a time is the median of the turns. The program fails if two blocks give
// different bytes.

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/runtime/cuda_devices.h"
#include "kernels/conv/implicit_gemm/implicit_gemm.h"
#include "tests/bench/event_timer.h"
#include "tests/bench/half_layers.h"
#include "tests/bench/scan_convolutions.h"
#include "tests/support/test_device.h"

namespace voxserve::bench {
namespace {

using kernels::ConvBlock;
using kernels::DType;
using kernels::ImplicitGemmParams;
using support::Device;
using support::DeviceArray;

constexpr int kNumRuns = 10, kTurns = 3;
// The blocks of the table, without the default.
constexpr std::pair<int32_t, int32_t> kBlocks[] = {{128, 128}, {64, 128}, {128, 160}, {64, 160},
                                                   {128, 192}, {64, 192}, {128, 256}, {64, 256}};

// A layer of the table: a convolution by the tiles form, or a linear layer without one.
class Layer {
 public:
  Layer(const ScanConvolution& conv, const StepContext& context, bool is_linear, int32_t in_channels,
        int32_t out_channels)
      : stream_(context.stream()),
        num_rows_(conv.tables.num_out_rows),
        in_channels_(in_channels),
        out_channels_(out_channels),
        tiles_(is_linear ? kernels::TilesView{.num_offsets = 1, .out_capacity = conv.tables.num_out_rows}
                         : context.device_geometry->tiles(conv.layer.rulebook)),
        in_(RandomHalves(Values(conv.tables.num_in_rows, in_channels), 0.5f)),
        weights_(RandomWeights(tiles_.num_offsets, in_channels, out_channels)),
        bias_(Device::kCuda, std::vector<float>(static_cast<size_t>(out_channels), 0.125f)),
        out_(Device::kCuda, Values(num_rows_, out_channels)) {}

  // Prints the layer's row of the table. Returns false if two blocks give different bytes.
  bool Print() {
    std::vector<ConvBlock> blocks = {{}};
    for (const ConvBlock& block : kernels::cuda::ImplicitGemmBlocks(DType::kFloat16, out_channels_)) {
      if (!block.uses_mma_sync && block.split_k == 1 && block.columns >= 128) blocks.push_back(block);
    }
    const bool are_equal = HaveEqualBytes(blocks);
    std::map<std::pair<int32_t, int32_t>, std::vector<double>> us;
    for (int turn = 0; turn < kTurns; ++turn) {
      for (const ConvBlock& block : blocks) us[{block.rows, block.columns}].push_back(Microseconds(block));
    }
    std::string row =
        absl::StrFormat("| %d | %d | %d | %d |", num_rows_, tiles_.num_offsets, in_channels_, out_channels_);
    std::vector<std::pair<int32_t, int32_t>> columns = {{0, 0}};
    columns.insert(columns.end(), std::begin(kBlocks), std::end(kBlocks));
    for (const auto& column : columns) {
      const auto found = us.find(column);
      if (found == us.end()) {
        row += " |";
        continue;
      }
      std::vector<double>& times = found->second;
      std::sort(times.begin(), times.end());
      row += absl::StrFormat(" %.1f |", times[times.size() / 2]);
    }
    std::puts(row.c_str());
    std::fflush(stdout);
    return are_equal;
  }

 private:
  // Channels are multiples of 8 here, so rows have whole vectors.
  static size_t Values(int64_t rows, int32_t channels) { return static_cast<size_t>(rows * channels); }

  void Queue(const ConvBlock& block) const {
    const ImplicitGemmParams params{
        .tiles = tiles_,
        .operands = {.in = {.data = in_.data(),
                            .dtype = DType::kFloat16,
                            .channels = in_channels_,
                            .pitch = in_channels_,
                            .capacity = static_cast<int64_t>(in_.size()) / in_channels_},
                     .out = {.data = out_.data(),
                             .dtype = DType::kFloat16,
                             .channels = out_channels_,
                             .pitch = out_channels_,
                             .capacity = num_rows_},
                     .weights = weights_.data(),
                     .epilogue = {.bias = bias_.data(), .activation = kernels::ActivationFunction::kRelu}},
        .block = block};
    support::ExpectCudaSuccess(kernels::cuda::ImplicitGemm(params, stream_));
  }

  double Microseconds(const ConvBlock& block) const {
    const auto launch = [&](const MarkStep&) { Queue(block); };
    return TimeOnGpu(stream_, /*num_steps=*/0, launch, kNumRuns).back_to_back_ms * 1e3;
  }

  bool HaveEqualBytes(const std::vector<ConvBlock>& blocks) const {
    std::vector<uint16_t> expected;
    for (const ConvBlock& block : blocks) {
      std::vector<uint16_t> found(out_.size());
      support::ExpectCudaSuccess(cudaMemsetAsync(out_.data(), 0xFF, out_.size() * sizeof(__half), stream_));  // NaN
      Queue(block);
      support::ExpectCudaSuccess(cudaStreamSynchronize(stream_));
      support::CopyFromDevice(Device::kCuda, found.data(), out_.data(), found.size() * sizeof(uint16_t));
      if (expected.empty()) expected = found;
      if (found == expected) continue;
      std::fprintf(stderr,
                   "a block of %d x %d gives other bytes than the default, with %d offsets, %d to %d channels\n",
                   block.rows, block.columns, tiles_.num_offsets, in_channels_, out_channels_);
      return false;
    }
    return true;
  }

  const cudaStream_t stream_;
  const int64_t num_rows_;
  const int32_t in_channels_, out_channels_;
  const kernels::TilesView tiles_;
  const DeviceArray<__half> in_, weights_;
  const DeviceArray<float> bias_;
  const DeviceArray<__half> out_;
};

int Main(int argc, char** argv) {
  const auto [scan, voxel_size_m] = ScanOfArguments(argc, argv);
  std::printf("%s, CUDA %s, medians of %d turns of %d runs, %s, %.0f cm, fp16, us\n\n",
              ListCudaDevices().front().name.c_str(), CudaVersion().c_str(), kTurns, kNumRuns, scan.name,
              voxel_size_m * 100);
  std::string header = "| rows | offsets | in | out | default |", rule = "|--:|--:|--:|--:|--:|";
  for (const auto& [rows, columns] : kBlocks) {
    header += absl::StrFormat(" %d x %d |", rows, columns);
    rule += "--:|";
  }
  std::printf("%s\n%s\n", header.c_str(), rule.c_str());
  ScanConvolutions convs(/*width=*/0.5, scan, voxel_size_m);
  const StepContext context = convs.context();
  bool are_equal = true;
  for (const ScanConvolution* const conv : convs.OfLevels()) {
    for (const auto& [in, out] : {std::pair(144, 144), std::pair(192, 192), std::pair(320, 320)}) {
      are_equal = Layer(*conv, context, /*is_linear=*/false, in, out).Print() && are_equal;
    }
    for (const auto& [in, out] : {std::pair(72, 144), std::pair(144, 144), std::pair(192, 192), std::pair(192, 576)}) {
      are_equal = Layer(*conv, context, /*is_linear=*/true, in, out).Print() && are_equal;
    }
  }
  support::Synchronize();
  return are_equal ? 0 : 1;
}

}  // namespace
}  // namespace voxserve::bench

int main(int argc, char** argv) { return voxserve::bench::Main(argc, argv); }
