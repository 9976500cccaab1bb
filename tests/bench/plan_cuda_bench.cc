// Measures tuned plans on a GPU: what a search gains, how long it takes, and what its plan gains on other inputs.
//
//   plan_cuda_bench [--filter TEXT] [--convs]
//
// For each network and dataset, a plan is searched on one scan; then the default and the tuned plan run in turns. After
// that it prints Table 1 of TorchSparse (Tang et al., MLSys 2022): each column's workload runs by the plan that was
// searched for each row's workload. A cell is the speed as a share of the speed with the column's own plan. Last, the
// plans run on scans that the search has not seen. --convs also prints what each convolution gained.
//
// Weights are random, since only shapes matter for time. Scans are real. Tables are Markdown.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/compiler/plan.h"
#include "engine/ops/conv/dataflow.h"
#include "engine/runtime/cuda_devices.h"
#include "engine/tuner/plan_search.h"
#include "tests/bench/or_die.h"
#include "tests/bench/percentile.h"
#include "tests/engine/device_runner.h"
#include "tests/support/minkunet.h"
#include "tests/support/paths.h"
#include "tests/support/real_scans.h"

namespace voxserve::bench {
namespace {

constexpr int kTransferRepeats = 30;
constexpr int kWallClockRuns = 50;
constexpr absl::Duration kTimeLimit = absl::Seconds(15);  // of a search; searches end earlier

struct Dataset {
  support::RealScan scan;
  float voxel_size_m;
  std::vector<const char*> unseen;  // scans of the same dataset, for the last table
};

std::vector<Dataset> Datasets() {
  return {{support::kSemanticKittiScan, 0.05f, {}},
          {support::kNuScenesSweeps, 0.1f, {}},
          {support::kNuScenesKeyFrame,
           0.1f,
           {"nuscenes/n008-2018-08-01-15-16-36-0400__LIDAR_TOP__1533151611896734.pcd.bin",
            "nuscenes/n008-2018-08-01-15-16-36-0400__LIDAR_TOP__1533151612397179.pcd.bin"}},
          {support::kWaymoFrame, 0.1f, {}}};
}

double Milliseconds(absl::Duration duration) { return absl::ToDoubleMilliseconds(duration); }

// A network and dataset on the device, with the plan that was searched for it.
class Workload {
 public:
  Workload(double width, const Dataset& dataset)
      : name_(absl::StrFormat("%.1fx %s", width, dataset.scan.name)), dataset_(dataset) {
    const support::NetworkOptions options{
        .width = width, .features = support::FeaturesOf(dataset.scan.format), .voxel_size_m = dataset.voxel_size_m};
    const Graph graph = OrDie(support::LoadNetwork(support::MinkUNet(options)));
    runner_ = OrDie(
        DeviceRunner::Create({.device = support::Device::kCuda, .num_threads = kernels::ThreadPool::AvailableCpus()}));
    program_ = OrDie(runner_->Compile(graph, {.device = support::Device::kCuda,
                                              .precision = ModelConfig::Precision::kFloat16,
                                              .plan = kDefaultCudaConvPlan}));
    scan_ = OrDie(support::ReadScan(dataset.scan.format, dataset.scan.path()));
    run_ = [this](const PlanTable& plans, const InferTask& scan, const ScanRunOptions& wanted) {
      InferTask input = scan;
      input.return_scores = wanted.return_scores;
      return runner_->executor().Run(program_, input, RunLimits(),
                                     {.plans = &plans, .times_convs = wanted.times_convs});
    };
  }
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;
  ~Workload() { program_ = Program(); }

  void Search() {
    const InferTask input{.cloud = scan_};
    found_ = OrDie(SearchPlan(program_, run_, {&input, 1}, {.time_limit = kTimeLimit}));
    num_voxels_ = OrDieRun(nullptr).samples[0].counts.voxels;
  }

  // Returns this workload's convolutions with the plan that was searched for `other`. Convolutions that the plan does
  // not name keep the default.
  NetworkPlan PlanFrom(const Workload& other) const {
    const Plan& plan = other.found_.buckets[0].bucket.plan;
    NetworkPlan plans = defaults();
    for (size_t c = 0; c < plans.size(); ++c) {
      const auto entry = plan.by_node.find(program_.convs[c].node);
      if (entry != plan.by_node.end()) plans[c] = entry->second;
    }
    return plans;
  }

