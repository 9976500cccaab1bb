// Times any model folder on a GPU, from points in host memory to labels or boxes there, by stage.
//
//   model_cuda_bench MODEL SCAN [--version N] [--batch N] [--runs N] [--tuned] [--pinned] [--kernels]
//
// MODEL is a model's folder. SCAN is the name of one of the scans of tests/support/real_scans.h. --tuned searches a
// plan on that scan first. --pinned puts the points into page-locked memory, where the server has those of requests;
// otherwise they are in ordinary memory and are copied once more. --kernels also prints what ran on the device, counted
// by CUPTI after the times. A call prints one row of a Markdown table; --header prints the table's head.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "engine/model/model_version.h"
#include "engine/runtime/cuda_devices.h"
#include "engine/tuner/plan_search.h"
#include "tests/bench/cuda_activity.h"
#include "tests/bench/or_die.h"
#include "tests/bench/percentile.h"
#include "tests/engine/device_runner.h"
#include "tests/engine/pinned_clouds.h"
#include "tests/support/real_scans.h"

namespace voxserve::bench {
namespace {

constexpr Stage kStages[] = {Stage::kCopyIn,   Stage::kVoxelize, Stage::kGeometry,
                             Stage::kFeatures, Stage::kHead,     Stage::kCopyOut};

struct Options {
  std::string model;
  std::string scan;
  int version = 1;
  int batch = 1;
  int runs = 200;
  bool is_tuned = false;
  bool is_pinned = false;
  bool counts_kernels = false;
};

PointCloud ReadScanNamed(const std::string& name) {
  const std::optional<support::RealScan> scan = support::RealScanNamed(name);
  if (scan) return OrDie(support::ReadScan(scan->format, scan->path()));
  std::cerr << "no scan is named " << name << std::endl;
  std::exit(2);
}

void PrintHeader() {
  std::string row = "| model | scan | plan | batch | points | voxels | boxes | p50 ms | p99 ms |";
  std::string dashes = "|---|---|---|--:|--:|--:|--:|--:|--:|";
  for (const Stage stage : kStages) {
    row += absl::StrFormat(" %s |", std::string(NameOf(stage)));
    dashes += "--:|";
  }
  std::printf("%s\n%s\n", row.c_str(), dashes.c_str());
}

// Tunes the plans of every convolution for this scan.
PlanTable TunedPlans(const Program& program, const PointCloud& cloud, DeviceRunner& runner) {
  const RunScan run = [&](const PlanTable& plans, const InferTask& scan, const ScanRunOptions& wanted) {
    InferTask input = scan;
    input.return_scores = wanted.return_scores;
    return runner.executor().Run(program, input, RunLimits(), {.plans = &plans, .times_convs = wanted.times_convs});
  };
  const InferTask input{.cloud = cloud};
  const SearchResult found = OrDie(SearchPlan(program, run, {&input, 1}, {.time_limit = absl::Seconds(60)}));
  return PlanTable(program, {found.buckets[0].bucket});
}

int Run(const Options& options) {
  const LoadedModel model = OrDie(LoadModelVersion(options.model, options.version));
  const auto runner = OrDie(
      DeviceRunner::Create({.device = support::Device::kCuda, .num_threads = kernels::ThreadPool::AvailableCpus()}));
  Program program = OrDie(runner->Compile(model.graph,
                                          {.device = support::Device::kCuda,
                                           .precision = model.config.precision,
                                           .plan = DefaultPlanOf(support::Device::kCuda, model.config.precision)},
                                          model.config.bytes_per_label()));
  PointCloud cloud = ReadScanNamed(options.scan);
  if (options.is_pinned) cloud = PinnedClouds(support::Device::kCuda).Copy(cloud);
  const std::vector<const PointCloud*> clouds(static_cast<size_t>(options.batch), &cloud);
  const PlanTable plans = options.is_tuned ? TunedPlans(program, cloud, *runner) : program.default_plans;
  const auto run = [&] {
    BatchReport output = runner->Run(program, clouds, /*return_scores=*/false, {}, {.plans = &plans});
    if (output.status.ok() && output.samples[0].status.ok()) return output;
    std::cerr << (output.status.ok() ? output.samples[0].status : output.status) << std::endl;
    std::exit(1);
  };
  for (int i = 0; i < 20; ++i) run();
  std::vector<double> ms;
  std::map<Stage, std::vector<double>> stage_ms;
  BatchReport last;
  for (int i = 0; i < options.runs; ++i) {
    const auto start = std::chrono::steady_clock::now();
    last = run();
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    for (const StageTime& time : last.stages) stage_ms[time.stage].push_back(absl::ToDoubleMilliseconds(time.duration));
  }
  const InferResult& sample = last.samples[0];
  std::string row =
      absl::StrFormat("| %s | %s | %s | %d | %d | %d | %d | %.3f | %.3f |", model.graph.name, options.scan,
                      options.is_tuned ? "tuned" : "default", options.batch, cloud.num_points(), sample.counts.voxels,
                      sample.boxes().size(), Percentile(ms, 0.5), Percentile(ms, 0.99));
  for (const Stage stage : kStages) {
    const std::vector<double>& times = stage_ms[stage];
    row += times.empty() ? " |" : absl::StrFormat(" %.3f |", Percentile(times, 0.5));
  }
  std::puts(row.c_str());
  std::fflush(stdout);
  if (options.counts_kernels) {
    const auto activity = OrDie(CudaActivity::Create());
    if (const absl::Status status = activity->Start(); !status.ok()) std::cerr << status << std::endl;
    constexpr int kCountedRuns = 10;
    for (int i = 0; i < kCountedRuns; ++i) run();
    std::printf("\n%s\n", ToMarkdown(OrDie(activity->Stop()), kCountedRuns, /*num_kernels=*/30).c_str());
  }
  program = Program();
  return 0;
}

int Main(int argc, char** argv) {
  Options options;
  std::vector<std::string> names;
  bool is_usage = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const std::map<std::string, int*> numbers = {
        {"--version", &options.version}, {"--batch", &options.batch}, {"--runs", &options.runs}};
    if (argument == "--header") {
      PrintHeader();
      return 0;
    }
    if (argument == "--tuned") {
      options.is_tuned = true;
    } else if (argument == "--pinned") {
      options.is_pinned = true;
    } else if (argument == "--kernels") {
      options.counts_kernels = true;
    } else if (const auto number = numbers.find(argument); number != numbers.end()) {
      is_usage |= ++i == argc || !absl::SimpleAtoi(argv[i], number->second) || *number->second < 1;
    } else {
      names.push_back(argument);
    }
  }
  if (is_usage || names.size() != 2) {
    std::fprintf(
        stderr,
        "usage: %s MODEL SCAN [--version N] [--batch N] [--runs N] [--tuned] [--pinned] [--kernels] | --header\n",
        argv[0]);
    return 2;
  }
  if (!support::HasDevice(support::Device::kCuda)) {
    std::puts("skipped: no CUDA device here");
    return 0;
  }
  options.model = names[0];
  options.scan = names[1];
  return Run(options);
}

}  // namespace
}  // namespace voxserve::bench

int main(int argc, char** argv) { return voxserve::bench::Main(argc, argv); }
