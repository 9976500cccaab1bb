// Times the convolutions of MinkUNet on a real scan one by one. It times every dataflow that the GPU serves
// (engine/ops/conv/dataflow.h), with every block (ConvBlock) that the dataflow has, and compares the times with those
// of the first. Features are fp16, sums fp32, with bias and ReLU. The program fails if results differ by more than
// rounding.
//
//   dataflow_cuda_bench [layers [WIDTH [SCAN]]]   layers: prints two more tables for a network, by convolution
//   dataflow_cuda_bench profile [WIDTH [SCAN]]    runs every convolution once by the default plan, for a profiler
//
//   dataflow_cuda_bench int8 [WIDTH [SCAN]]       times every convolution in float16 and in 8 bits
//
// profile puts each convolution into an NVTX range "layer=<name>", between cudaProfilerStart and cudaProfilerStop.
//
// int8 compares the default plan in float16 with the implicit GEMM in 8 bits, by its default block and by the fastest
// of its blocks. Each time is the median of several turns. The program fails if results in 8 bits differ from exact
// sums (int8_convolution.h).
//
// WIDTH chooses one network, for example 1.0 for MinkUNet 1.0x. Without it the program runs 0.5 and 1.0 (profile and
// int8: 1.0).
// SCAN is a name in tests/support/real_scans.h. Without it the scan is semantickitti-00/000000. Voxels are 5 cm there
// and 10 cm elsewhere.
// layer_profile.py runs both commands and joins their tables. Tables are Markdown. Convolutions run one by one on the
// same buffers, so those of small levels find their rows in the second-level cache, as they do in the network.

#include <cuda_fp16.h>
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/compiler/plan.h"
#include "engine/ops/conv/dataflow.h"
#include "engine/runtime/cuda_devices.h"
#include "tests/bench/event_timer.h"
#include "tests/bench/int8_convolution.h"
#include "tests/bench/scan_convolutions.h"
#include "tests/support/test_device.h"

