// Times MinkUNet 0.5x from points to labels on the CPU, and each of its convolutions alone with every vector
// instruction set that the machine has. It also prints the speed as a share of the rate of float32 matrix products
// (sgemm) on this machine, which it measures in the same run.
//
//   build/dev/tests/bench/minkunet_bench
//   build/dev/tests/bench/minkunet_bench --benchmark_filter=convolution    # threads: the CPUs that taskset allows
//
// The scans are semantickitti-00/000000, if the shared data has it (28.9 GMAC), and the demo's PandaSet scan.

#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/compiler/compiler.h"
#include "engine/executor/cpu_executor.h"
#include "engine/ops/conv/sparse_conv.h"
#include "engine/ops/rows/linear.h"
#include "kernels/conv/fetch_on_demand_dispatch.h"
#include "kernels/core/gemm.h"
#include "tests/bench/or_die.h"
#include "tests/engine/golden_scan.h"
#include "tests/support/paths.h"
#include "tests/support/real_scans.h"

namespace voxserve::bench {
namespace {

kernels::ThreadPool& Pool() {
  static kernels::ThreadPool pool(kernels::ThreadPool::AvailableCpus());
  return pool;
}

// Returns the GFLOP/s of C = A B for 2048 x 2048, the best of 5 runs, as the most that the machine can do. The pool's
// threads share the rows.
double MeasureSgemm() {
  constexpr int32_t kSize = 2048;
  const std::vector<float> a(kSize * kSize, 0.5f), b(kSize * kSize, 0.25f);
  std::vector<float> c(kSize * kSize);
  double best = 0;
  for (int run = 0; run < 5; ++run) {
    const absl::Time start = absl::Now();
    const int64_t rows = kSize / Pool().num_threads();
    Pool().ParallelFor(kSize, rows, [&](int64_t begin, int64_t end) {
      using kernels::DType;
      kernels::cpu::Gemm(
          {.a = kernels::ConstRows::Packed(a.data() + begin * kSize, DType::kFloat32, end - begin, kSize),
           .b = kernels::ConstRows::Packed(b.data(), DType::kFloat32, kSize, kSize),
           .c = kernels::Rows::Packed(c.data() + begin * kSize, DType::kFloat32, end - begin, kSize)});
    });
    best = std::max(best, 2e-9 * kSize * kSize * kSize / absl::ToDoubleSeconds(absl::Now() - start));
  }
  return best;
}

double SgemmGflops() {
  static const double gflops = MeasureSgemm();
  return gflops;
}

// Returns the number of multiply-adds in the convolutions and linear layers of the last batch.
double CountMacs(const Program& program, const BatchGeometry& geometry) {
  double macs = 0;
  for (const auto& step : program.steps) {
    if (const auto* conv = dynamic_cast<const SparseConvStep*>(step.get())) {
      const SparseConvStep::Options& options = conv->options();
      macs += static_cast<double>(geometry.rulebook(options.conv.rulebook).num_pairs()) * options.in.channels *
              options.out.channels;
    } else if (const auto* linear = dynamic_cast<const LinearStep*>(step.get())) {
      const LinearStep::Options& options = linear->options();
      const int level = program.buffers[static_cast<size_t>(options.in.buffer)].level;
      macs += static_cast<double>(geometry.num_sites(level)) * options.in.channels * options.out.channels;
    }
  }
  return macs;
}

void PointsToLabels(benchmark::State& state, const std::string& scan_path) {
  const LoadedModel model = OrDie(LoadMinkUNetModel());
  const Program program = Compile(model.graph, Plan(), {});
  const PointCloud cloud = OrDie(support::ReadScan(support::ScanFormat::kKitti, scan_path));
  ExecutionContext context{.device = "cpu", .pool = &Pool()};
  CpuExecutor executor(&context);
  std::map<std::string, double> stage_ms;
  int64_t voxels = 0;
  const InferTask task{.cloud = cloud};
  for (auto _ : state) {
    const BatchReport output = executor.Run(program, task, RunLimits());
    if (!output.status.ok()) {
      state.SkipWithError(output.status.ToString().c_str());
      return;
    }
    for (const StageTime& time : output.stages) {
      stage_ms[std::string(NameOf(time.stage)) + "_ms"] += absl::ToDoubleMilliseconds(time.duration);
    }
    voxels = output.samples[0].counts.voxels;
  }
  for (const auto& [name, ms] : stage_ms) state.counters[name] = ms / static_cast<double>(state.iterations());
  const double gmac = CountMacs(program, executor.geometry()) * 1e-9;
  state.counters["voxels"] = static_cast<double>(voxels);
  state.counters["gmac"] = gmac;
  state.counters["sgemm_gflops"] = SgemmGflops();
  const benchmark::Counter::Flags rate = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["gflops"] = benchmark::Counter(2 * gmac, rate);
  state.counters["share_of_sgemm"] = benchmark::Counter(2 * gmac / SgemmGflops(), rate);
  state.counters["batch_MiB"] = static_cast<double>(executor.allocated_bytes()) / (1 << 20);
  state.counters["weights_MiB"] = static_cast<double>(program.weight_bytes) / (1 << 20);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  state.counters["peak_rss_MiB"] = static_cast<double>(usage.ru_maxrss) / 1024;
}

// Times one convolution of random features and weights, with bias and ReLU.
void Convolution(benchmark::State& state, const kernels::cpu::Isa& isa, const kernels::RulebookView& rulebook,
                 const SparseConvStep::Options& options, int count) {
  using kernels::DType;
  const int32_t in_channels = options.in.channels, out_channels = options.out.channels;
  std::mt19937 random(1);
  std::uniform_real_distribution<float> value(-1, 1);
  const auto floats = [&](int64_t size) {
    std::vector<float> values(static_cast<size_t>(size));
    for (float& v : values) v = value(random);
    return values;
  };
  const std::vector<float> in = floats(rulebook.num_in_rows * in_channels), bias = floats(out_channels);
  const std::vector<float> weights =
      kernels::cpu::PackWeights(isa, floats(int64_t{rulebook.num_offsets} * in_channels * out_channels).data(),
                                rulebook.num_offsets, in_channels, out_channels);
  std::vector<float> out(static_cast<size_t>(rulebook.num_out_rows * out_channels));
  const kernels::FetchOnDemandParams params = {
      .rulebook = rulebook,
      .operands = {.in = kernels::ConstRows::Packed(in.data(), DType::kFloat32, rulebook.num_in_rows, in_channels),
                   .out = kernels::Rows::Packed(out.data(), DType::kFloat32, rulebook.num_out_rows, out_channels),
                   .weights = weights.data(),
                   .epilogue = {.bias = bias.data(), .activation = kernels::ActivationFunction::kRelu}}};
  for (auto _ : state) kernels::cpu::FetchOnDemand(isa, params, Pool());
  const double flop = 2.0 * static_cast<double>(rulebook.num_pairs()) * in_channels * out_channels;
  const benchmark::Counter::Flags rate = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["layers"] = count;  // of the network
  state.counters["gflops"] = benchmark::Counter(flop * 1e-9, rate);
  state.counters["share_of_sgemm"] = benchmark::Counter(flop * 1e-9 / SgemmGflops(), rate);
}

// Registers every convolution of the network on one scan. Layers with the same rulebook and channels are one benchmark.
void RegisterConvolutions(const std::string& path) {
  struct Scan {
    Program program = Compile(OrDie(LoadMinkUNetModel()).graph, Plan(), {});
    ExecutionContext context{.device = "cpu", .pool = &Pool()};
    CpuExecutor executor{&context};
  };
  static Scan scan;
  const PointCloud cloud = OrDie(support::ReadScan(support::ScanFormat::kKitti, path));
  const InferTask task{.cloud = cloud};
  if (const BatchReport output = scan.executor.Run(scan.program, task, RunLimits()); !output.status.ok()) {
    std::cerr << "skipped the convolutions: " << output.status << std::endl;
    return;
  }
  std::vector<std::pair<const SparseConvStep::Options*, int>> layers;
  for (const auto& step : scan.program.steps) {
    const auto* conv = dynamic_cast<const SparseConvStep*>(step.get());
    if (conv == nullptr) continue;
    const SparseConvStep::Options& options = conv->options();
    const auto same = std::find_if(layers.begin(), layers.end(), [&](const auto& layer) {
      const SparseConvStep::Options& other = *layer.first;
      return other.conv.rulebook == options.conv.rulebook && other.in.channels == options.in.channels &&
             other.out.channels == options.out.channels;
    });
    if (same == layers.end()) {
      layers.emplace_back(&options, 1);
    } else {
      ++same->second;
    }
  }
  for (const kernels::cpu::Isa* isa : kernels::cpu::SupportedIsas()) {
    for (const auto& [options, count] : layers) {
      const kernels::RulebookView rulebook = scan.executor.geometry().rulebook(options->conv.rulebook);
      benchmark::RegisterBenchmark(
          absl::StrCat("convolution/", isa->name, "/", options->conv.node, "/", rulebook.num_out_rows, "_rows/",
                       options->in.channels, "_to_", options->out.channels)
              .c_str(),
          [=](benchmark::State& state) { Convolution(state, *isa, rulebook, *options, count); })
          ->Unit(benchmark::kMillisecond)
          ->UseRealTime()
          ->MinTime(0.1);
    }
  }
}

void Register(const std::string& name, const std::string& path) {
  if (!std::filesystem::exists(path)) {
    std::cerr << "skipped " << name << ": no " << path << std::endl;
    return;
  }
  benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { PointsToLabels(state, path); })
      ->Unit(benchmark::kMillisecond)
      ->UseRealTime()
      ->MinTime(5.0);
}

}  // namespace
}  // namespace voxserve::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  std::cout << "CPU threads " << voxserve::bench::Pool().num_threads() << ", vector instructions "
            << voxserve::kernels::cpu::VectorInstructionSet() << ", sgemm 2048^3 " << voxserve::bench::SgemmGflops()
            << " GFLOP/s\n";
  voxserve::bench::Register("minkunet_0.5x/semantickitti-00/000000", voxserve::support::kSemanticKittiScan.path());
  voxserve::bench::Register("minkunet_0.5x/pandaset_070",
                            voxserve::support::SourceDir() + "/deploy/scans/pandaset_070.bin");
  if (std::filesystem::exists(voxserve::support::kSemanticKittiScan.path())) {
    voxserve::bench::RegisterConvolutions(voxserve::support::kSemanticKittiScan.path());
  }
  benchmark::RunSpecifiedBenchmarks();
}
