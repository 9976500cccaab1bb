// Times the convolution of a transformer block and the layer norms behind it: x_new = x + LayerNorm(convolution(x)) and
// LayerNorm(x_new), by two kernels and by one (kernels/conv/implicit_gemm/normed_implicit_gemm.h). The rows and their
// neighbours are those of a real scan, with 27 offsets; levels have the channels of PTv3-base. Features are float16.
//
//   conv_norm_cuda_bench [SCAN]
//
// SCAN is a name in tests/support/real_scans.h. Without it the scan is semantickitti-00/000000. Voxels are 5 cm there
// and 10 cm elsewhere. Each time is that of one block of a CUDA graph of kBlocksOfGraph, each of which reads the x_new
// of the one before. Ways take turns; a time is the median of all runs. The program fails if two ways give different
// bytes.

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/runtime/cuda_devices.h"
#include "kernels/conv/implicit_gemm/normed_implicit_gemm.h"
#include "tests/bench/half_layers.h"
#include "tests/bench/scan_convolutions.h"
#include "tests/support/test_device.h"

namespace voxserve::bench {
namespace {

using kernels::ConvBlock;
using kernels::DType;
using kernels::ImplicitGemmParams;
using kernels::RowNormParams;
using kernels::cuda::ImplicitGemmNorms;
using support::Device;
using support::DeviceArray;
using support::ExpectCudaSuccess;

constexpr int kBlocksOfGraph = 40, kTurns = 3, kNumRuns = 8;
// Channels by level. The first level has both; a block of the decoder has 64 channels there. The fifth has 512 in
// PTv3-base, of which a block does not hold whole rows.
constexpr std::pair<size_t, int32_t> kLevels[] = {{0, 32}, {0, 64}, {1, 64}, {2, 128}, {3, 256}, {4, 256}};

// How a block is computed.
struct Way {
  enum Kind { kConvolution, kTwoKernels, kOneKernel } kind;
  int32_t rows;  // of the convolution's block; 0: the default
};
constexpr Way kWays[] = {{Way::kConvolution, 0}, {Way::kTwoKernels, 0}, {Way::kOneKernel, 64}, {Way::kOneKernel, 128}};

DeviceArray<float> RandomFloats(int32_t count, float least, float largest) {
  std::minstd_rand engine(9);
  std::uniform_real_distribution<float> uniform(least, largest);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = uniform(engine);
  return {Device::kCuda, values};
}

float FloatOf(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }

class Block {
 public:
  Block(const ScanConvolution& conv, const StepContext& context, int32_t channels)
      : stream_(context.stream()),
        num_rows_(conv.tables.num_out_rows),
        channels_(channels),
        tiles_(context.device_geometry->tiles(conv.layer.rulebook)),
        x_(RandomHalves(NumValues(), 1.0f)),
        from_(Device::kCuda, NumValues()),
        to_(Device::kCuda, NumValues()),
        convolved_(Device::kCuda, NumValues()),
        second_(Device::kCuda, NumValues()),
        weights_(RandomWeights(tiles_.num_offsets, channels, channels)),
        bias_(RandomFloats(channels, -0.1f, 0.1f)),
        norm_weight_(RandomFloats(channels, 0.5f, 1.5f)),
        norm_bias_(RandomFloats(channels, -0.2f, 0.2f)) {}

  // Prints the level's row of the table. Returns false if two ways give different bytes.
  bool Print() {
    std::vector<Way> ways;
    for (const Way& way : kWays) {
      if (way.kind != Way::kOneKernel || ImplicitGemmNorms(ParamsOf(way, 0), NormOf(0))) ways.push_back(way);
    }
    std::string differences;
    for (const Way& way : ways) {
      if (way.kind == Way::kOneKernel) differences += Differences(way);
    }
    std::map<std::pair<int, int32_t>, std::vector<double>> us;
    for (int turn = 0; turn < kTurns; ++turn) {
      for (const Way& way : ways) AddTimes(way, us[{way.kind, way.rows}]);
    }
    std::string row = absl::StrFormat("| %d | %d |", num_rows_, channels_);
    for (const Way& way : kWays) {
      std::vector<double>& times = us[{way.kind, way.rows}];
      std::sort(times.begin(), times.end());
      row += times.empty() ? " |" : absl::StrFormat(" %.2f |", times[times.size() / 2]);
    }
    const bool is_fused = ImplicitGemmNorms(ParamsOf({Way::kOneKernel, 0}, 0), NormOf(0));
    std::printf("%s %s | %s |\n", row.c_str(), is_fused ? "yes" : "no",
                differences.empty() ? "0" : differences.c_str());
    std::fflush(stdout);
    return differences.empty();
  }

