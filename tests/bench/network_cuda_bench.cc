// Times whole networks on a GPU, from points in host memory to labels in host memory.
//
//   network_cuda_bench                                    runs time, then count, each in its own process
//   network_cuda_bench time  [--runs N] [--filter TEXT]   latencies by the host's clock, without CUPTI
//   network_cuda_bench count [--runs N] [--filter TEXT]   kernels, copies, waits, allocations and busy time, by CUPTI
//   network_cuda_bench groupings [--filter TEXT]          latencies by how matrix products are grouped
//
// Each command also takes --pinned, which puts the points into page-locked memory, where the server has those of
// requests. Otherwise they are in ordinary memory and are copied once more. `time` and `count` take --captured, which
// replays batches as CUDA graphs (engine/executor/captured_batches.h).
//
// Weights are random, since only shapes matter for time. Scans are real. Tables are Markdown. digest_bench checks the
// answers of these networks, and accuracy_bench compares a trained network with golden answers.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/executor/cuda_executor.h"
#include "engine/ops/conv/sparse_conv.h"
#include "engine/ops/rows/linear.h"
#include "engine/runtime/cuda_devices.h"
#include "tests/bench/cuda_activity.h"
#include "tests/bench/network_cases.h"
#include "tests/bench/or_die.h"
#include "tests/bench/percentile.h"
#include "tests/engine/device_runner.h"
#include "tests/engine/pinned_clouds.h"
#include "tests/support/real_scans.h"

namespace voxserve::bench {
namespace {

struct Options {
  int num_runs = 100;
  bool is_pinned = false;
  RunOptions run;
};

// A case that is ready to run.
class Prepared {
 public:
  Prepared(const NetworkCase& c, bool is_pinned)
      : Prepared(c, OrDie(LoadNetwork(c)), DefaultPlanOf(support::Device::kCuda, c.precision), is_pinned) {}
  Prepared(const NetworkCase& c, const Graph& graph, const ConvPlan& plan, bool is_pinned) : case_(c) {
    runner_ = OrDie(
        DeviceRunner::Create({.device = support::Device::kCuda, .num_threads = kernels::ThreadPool::AvailableCpus()}));
    program_ =
        OrDie(runner_->Compile(graph, {.device = support::Device::kCuda, .precision = c.precision, .plan = plan}));
    cloud_ = OrDie(support::ReadScan(c.scan.format, c.scan.path()));
    if (is_pinned) cloud_ = PinnedClouds(support::Device::kCuda).Copy(cloud_);
    for (int i = 0; i < c.batch; ++i) clouds_.push_back(&cloud_);
  }
  ~Prepared() { program_ = Program(); }

  BatchReport Run(const RunOptions& options = {}) {
    BatchReport output = runner_->Run(program_, clouds_, /*return_scores=*/false, {}, options);
    if (!output.status.ok() || !output.samples[0].status.ok()) {
      std::cerr << case_.name() << ": " << (output.status.ok() ? output.samples[0].status : output.status) << std::endl;
      std::exit(1);
    }
    return output;
  }

  // Returns the number of multiply-adds of the batch, in 10^9. Runs the batch once more, by a plan
  // that makes pair tables, and counts their pairs.
  double Gmacs() {
    const PlanTable plans(program_, UniversalPlans(program_, program_.default_plans.ForVoxels(0)));
    Run({.plans = &plans});
    const auto& geometry = static_cast<const CudaExecutor&>(runner_->executor()).geometry();
    double macs = 0;
    for (const auto& step : program_.steps) {
      if (const auto* conv = dynamic_cast<const SparseConvStep*>(step.get())) {
        const kernels::PairTablesView tables = geometry.rulebook(conv->options().conv.rulebook);
        macs += static_cast<double>(tables.offset_begin[tables.num_offsets]) * conv->options().in.channels *
                conv->options().out.channels;
      } else if (const auto* linear = dynamic_cast<const LinearStep*>(step.get())) {
        const Buffer& in = program_.buffers[static_cast<size_t>(linear->options().in.buffer)];
        macs += static_cast<double>(geometry.num_sites()[static_cast<size_t>(in.level)]) *
                linear->options().in.channels * linear->options().out.channels;
      }
    }
    return macs * 1e-9;
  }

  const NetworkCase& c() const { return case_; }
  const Program& program() const { return program_; }
  DeviceRunner& runner() { return *runner_; }