  // Returns the network's median times by each plan. The plans run in turns.
  std::vector<double> TimeMs(const std::vector<NetworkPlan>& plans, const PointCloud& scan) const {
    PlanTimer timer(program_, run_, {.now = absl::Now});
    timer.BeginStage("", 1, 1);
    std::vector<double> ms;
    const InferTask input{.cloud = scan};
    for (const PlanTimes& times : OrDie(timer.Time(plans, {&input}, kTransferRepeats, /*times_convs=*/false))) {
      if (!times.is_whole) {
        std::cerr << name_ << ": a plan cannot be run" << std::endl;
        std::exit(1);
      }
      ms.push_back(Milliseconds(times.network_median()));
    }
    return ms;
  }

  // Returns the times of the default and the tuned plan, which run in turns, by the host's clock, from points in host
  // memory to labels in host memory.
  std::pair<double, double> WallClockMs() {
    const PlanTable tuned(program_, {found_.buckets[0].bucket});
    std::vector<double> ms[2];
    for (int i = 0; i < kWallClockRuns; ++i) {
      for (const bool is_tuned : {false, true}) {
        const auto start = std::chrono::steady_clock::now();
        OrDieRun(is_tuned ? &tuned : nullptr);
        ms[is_tuned ? 1 : 0].push_back(
            std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
      }
    }
    return {Percentile(ms[0], 0.5), Percentile(ms[1], 0.5)};
  }

  const std::string& name() const { return name_; }
  const Dataset& dataset() const { return dataset_; }
  const SearchResult& found() const { return found_; }
  const PointCloud& scan() const { return scan_; }
  int64_t num_voxels() const { return num_voxels_; }
  NetworkPlan defaults() const { return program_.default_plans.ForVoxels(num_voxels_); }

 private:
  BatchReport OrDieRun(const PlanTable* plans) {
    const InferTask input{.cloud = scan_};
    BatchReport output = runner_->executor().Run(program_, input, RunLimits(), {.plans = plans});
    if (const std::string why = WhyFailed(output); !why.empty()) {
      std::cerr << name_ << ": " << why << std::endl;
      std::exit(1);
    }
    return output;
  }

  const std::string name_;
  const Dataset dataset_;
  std::unique_ptr<DeviceRunner> runner_;
  Program program_;
  PointCloud scan_;
  RunScan run_;
  SearchResult found_;
  int64_t num_voxels_ = 0;
};

using Workloads = std::vector<std::unique_ptr<Workload>>;

// Returns how many convolutions run by each dataflow, for example "30 implicit_gemm, 11 gather_gemm_scatter".
std::string CountDataflows(const NetworkPlan& plan) {
  std::vector<std::string> counts;
  for (const ConvDataflow* const dataflow : Dataflows()) {
    const auto count =
        std::count_if(plan.begin(), plan.end(), [&](const ConvPlan& conv) { return conv.dataflow == dataflow->id(); });
    counts.push_back(absl::StrCat(count, " ", absl::AsciiStrToLower(dataflow->name())));
  }
  return absl::StrJoin(counts, ", ");
}

void SearchAll(Workloads& workloads) {
  std::puts(
      "Tuned against untuned, fp16. Device: voxelize to labels by events; wall clock: host memory to host memory.\n\n"
      "| MinkUNet | voxels | default ms | tuned ms | ratio | wall default ms | wall tuned ms | ratio | "
      "dataflows | changed | runs | search s |\n"
      "|---|--:|--:|--:|--:|--:|--:|--:|---|--:|--:|--:|");
  for (const auto& workload : workloads) {
    workload->Search();
    const SearchResult& found = workload->found();
    const TunedBucket& bucket = found.buckets[0];
    const NetworkPlan plan = workload->PlanFrom(*workload), defaults = workload->defaults();
    size_t num_changed = 0;
    for (size_t c = 0; c < plan.size(); ++c) num_changed += plan[c] != defaults[c] ? 1 : 0;
    const auto [wall_default, wall_tuned] = workload->WallClockMs();
    std::puts(absl::StrFormat("| %s | %d | %.3f | %.3f | %.2fx | %.3f | %.3f | %.2fx | %s | %d of %d | %d | %.1f |",
                              workload->name(), workload->num_voxels(), Milliseconds(bucket.default_time),
                              Milliseconds(bucket.tuned_time),
                              absl::FDivDuration(bucket.default_time, bucket.tuned_time), wall_default, wall_tuned,
                              wall_default / wall_tuned, CountDataflows(plan), num_changed, plan.size(), found.num_runs,
                              absl::ToDoubleSeconds(found.search_time))
                  .c_str());
    std::fflush(stdout);
  }
  for (const auto& workload : workloads) {
    for (const std::string& note : workload->found().notes) {
      std::printf("\n%s: %s", workload->name().c_str(), note.c_str());
    }
  }
  std::puts("");
}

void Transfer(const Workloads& workloads) {
  std::puts("\nSpeed of the column's workload by the row's plan, as a share of its speed by its own:\n");
  std::string header = "| plan of |", rule = "|---|";
  for (const auto& workload : workloads) {
    absl::StrAppend(&header, " ", workload->name(), " |");
    absl::StrAppend(&rule, "--:|");
  }
  std::printf("%s\n%s\n", header.c_str(), rule.c_str());
  std::vector<std::string> rows = {"| none (default) |"};
  for (const auto& plan : workloads) rows.push_back(absl::StrCat("| ", plan->name(), " |"));
  for (size_t b = 0; b < workloads.size(); ++b) {
    std::vector<NetworkPlan> plans = {workloads[b]->defaults()};
    for (const auto& plan : workloads) plans.push_back(workloads[b]->PlanFrom(*plan));
    const std::vector<double> ms = workloads[b]->TimeMs(plans, workloads[b]->scan());
    for (size_t row = 0; row < rows.size(); ++row) absl::StrAppendFormat(&rows[row], " %.2f |", ms[b + 1] / ms[row]);
  }
  for (const std::string& row : rows) std::puts(row.c_str());
  std::fflush(stdout);
}

void Unseen(const Workloads& workloads) {
  std::puts(
      "\nScans that the search has not seen:\n\n| MinkUNet | scan | default ms | tuned ms | ratio |\n"
      "|---|---|--:|--:|--:|");
  for (const auto& workload : workloads) {
    for (const char* file : workload->dataset().unseen) {
      const PointCloud scan =
          OrDie(support::ReadScan(workload->dataset().scan.format, absl::StrCat(support::SharedData(), "/", file)));
      const std::vector<double> ms = workload->TimeMs({workload->defaults(), workload->PlanFrom(*workload)}, scan);
      std::printf("| %s | %s | %.3f | %.3f | %.2fx |\n", workload->name().c_str(), std::strrchr(file, '_') + 1, ms[0],
                  ms[1], ms[0] / ms[1]);
    }
  }
  std::fflush(stdout);
}

void Convolutions(const Workloads& workloads) {
  for (const auto& workload : workloads) {
    std::printf(
        "\n%s\n\n| convolution | channels | default us | tuned us | ratio | plan |\n|---|--:|--:|--:|--:|---|\n",
        workload->name().c_str());
    for (const ConvReport& conv : workload->found().convs[0]) {
      std::puts(absl::StrFormat("| %s | %d to %d | %.1f | %.1f | %.2fx | %s |", conv.node, conv.in_channels,
                                conv.out_channels, absl::ToDoubleMicroseconds(conv.default_time),
                                absl::ToDoubleMicroseconds(conv.tuned_time),
                                absl::FDivDuration(conv.default_time, conv.tuned_time), Describe(conv.plan))
                    .c_str());
    }
  }
}

int Main(int argc, char** argv) {
  std::string filter;
  bool wants_convs = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--convs") == 0) {
      wants_convs = true;
    } else if (std::strcmp(argv[i], "--filter") == 0 && i + 1 < argc) {
      filter = argv[++i];
    } else {
      std::fprintf(stderr, "usage: %s [--filter TEXT] [--convs]\n", argv[0]);
      return 2;
    }
  }
  if (!support::HasDevice(support::Device::kCuda)) {
    std::puts("skipped: no CUDA device here");
    return 0;
  }
  std::printf("%s, CUDA %s\n\n", ListCudaDevices().front().name.c_str(), CudaVersion().c_str());
  Workloads workloads;
  for (const double width : {0.5, 1.0}) {
    for (const Dataset& dataset : Datasets()) {
      const std::string name = absl::StrFormat("%.1fx %s", width, dataset.scan.name);
      if (name.find(filter) != std::string::npos) workloads.push_back(std::make_unique<Workload>(width, dataset));
    }
  }
  SearchAll(workloads);
  Transfer(workloads);
  Unseen(workloads);
  if (wants_convs) Convolutions(workloads);
  return 0;
}

}  // namespace
}  // namespace voxserve::bench

int main(int argc, char** argv) { return voxserve::bench::Main(argc, argv); }