 private:
  size_t NumValues() const { return static_cast<size_t>(num_rows_ * channels_); }

  kernels::Rows RowsOf(const DeviceArray<__half>& values) const {
    return {.data = values.data(),
            .dtype = DType::kFloat16,
            .channels = channels_,
            .pitch = channels_,
            .capacity = num_rows_};
  }
  // Blocks read x of even numbers from one matrix and write it to the other.
  const DeviceArray<__half>& InOf(int block) const { return block % 2 == 0 ? from_ : to_; }
  const DeviceArray<__half>& OutOf(int block) const { return InOf(block + 1); }

  ImplicitGemmParams ParamsOf(const Way& way, int block) const {
    ConvBlock shape;
    if (way.rows > 0) shape = {.rows = way.rows, .columns = channels_, .split_k = 1};
    return {.tiles = tiles_,
            .operands = {.in = RowsOf(InOf(block)),
                         .out = RowsOf(convolved_),
                         .weights = weights_.data(),
                         .epilogue = {.bias = bias_.data()}},
            .block = shape};
  }
  RowNormParams NormOf(int block) const {
    return {
        .kind = kernels::RowNorm::kLayerNorm,
        .epsilon = 1e-5f,
        .weight = norm_weight_.data(),
        .bias = norm_bias_.data(),
        .residual = RowsOf(InOf(block)),
        .in = RowsOf(convolved_),
        .out = RowsOf(OutOf(block)),
        .second = {.epsilon = 1e-5f, .weight = norm_weight_.data(), .bias = norm_bias_.data(), .out = RowsOf(second_)}};
  }

  void Queue(const Way& way, int block) const {
    const ImplicitGemmParams params = ParamsOf(way, block);
    if (way.kind == Way::kOneKernel) {
      ExpectCudaSuccess(kernels::cuda::NormedImplicitGemm(params, NormOf(block), stream_));
      return;
    }
    ExpectCudaSuccess(kernels::cuda::ImplicitGemm(params, stream_));
    if (way.kind == Way::kTwoKernels) ExpectCudaSuccess(kernels::cuda::NormalizeRows(NormOf(block), stream_));
  }

  void Reset() const {
    ExpectCudaSuccess(
        cudaMemcpyAsync(from_.data(), x_.data(), NumValues() * sizeof(__half), cudaMemcpyDeviceToDevice, stream_));
    ExpectCudaSuccess(
        cudaMemcpyAsync(to_.data(), x_.data(), NumValues() * sizeof(__half), cudaMemcpyDeviceToDevice, stream_));
  }

  // Adds the microseconds of a block in each of kNumRuns runs of the graph.
  void AddTimes(const Way& way, std::vector<double>& us) const {
    Queue(way, 0);  // sets the kernel's attributes
    ExpectCudaSuccess(cudaStreamSynchronize(stream_));
    ExpectCudaSuccess(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int block = 0; block < kBlocksOfGraph; ++block) Queue(way, block);
    cudaGraph_t graph = nullptr;
    ExpectCudaSuccess(cudaStreamEndCapture(stream_, &graph));
    cudaGraphExec_t runs = nullptr;
    ExpectCudaSuccess(cudaGraphInstantiate(&runs, graph, 0));
    cudaEvent_t begin = nullptr, end = nullptr;
    ExpectCudaSuccess(cudaEventCreate(&begin));
    ExpectCudaSuccess(cudaEventCreate(&end));
    constexpr int kNotCounted = 2;
    for (int run = -kNotCounted; run < kNumRuns; ++run) {
      Reset();
      ExpectCudaSuccess(cudaEventRecord(begin, stream_));
      ExpectCudaSuccess(cudaGraphLaunch(runs, stream_));
      ExpectCudaSuccess(cudaEventRecord(end, stream_));
      ExpectCudaSuccess(cudaStreamSynchronize(stream_));
      float ms = 0;
      ExpectCudaSuccess(cudaEventElapsedTime(&ms, begin, end));
      if (run >= 0) us.push_back(double{ms} * 1e3 / kBlocksOfGraph);
    }
    ExpectCudaSuccess(cudaEventDestroy(begin));
    ExpectCudaSuccess(cudaEventDestroy(end));
    ExpectCudaSuccess(cudaGraphExecDestroy(runs));
    ExpectCudaSuccess(cudaGraphDestroy(graph));
  }