 private:
  const NetworkCase case_;
  std::unique_ptr<DeviceRunner> runner_;
  Program program_;
  PointCloud cloud_;
  std::vector<const PointCloud*> clouds_;
};

std::string Ratio(double theirs, double ours) { return theirs == 0 ? "" : absl::StrFormat("%.2fx", theirs / ours); }
std::string Ms(double ms) { return ms == 0 ? "" : absl::StrFormat("%g", ms); }

void Time(const std::vector<NetworkCase>& cases, const Options& options) {
  std::puts(
      "| case | points | voxels | GMAC | p50 ms | p99 ms | a scan ms | copy_in | voxelize | geometry | features | "
      "head | copy_out | device MiB | weights MiB | TorchSparse++ ms | ratio | MLSys ms | ratio |");
  std::puts("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
  for (const NetworkCase& c : cases) {
    Prepared prepared(c, options.is_pinned);
    for (int i = 0; i < 10; ++i) prepared.Run(options.run);
    std::vector<double> ms;
    std::vector<std::vector<double>> stage_ms(6);
    PointCounts counts;
    for (int i = 0; i < options.num_runs; ++i) {
      const auto start = std::chrono::steady_clock::now();
      const BatchReport output = prepared.Run(options.run);
      ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
      for (size_t s = 0; s < stage_ms.size(); ++s) {
        stage_ms[s].push_back(absl::ToDoubleMilliseconds(output.stages.at(s).duration));
      }
      counts = output.samples[0].counts;
    }
    const double p50 = Percentile(ms, 0.5);
    const int64_t reserved_bytes = OrDie(prepared.runner().device().pool->reserved_bytes());
    std::string stages;
    for (const auto& stage : stage_ms) absl::StrAppendFormat(&stages, "%.3f | ", Percentile(stage, 0.5));
    std::printf(
        "%s\n",
        absl::StrFormat("| %s | %d | %d | %.1f | %.3f | %.3f | %.3f | %s%.0f | %.1f | %s | %s | %s | %s |", c.name(),
                        (counts.used + counts.invalid + counts.out_of_range) * c.batch, counts.voxels * c.batch,
                        prepared.Gmacs(), p50, Percentile(ms, 0.99), p50 / c.batch, stages,
                        static_cast<double>(reserved_bytes) / (1 << 20),
                        static_cast<double>(prepared.program().weight_bytes) / (1 << 20), Ms(c.peers.torchsparse_pp_ms),
                        Ratio(c.peers.torchsparse_pp_ms, p50), Ms(c.peers.mlsys_ms), Ratio(c.peers.mlsys_ms, p50))
            .c_str());
    std::fflush(stdout);
  }
  std::puts(
      "\ndevice MiB: all that our memory pool holds of the device. CUDA's context and what cuBLAS keeps of its own are "
      "not in it.");
}

void Count(const std::vector<NetworkCase>& cases, const Options& options) {
  const auto created = CudaActivity::Create();
  if (!created.ok()) {
    std::printf("not counted: %s\n", created.status().ToString().c_str());
    return;
  }
  const std::unique_ptr<CudaActivity>& activity = *created;
  const std::vector<std::string> stages = {"copy", "voxelize", "map", "gather", "matmul", "scatter", "head", "other"};
  std::string dashes;
  for (size_t i = 0; i < stages.size(); ++i) dashes += "--:|";
  std::printf(
      "| case, per batch | kernels | host waits | device allocations | memsets | copies in | copies out | busy ms |"
      " %s us |\n|---|--:|--:|--:|--:|--:|--:|--:|%s\n",
      absl::StrJoin(stages, " us | ").c_str(), dashes.c_str());
  std::string detail;
  for (const NetworkCase& c : cases) {
    Prepared prepared(c, options.is_pinned);
    for (int i = 0; i < 5; ++i) prepared.Run(options.run);
    if (const absl::Status status = activity->Start(); !status.ok()) std::cerr << status << std::endl;
    for (int i = 0; i < options.num_runs; ++i) prepared.Run(options.run);
    const ActivitySummary summary = OrDie(activity->Stop());
    const double runs = options.num_runs;
    std::string row = absl::StrFormat(
        "| %s | %g | %g | %g | %g | %g | %g | %.3f |", c.name(), static_cast<double>(summary.kernels) / runs,
        static_cast<double>(summary.synchronizations) / runs, static_cast<double>(summary.device_allocations) / runs,
        static_cast<double>(summary.memsets) / runs, static_cast<double>(summary.copies_to_device) / runs,
        static_cast<double>(summary.copies_to_host) / runs, summary.busy_us / runs / 1000);
    for (const std::string& stage : stages) {
      const auto found = summary.stage_us.find(stage);
      absl::StrAppendFormat(&row, " %.0f |", found == summary.stage_us.end() ? 0.0 : found->second / runs);
    }
    std::puts(row.c_str());
    std::fflush(stdout);
    if (detail.empty()) detail = absl::StrCat("\n", c.name(), ":\n\n", ToMarkdown(summary, options.num_runs, 16));
  }
  std::puts(detail.c_str());
}

void Groupings(const std::vector<NetworkCase>& cases, const Options& options) {
  std::vector<std::pair<std::string, kernels::GroupingOptions>> groupings = {
      {"separate", {.grouping = kernels::Grouping::kSeparate}},
      {"symmetric", {.grouping = kernels::Grouping::kSymmetric}},
      {"fixed", {.grouping = kernels::Grouping::kFixed}}};
  for (const double epsilon : {0.2, 0.4, 0.6, 0.8, 1.0}) {
    for (const int64_t rows : {int64_t{8192}, int64_t{32768}, kernels::kNoLimit}) {
      groupings.push_back({absl::StrFormat("adaptive(%g, %s)", epsilon,
                                           rows == kernels::kNoLimit ? "inf" : absl::StrFormat("%d", rows)),
                           {.epsilon = epsilon, .bmm_max_rows = rows}});
    }
  }
  std::puts("| case | grouping | p50 ms | features ms |\n|---|---|--:|--:|");
  for (const NetworkCase& c : cases) {
    const Graph graph = OrDie(LoadNetwork(c));
    for (const auto& [name, grouping] : groupings) {
      ConvPlan plan = ByDataflow(kDefaultCudaConvPlan, Dataflow::kGatherGemmScatter);
      plan.grouping = grouping;
      Prepared prepared(c, graph, plan, options.is_pinned);
      for (int i = 0; i < 5; ++i) prepared.Run();
      std::vector<double> ms, features_ms;
      for (int i = 0; i < options.num_runs; ++i) {
        const auto start = std::chrono::steady_clock::now();
        const BatchReport output = prepared.Run();
        ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
        features_ms.push_back(absl::ToDoubleMilliseconds(output.stages.at(3).duration));
      }
      std::printf("| %s | %s | %.3f | %.3f |\n", c.name().c_str(), name.c_str(), Percentile(ms, 0.5),
                  Percentile(features_ms, 0.5));
      std::fflush(stdout);
    }
  }
}

// Runs each mode in its own process, since counting changes times.
int All(const std::string& program) {
  bool succeeded = true;
  for (const char* mode : {"time", "count"}) {
    succeeded &= std::system((program + " " + mode).c_str()) == 0;
    std::puts("");
    std::fflush(stdout);
  }
  return succeeded ? 0 : 1;
}

int Main(int argc, char** argv) {
  if (argc == 1) return All(argv[0]);
  const std::string mode = argv[1];
  Options options{.num_runs = mode == "count" ? 5 : mode == "time" ? 200 : 100};
  std::string filter;
  for (int i = 2; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool has_value = i + 1 < argc;
    if (argument == "--pinned") {
      options.is_pinned = true;
    } else if (argument == "--captured") {
      options.run.captures = true;
    } else if (argument == "--runs" && has_value) {
      options.num_runs = std::atoi(argv[++i]);
    } else if (argument == "--filter" && has_value) {
      filter = argv[++i];
    }
  }
  if (!support::HasDevice(support::Device::kCuda)) {
    std::puts("skipped: no CUDA device here");
    return 0;
  }
  std::vector<NetworkCase> cases = CudaNetworkCases();
  std::erase_if(cases, [&](const NetworkCase& c) { return c.name().find(filter) == std::string::npos; });
  std::printf("%s, CUDA %s, %d CPU threads, %d runs, points in %s memory%s\n\n", ListCudaDevices().front().name.c_str(),
              CudaVersion().c_str(), kernels::ThreadPool::AvailableCpus(), options.num_runs,
              options.is_pinned ? "page-locked" : "ordinary", options.run.captures ? ", captured batches" : "");
  if (mode == "time") {
    Time(cases, options);
  } else if (mode == "count") {
    Count(cases, options);
  } else if (mode == "groupings") {
    Groupings(cases, options);
  } else {
    std::fprintf(stderr, "usage: %s [time|count|groupings [--runs N] [--filter TEXT] [--pinned] [--captured]]\n",
                 argv[0]);
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace voxserve::bench

int main(int argc, char** argv) { return voxserve::bench::Main(argc, argv); }
