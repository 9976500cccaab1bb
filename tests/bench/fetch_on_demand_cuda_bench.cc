// The convolutions of MinkUNet on semantickitti-00/000000 one by one: fetch-on-demand (kernels/conv/fetch_on_demand.h)
// for every number of rows that its tiles can have, beside gather-GEMM-scatter as it runs by default. fp16, summed in
// fp32, with bias and ReLU. Both results are compared, and the program fails where they differ by more than rounding.
//
//   fetch_on_demand_cuda_bench [layers]     layers: one table more a network, by convolution
//
// Tables are Markdown. Convolutions run one by one on the same buffers, so that those of the small levels find them in
// the second-level cache, as they do in the network.

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/runtime/cuda_devices.h"
#include "kernels/conv/fetch_on_demand.h"
#include "kernels/conv/gather_gemm_scatter.h"
#include "kernels/core/gemm_cuda.h"
#include "tests/bench/event_timer.h"
#include "tests/bench/scan_convolutions.h"
#include "tests/support/test_device.h"

namespace voxserve::bench {
namespace {

using kernels::DType;
using kernels::MatmulGrouping;
using kernels::PairTablesView;
using support::Device;
using support::DeviceArray;
using support::ExpectCudaSuccess;

constexpr int kNumRuns = 20;

// [K, num_out_rows], of a rulebook's pair tables.
std::vector<int32_t> Neighbours(const PairTablesView& tables) {
  const auto to_host = [&](const int32_t* device, int64_t capacity) {
    std::vector<int32_t> pairs(static_cast<size_t>(tables.num_offsets * capacity));
    support::CopyFromDevice(Device::kCuda, pairs.data(), device, pairs.size() * sizeof(int32_t));
    return pairs;
  };
  const std::vector<int32_t> in_pairs = to_host(tables.in_pairs, tables.in_capacity);
  const std::vector<int32_t> out_pairs = to_host(tables.out_pairs, tables.out_capacity);
  std::vector<int32_t> in_row_of(static_cast<size_t>(tables.offset_begin[tables.num_offsets]), -1);
  std::vector<int32_t> neighbours(static_cast<size_t>(tables.num_offsets * tables.num_out_rows), -1);
  for (int64_t k = 0; k < tables.num_offsets; ++k) {
    for (int64_t row = 0; row < tables.num_in_rows; ++row) {
      const int32_t pair = in_pairs[static_cast<size_t>(k * tables.in_capacity + row)];
      if (pair >= 0) in_row_of.at(static_cast<size_t>(pair)) = static_cast<int32_t>(row);
    }
    for (int64_t row = 0; row < tables.num_out_rows; ++row) {
      const int32_t pair = out_pairs[static_cast<size_t>(k * tables.out_capacity + row)];
      if (pair >= 0) {
        neighbours[static_cast<size_t>(k * tables.num_out_rows + row)] = in_row_of.at(static_cast<size_t>(pair));
      }
    }
  }
  return neighbours;
}

std::unique_ptr<DeviceArray<__half>> RandomHalves(int64_t count, float magnitude) {
  constexpr size_t kPeriod = 1000003;
  std::vector<__half> values(static_cast<size_t>(count));
  uint32_t state = 1;
  for (size_t i = 0; i < std::min(values.size(), kPeriod); ++i) {
    state = state * 1664525 + 1013904223;
    values[i] = __float2half((static_cast<float>(state >> 8) * 0x1p-23f - 1) * magnitude);
  }
  for (size_t i = kPeriod; i < values.size(); ++i) values[i] = values[i - kPeriod];
  return std::make_unique<DeviceArray<__half>>(Device::kCuda, values);
}

// Channels of rows padded to 16 bytes, as the engine keeps them.
int64_t Pitch(int32_t channels) { return (channels + 7) / 8 * 8; }

// One convolution's times.
struct Times {
  GpuTimes gather_gemm_scatter;
  std::map<int32_t, GpuTimes> fetch_on_demand;  // by tile_rows; 0: the default