  // Returns both results of two blocks as bits.
  std::vector<uint16_t> ResultsOf(const Way& way) const {
    Reset();
    ExpectCudaSuccess(cudaMemsetAsync(second_.data(), 0xFF, NumValues() * sizeof(__half), stream_));  // NaN
    for (int block = 0; block < 2; ++block) Queue(way, block);
    ExpectCudaSuccess(cudaStreamSynchronize(stream_));
    std::vector<uint16_t> results(3 * NumValues());
    const __half* const of_device[] = {to_.data(), from_.data(), second_.data()};
    for (size_t i = 0; i < 3; ++i) {
      support::CopyFromDevice(Device::kCuda, results.data() + i * NumValues(), of_device[i],
                              NumValues() * sizeof(__half));
    }
    return results;
  }

  // Returns how the results of a way differ from those of two kernels; empty if they do not.
  std::string Differences(const Way& way) const {
    const std::vector<uint16_t> expected = ResultsOf({Way::kTwoKernels, 0}), found = ResultsOf(way);
    int64_t count = 0;
    float most = 0;
    size_t first = expected.size();
    for (size_t i = 0; i < expected.size(); ++i) {
      if (expected[i] == found[i]) continue;
      first = std::min(first, i);
      ++count;
      const float difference = std::fabs(FloatOf(expected[i]) - FloatOf(found[i]));
      most = difference <= most ? most : difference;  // NaN counts
    }
    if (count == 0) return "";
    return absl::StrFormat("%d rows: %d of %d, by %g at most, first in matrix %d, row %d, channel %d; ", way.rows,
                           count, expected.size(), most, first / NumValues(), first % NumValues() / channels_,
                           first % channels_);
  }

  const cudaStream_t stream_;
  const int64_t num_rows_;
  const int32_t channels_;
  const kernels::TilesView tiles_;
  const DeviceArray<__half> x_, from_, to_, convolved_, second_, weights_;
  const DeviceArray<float> bias_, norm_weight_, norm_bias_;
};

int Main(int argc, char** argv) {
  const auto [scan, voxel_size_m] = ScanOfArguments(argc, argv);
  std::printf(
      "%s, CUDA %s, medians of %d turns of %d runs of graphs of %d blocks, %s, %.0f cm, float16, us a block\n\n",
      ListCudaDevices().front().name.c_str(), CudaVersion().c_str(), kTurns, kNumRuns, kBlocksOfGraph, scan.name,
      voxel_size_m * 100);
  std::puts(
      "| rows | channels | convolution | convolution and norms | one kernel, 64 rows | one kernel, 128 rows | "
      "the default is one kernel | values that differ |\n|--:|--:|--:|--:|--:|--:|---|---|");
  ScanConvolutions convs(/*width=*/0.5, scan, voxel_size_m);
  const StepContext context = convs.context();
  bool are_equal = true;
  const std::vector<const ScanConvolution*> levels = convs.OfLevels();
  for (const auto& [level, channels] : kLevels) {
    are_equal = Block(*levels.at(level), context, channels).Print() && are_equal;
  }
  support::Synchronize();
  return are_equal ? 0 : 1;
}

}  // namespace
}  // namespace voxserve::bench

int main(int argc, char** argv) { return voxserve::bench::Main(argc, argv); }