namespace voxserve::bench {
namespace {

using kernels::DType;
using support::Device;
using support::DeviceArray;
using support::ExpectCudaSuccess;

constexpr int kNumRuns = 20;

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

// Returns the pitch of rows that are padded to 16 bytes, as the engine keeps them.
int64_t Pitch(int32_t channels) { return (channels + 7) / 8 * 8; }

// Returns every plan of every dataflow that the GPU serves. The first plan is the first dataflow's with its default
// block.
std::vector<ConvPlan> PlansOf(const ScanConvolution& conv) {
  std::vector<ConvPlan> plans;
  for (const ServedDataflow& served : conv.layer.served) {
    plans.push_back(ByDataflow(kDefaultCudaConvPlan, served.dataflow));
    if (!served.blocks) continue;
    for (const kernels::ConvBlock& block : *served.blocks) {
      plans.push_back(plans.back());
      plans.back().block = block;
    }
  }
  return plans;
}

// Returns the plan that the engine uses without a tuned plan: implicit GEMM, or the first plan if the GPU does not
// serve implicit GEMM.
ConvPlan DefaultPlan(const ScanConvolution& conv) {
  const std::vector<ConvPlan> plans = PlansOf(conv);
  const auto found = std::find(plans.begin(), plans.end(), kDefaultCudaConvPlan);
  return found == plans.end() ? plans.front() : *found;
}

std::string NameOf(Dataflow dataflow) { return absl::AsciiStrToLower(DataflowOf(dataflow).name()); }

std::string NameOf(const ConvPlan& plan) {
  const std::string name = NameOf(plan.dataflow);
  return plan.block == kernels::ConvBlock{} ? name : absl::StrCat(name, " ", Describe(plan.block));
}

struct TimedPlan {
  ConvPlan plan;
  GpuTimes times;
};

// The times of one convolution, one entry per plan.
using Times = std::vector<TimedPlan>;

// Returns the plan that is fastest on the device among those for which is_wanted(plan) is true, or null if there is
// none.
template <typename Predicate>
const TimedPlan* Best(const Times& times, const Predicate& is_wanted) {
  const TimedPlan* best = nullptr;
  for (const TimedPlan& timed : times) {
    if (!is_wanted(timed.plan)) continue;
    if (best == nullptr || timed.times.back_to_back_ms < best->times.back_to_back_ms) best = &timed;
  }
  return best;
}

void ExpectOk(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

// A convolution that is computed by one plan, with scratch memory of its own, ready to be queued. The convolution and
// the plan must outlive this object.
class PlannedConv {
 public:
  PlannedConv(const ScanConvolution& conv, const ConvPlan& plan, const kernels::ConvOperands& operands,
              const StepContext& context)
      : context_(context),
        run_{.context = context_, .plan = plan, .conv = conv.layer, .operands = operands},
        scratch_(Device::kCuda, DataflowOf(plan.dataflow).WorkspaceBytes(run_)) {
    context_.scratch = scratch_.data();
  }
  PlannedConv(const PlannedConv&) = delete;
  PlannedConv& operator=(const PlannedConv&) = delete;

  void Queue() const { ExpectOk(DataflowOf(run_.plan.dataflow).Launch(run_)); }

 private:
  StepContext context_;
  const ConvRun run_;
  const DeviceArray<char> scratch_;
};

class Bench {
 public:
  Bench(const support::RealScan& scan, float voxel_size_m) : scan_(scan), voxel_size_m_(voxel_size_m) {}
  ~Bench() { support::Synchronize(); }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void Run(double width, bool by_layer) {
    ScanConvolutions convs(width, scan_, voxel_size_m_);
    Allocate(convs);
    std::vector<Times> times;
    for (const ScanConvolution& conv : convs.all()) times.push_back(Measure(conv, convs.context()));
    std::printf("\n### MinkUNet %.1fx, sums over its convolutions\n\n", width);
    PrintSums(convs.all(), times);
    if (by_layer) {
      PrintLayers(convs.all(), times);
      PrintRates(convs, times);
    }
    std::fflush(stdout);
  }

  // Runs every convolution twice; the profiler watches the second time.
  void Profile(double width) {
    ScanConvolutions convs(width, scan_, voxel_size_m_);
    Allocate(convs);
    for (const ScanConvolution& conv : convs.all()) {
      const ConvPlan plan = DefaultPlan(conv);
      const std::unique_ptr<DeviceArray<__half>> weights = PackedWeights(conv, plan.dataflow);
      const PlannedConv planned(conv, plan, Operands(conv, weights->data()), convs.context());
      planned.Queue();
      support::Synchronize();
      ExpectCudaSuccess(cudaProfilerStart());
      nvtxRangePushA(absl::StrCat("layer=", conv.layer.node).c_str());
      planned.Queue();
      nvtxRangePop();
      support::Synchronize();
      ExpectCudaSuccess(cudaProfilerStop());
    }
  }

  // Times every convolution in float16 and in 8 bits, and prints the times, the sums and their ratios.
  void CompareInt8(double width) {
    ScanConvolutions convs(width, scan_, voxel_size_m_);
    Allocate(convs);
    std::printf(
        "\n### MinkUNet %.1fx in 8 bits\n\n"
        "| first of | times | offsets | rows | in | out | fp16 us | int8 us | ratio | best block us | ratio | block |\n"
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|\n",
        width);
    Int8Times sum;
    for (const ScanConvolution& conv : convs.all()) {
      Int8Convolution int8(conv, convs.context());
      const Int8Times times = TimeInt8(conv, int8, convs.context());
      sum.fp16_us += times.fp16_us * conv.count;
      sum.default_us += times.default_us * conv.count;
      sum.best_us += times.best_us * conv.count;
      PrintInt8(absl::StrFormat("%s | %d | %d | %d | %d | %d", conv.layer.node, conv.count, conv.tables.num_offsets,
                                conv.tables.num_out_rows, conv.layer.in_channels, conv.layer.out_channels),
                times);
    }
    PrintInt8("sum | | | | |", sum);
  }

  // Returns true if all dataflows gave the same results, up to rounding, and 8 bits those of exact sums.
  bool are_equal() const { return are_equal_; }

 private:
  // Gather-GEMM-scatter rounds products to fp16 between its passes.
  static constexpr float kTolerance = 0.01f;
  static constexpr int32_t kMaxChannels = 512;

  void Allocate(const ScanConvolutions& convs) {
    int64_t in_values = 0, out_values = 0;
    for (const ScanConvolution& conv : convs.all()) {
      in_values = std::max(in_values, conv.tables.num_in_rows * Pitch(conv.layer.in_channels));
      out_values = std::max(out_values, conv.tables.num_out_rows * Pitch(conv.layer.out_channels));
    }
    in_ = RandomHalves(in_values, 0.5f);
    out_ = std::make_unique<DeviceArray<__half>>(Device::kCuda, static_cast<size_t>(out_values));
  }

  static std::unique_ptr<DeviceArray<__half>> PackedWeights(const ScanConvolution& conv, Dataflow dataflow) {
    const ProgramConv& layer = conv.layer;
    const int64_t count = int64_t{layer.num_offsets} * layer.in_channels * layer.out_channels;
    std::vector<float> weights(static_cast<size_t>(count));
    uint32_t state = 7;
    for (float& value : weights) {
      state = state * 1664525 + 1013904223;
      value = (static_cast<float>(state >> 8) * 0x1p-23f - 1) * 0.1f;
    }
    weights = DataflowOf(dataflow).PackWeights(layer, weights);
    std::vector<__half> halves(weights.size());
    std::transform(weights.begin(), weights.end(), halves.begin(), [](float value) { return __float2half(value); });
    return std::make_unique<DeviceArray<__half>>(Device::kCuda, halves);
  }

  kernels::ConvOperands Operands(const ScanConvolution& conv, const void* weights) const {
    return {.in = {.data = in_->data(),
                   .dtype = DType::kFloat16,
                   .channels = conv.layer.in_channels,
                   .pitch = Pitch(conv.layer.in_channels),
                   .capacity = conv.tables.num_in_rows},
            .out = {.data = out_->data(),
                    .dtype = DType::kFloat16,
                    .channels = conv.layer.out_channels,
                    .pitch = Pitch(conv.layer.out_channels),
                    .capacity = conv.tables.num_out_rows},
            .weights = weights,
            .epilogue = {.bias = bias_.data(), .activation = kernels::ActivationFunction::kRelu}};
  }

  struct Int8Times {
    double fp16_us = 0, default_us = 0, best_us = 0;
    kernels::ConvBlock best_block;
  };

  static void PrintInt8(const std::string& name, const Int8Times& times) {
    const std::string block = times.best_block == kernels::ConvBlock{} ? "" : Describe(times.best_block);
    std::puts(absl::StrFormat("| %s | %.1f | %.1f | %.2f | %.1f | %.2f | %s |", name, times.fp16_us, times.default_us,
                              times.default_us / times.fp16_us, times.best_us, times.best_us / times.fp16_us, block)
                  .c_str());
    std::fflush(stdout);
  }

  static double MicrosecondsOf(cudaStream_t stream, const std::function<void()>& queue) {
    return TimeOnGpu(
               stream, /*num_steps=*/0, [&](const MarkStep&) { queue(); }, kNumRuns)
               .back_to_back_ms *
           1e3;
  }

  Int8Times TimeInt8(const ScanConvolution& conv, Int8Convolution& int8, const StepContext& context) {
    constexpr int kTurns = 3;
    Int8Times times;
    times.best_us = std::numeric_limits<double>::infinity();
    const auto queue = [&] { int8.Queue(); };
    for (const kernels::ConvBlock& block : int8.Blocks()) {
      int8.UseBlock(block);
      are_equal_ = int8.Check() && are_equal_;
      const double us = MicrosecondsOf(context.stream(), queue);
      if (us >= times.best_us) continue;
      times.best_us = us;
      times.best_block = block;
    }
    const ConvPlan plan = DefaultPlan(conv);
    const std::unique_ptr<DeviceArray<__half>> weights = PackedWeights(conv, plan.dataflow);
    const PlannedConv fp16(conv, plan, Operands(conv, weights->data()), context);
    std::vector<double> fp16_us, default_us, best_us;
    for (int turn = 0; turn < kTurns; ++turn) {
      fp16_us.push_back(MicrosecondsOf(context.stream(), [&] { fp16.Queue(); }));
      int8.UseBlock({});
      default_us.push_back(MicrosecondsOf(context.stream(), queue));
      int8.UseBlock(times.best_block);
      best_us.push_back(MicrosecondsOf(context.stream(), queue));
    }
    ExpectCudaSuccess(cudaStreamSynchronize(context.stream()));
    const auto median = [](std::vector<double> values) {
      std::sort(values.begin(), values.end());
      return values[values.size() / 2];
    };
    times.fp16_us = median(fp16_us);
    times.default_us = median(default_us);
    times.best_us = median(best_us);
    return times;
  }

  Times Measure(const ScanConvolution& conv, const StepContext& context) {
    Times times;
    std::vector<__half> expected;
    std::unique_ptr<DeviceArray<__half>> weights;
    Dataflow packed_for{};
    for (const ConvPlan& plan : PlansOf(conv)) {
      if (weights == nullptr || packed_for != plan.dataflow) weights = PackedWeights(conv, plan.dataflow);
      packed_for = plan.dataflow;
      const PlannedConv planned(conv, plan, Operands(conv, weights->data()), context);
      support::Synchronize();
      ExpectCudaSuccess(cudaMemsetAsync(out_->data(), 0xFF, out_->size() * sizeof(__half), context.stream()));  // NaN
      const auto launch = [&](const MarkStep&) { planned.Queue(); };
      times.push_back({plan, TimeOnGpu(context.stream(), /*num_steps=*/0, launch, kNumRuns)});
      ExpectCudaSuccess(cudaStreamSynchronize(context.stream()));
      std::vector<__half> found = TakeOutput(conv);
      if (expected.empty()) {
        expected = std::move(found);
      } else {
        Compare(conv, plan, found, expected);
      }
    }
    return times;
  }

  std::vector<__half> TakeOutput(const ScanConvolution& conv) const {
    std::vector<__half> values(static_cast<size_t>(conv.tables.num_out_rows * Pitch(conv.layer.out_channels)));
    support::CopyFromDevice(Device::kCuda, values.data(), out_->data(), values.size() * sizeof(__half));
    return values;
  }

  void Compare(const ScanConvolution& conv, const ConvPlan& plan, const std::vector<__half>& found,
               const std::vector<__half>& expected) {
    for (size_t i = 0; i < found.size(); ++i) {
      if (static_cast<int64_t>(i) % Pitch(conv.layer.out_channels) >= conv.layer.out_channels) continue;
      const float value = __half2float(found[i]), wanted = __half2float(expected[i]);
      if (std::abs(value - wanted) <= kTolerance * (1 + std::abs(wanted))) continue;
      std::fprintf(stderr, "%s by %s: value %zu is %g, by the first %g\n", conv.layer.node.c_str(),
                   NameOf(plan).c_str(), i, static_cast<double>(value), static_cast<double>(wanted));
      are_equal_ = false;
      return;
    }
  }

  // Prints sums in microseconds. Each convolution counts as often as the network has it. If a dataflow does not serve a
  // convolution, the time of the first plan counts.
  static void PrintSums(const std::vector<ScanConvolution>& convs, const std::vector<Times>& times) {
    struct Sum {
      double device_us = 0, launched_us = 0;
    };
    const auto sum_of = [&](const auto& is_wanted) {
      Sum sum;
      for (size_t i = 0; i < convs.size(); ++i) {
        const TimedPlan* const best = Best(times[i], is_wanted);
        const GpuTimes& of = best == nullptr ? times[i].front().times : best->times;
        sum.device_us += of.back_to_back_ms * 1e3 * convs[i].count;
        sum.launched_us += of.as_launched_ms * 1e3 * convs[i].count;
      }
      return sum;
    };
    const Sum base = sum_of([](const ConvPlan&) { return false; });
    std::puts("| dataflow | device us | speed-up | with launches us | speed-up |");
    std::puts("|---|--:|--:|--:|--:|");
    const auto print = [&](const std::string& name, const auto& is_wanted) {
      const Sum sum = sum_of(is_wanted);
      std::printf("| %s | %.0f | %.2fx | %.0f | %.2fx |\n", name.c_str(), sum.device_us, base.device_us / sum.device_us,
                  sum.launched_us, base.launched_us / sum.launched_us);
    };
    for (const ServedDataflow& served : convs.front().layer.served) {
      const Dataflow id = served.dataflow;
      print(absl::StrCat(NameOf(id), ", default"),
            [id](const ConvPlan& plan) { return plan.dataflow == id && plan.block == kernels::ConvBlock{}; });
      print(absl::StrCat(NameOf(id), ", the best block of each"),
            [id](const ConvPlan& plan) { return plan.dataflow == id; });
    }
    print("the best of all", [](const ConvPlan&) { return true; });
  }

  static void PrintLayers(const std::vector<ScanConvolution>& convs, const std::vector<Times>& times) {
    std::vector<ConvPlan> all;
    for (const ScanConvolution& conv : convs) {
      for (const ConvPlan& plan : PlansOf(conv)) {
        if (std::find(all.begin(), all.end(), plan) == all.end()) all.push_back(plan);
      }
    }
    std::string header = "| first of | times | offsets | rows | pairs | in | out |";
    std::string rule = "|---|--:|--:|--:|--:|--:|--:|";
    for (const ConvPlan& plan : all) {
      absl::StrAppend(&header, " ", NameOf(plan), " |");
      rule += "--:|";
    }
    std::printf("\nThe device alone, us:\n\n%s best | ratio |\n%s--:|--:|\n", header.c_str(), rule.c_str());
    for (size_t i = 0; i < convs.size(); ++i) {
      const ScanConvolution& conv = convs[i];
      std::string row =
          absl::StrFormat("| %s | %d | %d | %d | %d | %d | %d |", conv.layer.node, conv.count, conv.tables.num_offsets,
                          conv.tables.num_out_rows, conv.num_pairs(), conv.layer.in_channels, conv.layer.out_channels);
      for (const ConvPlan& plan : all) {
        const TimedPlan* const at = Best(times[i], [&](const ConvPlan& other) { return other == plan; });
        row += at == nullptr ? " |" : absl::StrFormat(" %.1f |", at->times.back_to_back_ms * 1e3);
      }
      const double best_ms = Best(times[i], [](const ConvPlan&) { return true; })->times.back_to_back_ms;
      std::printf("%s %.1f | %.2fx |\n", row.c_str(), best_ms * 1e3, times[i].front().times.back_to_back_ms / best_ms);
    }
  }

  // Returns the number of rows that an implicit GEMM multiplies. A tile of 64 rows multiplies all of its rows at each
  // offset at which one of the rows has a pair.
  static int64_t IssuedRows(const ScanConvolution& conv, const StepContext& context) {
    const kernels::TilesView tiles = context.device_geometry->tiles(conv.layer.rulebook);
    const int64_t num_tiles = (conv.tables.num_out_rows + kernels::kMaskTileRows - 1) / kernels::kMaskTileRows;
    std::vector<uint32_t> masks(static_cast<size_t>(num_tiles * kernels::MaskWords(tiles.num_offsets)));
    support::CopyFromDevice(Device::kCuda, masks.data(), tiles.masks, masks.size() * sizeof(uint32_t));
    int64_t offsets = 0;
    for (const uint32_t word : masks) offsets += std::popcount(word);
    return offsets * kernels::kMaskTileRows;
  }

  // Prints the default plan's rates of multiply-adds: of those that the pairs need, and of all that the tiles compute.
  static void PrintRates(ScanConvolutions& convs, const std::vector<Times>& times) {
    std::puts(
        "\nThe default plan's products. issued: with the zeros of tiles of 64 rows; a kernel that takes more rows at "
        "once"
        " or pads channels multiplies more.\n\n"
        "| first of | times | in | out | us | best block us | useful GFLOP | issued GFLOP | issued / useful |"
        " useful TFLOP/s | issued TFLOP/s |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    const StepContext context = convs.context();
    for (size_t i = 0; i < convs.all().size(); ++i) {
      const ScanConvolution& conv = convs.all()[i];
      const ConvPlan plan = DefaultPlan(conv);
      const Dataflow id = plan.dataflow;
      if (id != Dataflow::kImplicitGemm) continue;
      const double us =
          Best(times[i], [&](const ConvPlan& other) { return other == plan; })->times.back_to_back_ms * 1e3;
      const double best_us =
          Best(times[i], [id](const ConvPlan& other) { return other.dataflow == id; })->times.back_to_back_ms * 1e3;
      const double flop_a_row = 2.0 * conv.layer.in_channels * conv.layer.out_channels;
      const double useful = static_cast<double>(conv.num_pairs()) * flop_a_row * 1e-9;
      const double issued = static_cast<double>(IssuedRows(conv, context)) * flop_a_row * 1e-9;
      std::puts(absl::StrFormat("| %s | %d | %d | %d | %.1f | %.1f | %.3f | %.3f | %.2f | %.0f | %.0f |",
                                conv.layer.node, conv.count, conv.layer.in_channels, conv.layer.out_channels, us,
                                best_us, useful, issued, issued / useful, useful / us * 1e3, issued / us * 1e3)
                    .c_str());
    }
  }

  const support::RealScan scan_;
  const float voxel_size_m_;
  const DeviceArray<float> bias_{Device::kCuda, std::vector<float>(kMaxChannels, 0.125f)};
  std::unique_ptr<DeviceArray<__half>> in_, out_;
  bool are_equal_ = true;
};

int Main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  double width = 0;
  const auto scan = support::RealScanNamed(argc > 3 ? argv[3] : support::kSemanticKittiScan.name);
  const bool is_right =
      mode.empty() || ((mode == "layers" || mode == "profile" || mode == "int8") && argc <= 4 && scan.has_value() &&
                       (argc < 3 || (absl::SimpleAtod(argv[2], &width) && width > 0)));
  if (!is_right) {
    std::fprintf(stderr, "usage: %s [layers [WIDTH [SCAN]] | profile [WIDTH [SCAN]] | int8 [WIDTH [SCAN]]]\n", argv[0]);
    return 2;
  }
  if (!support::HasDevice(Device::kCuda)) {
    std::puts("skipped: no CUDA device here");
    return 0;
  }
  const float voxel_size_m = std::string(scan->name) == support::kSemanticKittiScan.name ? 0.05f : 0.1f;
  std::printf("%s, CUDA %s, medians of %d runs, %s, %.0f cm, batch 1, fp16\n", ListCudaDevices().front().name.c_str(),
              CudaVersion().c_str(), kNumRuns, scan->name, voxel_size_m * 100);
  Bench bench(*scan, voxel_size_m);
  if (mode == "profile") {
    bench.Profile(width == 0 ? 1.0 : width);
    return 0;
  }
  if (mode == "int8") {
    bench.CompareInt8(width == 0 ? 1.0 : width);
    return bench.are_equal() ? 0 : 1;
  }
  const std::vector<double> widths = width == 0 ? std::vector<double>{0.5, 1.0} : std::vector<double>{width};
  for (const double of_network : widths) bench.Run(of_network, mode == "layers");
  return bench.are_equal() ? 0 : 1;
}

}  // namespace
}  // namespace voxserve::bench

int main(int argc, char** argv) { return voxserve::bench::Main(argc, argv); }