  // The tile that is the fastest on the device.
  int32_t BestRows() const {
    int32_t best = 0;
    for (const auto& [rows, times] : fetch_on_demand) {
      if (times.back_to_back_ms < fetch_on_demand.at(best).back_to_back_ms) best = rows;
    }
    return best;
  }
};

class Bench {
 public:
  Bench() : workspace_(Device::kCuda, kernels::cuda::Gemm::kWorkspaceBytes) {
    ExpectCudaSuccess(kernels::cuda::Gemm::Create(support::TestStream(), workspace_.data(), &gemm_));
  }
  ~Bench() { support::Synchronize(); }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void Run(double width, bool by_layer) {
    const ScanConvolutions convs(width);
    int64_t in_values = 0, out_values = 0, weight_values = 0, scratch_bytes = 0;
    for (const ScanConvolution& conv : convs.all()) {
      in_values = std::max(in_values, conv.tables.num_in_rows * Pitch(conv.in_channels));
      out_values = std::max(out_values, conv.tables.num_out_rows * Pitch(conv.out_channels));
      weight_values = std::max(weight_values, int64_t{conv.tables.num_offsets} * conv.in_channels * conv.out_channels);
      const MatmulGrouping grouping = Group(conv);
      scratch_bytes = std::max(scratch_bytes, static_cast<int64_t>(kernels::cuda::GatherGemmScatterWorkspaceBytes(
                                                  ByGatherGemmScatter(conv, grouping, nullptr))));
    }
    in_ = RandomHalves(in_values, 0.5f);
    weights_ = RandomHalves(weight_values, 0.1f);
    out_ = std::make_unique<DeviceArray<__half>>(Device::kCuda, static_cast<size_t>(out_values));
    scratch_ = std::make_unique<DeviceArray<char>>(Device::kCuda, static_cast<size_t>(scratch_bytes));
    std::map<int, std::unique_ptr<DeviceArray<int32_t>>> neighbours;  // by rulebook
    std::vector<Times> times;
    for (const ScanConvolution& conv : convs.all()) {
      auto& of_rulebook = neighbours[conv.rulebook];
      if (of_rulebook == nullptr) {
        of_rulebook = std::make_unique<DeviceArray<int32_t>>(Device::kCuda, Neighbours(conv.tables));
      }
      times.push_back(Measure(conv, of_rulebook->data()));
    }
    std::printf("\n### MinkUNet %.1fx, sums over its convolutions\n\n", width);
    PrintSums(convs.all(), times);
    if (by_layer) PrintLayers(convs.all(), times);
    std::fflush(stdout);
  }

  // Whether both gave the same, up to rounding.
  bool are_equal() const { return are_equal_; }

 private:
  // Products are rounded to fp16 between the passes, there.
  static constexpr float kTolerance = 0.01f;
  static constexpr int32_t kMaxChannels = 512;

  static MatmulGrouping Group(const ScanConvolution& conv) {
    return kernels::GroupMatmuls({.num_offsets = conv.tables.num_offsets,
                                  .offset_begin = conv.tables.offset_begin,
                                  .is_symmetric = conv.is_symmetric,
                                  .identity_offset = conv.tables.identity_offset},
                                 {});
  }

  kernels::ConvOperands Operands(const ScanConvolution& conv) const {
    return {.in = {.data = in_ == nullptr ? nullptr : in_->data(),
                   .dtype = DType::kFloat16,
                   .channels = conv.in_channels,
                   .pitch = Pitch(conv.in_channels),
                   .capacity = conv.tables.num_in_rows},
            .out = {.data = out_ == nullptr ? nullptr : out_->data(),
                    .dtype = DType::kFloat16,
                    .channels = conv.out_channels,
                    .pitch = Pitch(conv.out_channels),
                    .capacity = conv.tables.num_out_rows},
            .weights = weights_ == nullptr ? nullptr : weights_->data(),
            .epilogue = {.bias = bias_.data(), .activation = kernels::ActivationFunction::kRelu}};
  }

  kernels::cuda::GatherGemmScatterParams ByGatherGemmScatter(const ScanConvolution& conv,
                                                             const MatmulGrouping& grouping, void* workspace) const {
    return {.tables = conv.tables,
            .is_symmetric = conv.is_symmetric,
            .grouping = &grouping,
            .operands = Operands(conv),
            .workspace = workspace};
  }

  kernels::cuda::FetchOnDemandParams ByFetchOnDemand(const ScanConvolution& conv, const int32_t* neighbours,
                                                     int32_t tile_rows) const {
    return {.neighbours = {.num_offsets = conv.tables.num_offsets,
                           .rows = neighbours,
                           .pitch = conv.tables.num_out_rows,
                           .num_in_rows = conv.tables.num_in_rows,
                           .num_out_rows = conv.tables.num_out_rows,
                           .identity_offset = conv.tables.identity_offset},
            .is_symmetric = conv.is_symmetric,
            .operands = Operands(conv),
            .tile_rows = tile_rows};
  }

  Times Measure(const ScanConvolution& conv, const int32_t* neighbours) {
    const cudaStream_t stream = support::TestStream();
    const MatmulGrouping grouping = Group(conv);
    const kernels::cuda::GatherGemmScatterParams others = ByGatherGemmScatter(conv, grouping, scratch_->data());
    // launch() puts one convolution on the stream.
    const auto time = [&](const auto& launch) {
      return TimeOnGpu(
          stream, /*num_steps=*/0, [&](const MarkStep&) { ExpectCudaSuccess(launch()); }, kNumRuns);
    };
    Times times;
    times.gather_gemm_scatter = time([&] { return kernels::cuda::GatherGemmScatter(others, *gemm_, stream); });
    const std::vector<__half> expected = TakeOutput(conv);
    std::vector<int32_t> tile_rows =
        kernels::cuda::FetchOnDemandTileRows(DType::kFloat16, conv.in_channels, conv.out_channels);
    tile_rows.push_back(0);
    for (const int32_t rows : tile_rows) {
      const kernels::cuda::FetchOnDemandParams params = ByFetchOnDemand(conv, neighbours, rows);
      ExpectCudaSuccess(cudaMemsetAsync(out_->data(), 0xFF, out_->size() * sizeof(__half), stream));  // NaN
      times.fetch_on_demand[rows] = time([&] { return kernels::cuda::FetchOnDemand(params, stream); });
      Compare(conv, rows, TakeOutput(conv), expected);
    }
    return times;
  }

  std::vector<__half> TakeOutput(const ScanConvolution& conv) const {
    std::vector<__half> values(static_cast<size_t>(conv.tables.num_out_rows * Pitch(conv.out_channels)));
    support::CopyFromDevice(Device::kCuda, values.data(), out_->data(), values.size() * sizeof(__half));
    return values;
  }

  void Compare(const ScanConvolution& conv, int32_t tile_rows, const std::vector<__half>& found,
               const std::vector<__half>& expected) {
    for (size_t i = 0; i < found.size(); ++i) {
      if (static_cast<int64_t>(i) % Pitch(conv.out_channels) >= conv.out_channels) continue;
      const float value = __half2float(found[i]), wanted = __half2float(expected[i]);
      if (std::abs(value - wanted) <= kTolerance * (1 + std::abs(wanted))) continue;
      std::fprintf(stderr, "%s, tiles of %d rows: value %zu is %g, by gather-GEMM-scatter %g\n", conv.name.c_str(),
                   tile_rows, i, static_cast<double>(value), static_cast<double>(wanted));
      are_equal_ = false;
      return;
    }
  }

  // In microseconds, every convolution as often as the network has it.
  static void PrintSums(const std::vector<ScanConvolution>& convs, const std::vector<Times>& times) {
    struct Sum {
      double device_us = 0, launched_us = 0;
      void Add(const GpuTimes& of, int count) {
        device_us += of.back_to_back_ms * 1e3 * count;
        launched_us += of.as_launched_ms * 1e3 * count;
      }
    };
    Sum others, ours, by_default, better;
    for (size_t i = 0; i < convs.size(); ++i) {
      const GpuTimes& best = times[i].fetch_on_demand.at(times[i].BestRows());
      const GpuTimes& other = times[i].gather_gemm_scatter;
      others.Add(other, convs[i].count);
      ours.Add(best, convs[i].count);
      by_default.Add(times[i].fetch_on_demand.at(0), convs[i].count);
      better.Add(best.back_to_back_ms < other.back_to_back_ms ? best : other, convs[i].count);
    }
    std::puts("| dataflow | device us | speed-up | with launches us | speed-up |");
    std::puts("|---|--:|--:|--:|--:|");
    const auto print = [&](const char* name, const Sum& sum) {
      std::printf("| %s | %.0f | %.2fx | %.0f | %.2fx |\n", name, sum.device_us, others.device_us / sum.device_us,
                  sum.launched_us, others.launched_us / sum.launched_us);
    };
    print("gather-GEMM-scatter, adaptive", others);
    print("fetch-on-demand, default tiles", by_default);
    print("fetch-on-demand, the best tile of each", ours);
    print("the better of both", better);
  }

  static void PrintLayers(const std::vector<ScanConvolution>& convs, const std::vector<Times>& times) {
    std::vector<int32_t> all_rows;
    for (const Times& of : times) {
      for (const auto& [rows, unused] : of.fetch_on_demand) all_rows.push_back(rows);
    }
    std::sort(all_rows.begin(), all_rows.end());
    all_rows.erase(std::unique(all_rows.begin(), all_rows.end()), all_rows.end());
    std::string header = "| first of | times | offsets | rows | pairs | in | out | gather-GEMM-scatter |";
    std::string rule = "|---|--:|--:|--:|--:|--:|--:|--:|";
    for (const int32_t rows : all_rows) {
      header += rows == 0 ? " default |" : absl::StrFormat(" %d rows |", rows);
      rule += "--:|";
    }
    std::printf("\nThe device alone, us:\n\n%s best | ratio |\n%s--:|--:|\n", header.c_str(), rule.c_str());
    for (size_t i = 0; i < convs.size(); ++i) {
      const ScanConvolution& conv = convs[i];
      const Times& of = times[i];
      const double other_us = of.gather_gemm_scatter.back_to_back_ms * 1e3;
      std::string row =
          absl::StrFormat("| %s | %d | %d | %d | %d | %d | %d | %.1f |", conv.name, conv.count, conv.tables.num_offsets,
                          conv.tables.num_out_rows, conv.num_pairs(), conv.in_channels, conv.out_channels, other_us);
      for (const int32_t rows : all_rows) {
        const auto at = of.fetch_on_demand.find(rows);
        row += at == of.fetch_on_demand.end() ? " |" : absl::StrFormat(" %.1f |", at->second.back_to_back_ms * 1e3);
      }
      const double best_us = of.fetch_on_demand.at(of.BestRows()).back_to_back_ms * 1e3;
      std::printf("%s %.1f | %.2fx |\n", row.c_str(), best_us, other_us / best_us);
    }
  }

  const DeviceArray<char> workspace_;
  const DeviceArray<float> bias_{Device::kCuda, std::vector<float>(kMaxChannels, 0.125f)};
  std::unique_ptr<kernels::cuda::Gemm> gemm_;
  std::unique_ptr<DeviceArray<__half>> in_, weights_, out_;
  std::unique_ptr<DeviceArray<char>> scratch_;
  bool are_equal_ = true;
};

int Main(int argc, char** argv) {
  const bool by_layer = argc == 2 && std::strcmp(argv[1], "layers") == 0;
  if (argc > 1 && !by_layer) {
    std::fprintf(stderr, "usage: %s [layers]\n", argv[0]);
    return 2;
  }
  if (!support::HasDevice(Device::kCuda)) {
    std::puts("skipped: no CUDA device here");
    return 0;
  }
  if (kernels::cuda::FetchOnDemandTileRows(DType::kFloat16, 32, 32).empty()) {
    std::puts("skipped: fetch-on-demand needs a GPU of compute capability 8.0 or newer");
    return 0;
  }
  std::printf("%s, CUDA %s, medians of %d runs, semantickitti-00/000000, 5 cm, batch 1, fp16\n",
              ListCudaDevices().front().name.c_str(), CudaVersion().c_str(), kNumRuns);
  Bench bench;
  for (const double width : {0.5, 1.0}) bench.Run(width, by_layer);
  return bench.are_equal() ? 0 : 1;
}

}  // namespace
}  // namespace voxserve::bench

int main(int argc, char** argv) { return voxserve::bench::Main(argc, argv); }
