// Compares the times of the default plan and of a tuned plan, for the networks and batches of varied_inputs_cuda_bench.
// The difference is what a user loses who never searches a plan.
//
//   default_plan_cuda_bench [OPTIONS]
//
//   --filter TEXT         only cases whose name contains this text
//   --model FOLDER SCAN   adds a model, as in varied_inputs_cuda_bench
//   --search_seconds S    the limit of each search (default 4)
//   --seconds S           time for everything: a row that would begin later is left out, and the output names it
//                         (default 300)
//
// Each row is a network, a scan and a batch size. A plan is searched on the row's first batch. Then the default and the
// tuned plan run in turns over 20 batches that differ, from points in host memory to labels or boxes there. A tuned
// plan can be slower than the default there, since the search saw only one of the batches. Exits with 77 if there is no
// GPU, with 1 if a row was left out.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/compiler/plan_table.h"
#include "engine/runtime/cuda_devices.h"
#include "engine/tuner/plan_candidates.h"
#include "engine/tuner/plan_search.h"
#include "tests/bench/or_die.h"
#include "tests/bench/percentile.h"
#include "tests/bench/varied_cases.h"
#include "tests/support/test_device.h"

namespace voxserve::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPasses = 5;  // over all inputs

struct Options {
  std::string filter;
  std::vector<std::pair<std::string, std::string>> models;  // folder, scan
  double search_seconds = 4;
  double seconds = 300;
};

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

SearchResult Search(PreparedCase& prepared, int batch, double seconds) {
  const std::vector<InferTask> first = {{.cloud = prepared.inputs()[0]}};
  const RunScan run = [&](const PlanTable& plans, const InferTask&, const ScanRunOptions& wanted) {
    BatchReport output =
        prepared.Run(batch, 0, {.plans = &plans, .times_convs = wanted.times_convs}, wanted.return_scores);
    if (!output.samples.empty()) output.samples.resize(1);  // a search compares the results of one scan
    return output;
  };
  return OrDie(SearchPlan(prepared.program(), run, first, {.time_limit = absl::Seconds(seconds)}));
}

// Returns the median times in ms of the default plan and of `tuned`, which run in turns.
std::pair<double, double> TimeInTurns(PreparedCase& prepared, int batch, const PlanTable& tuned) {
  const PlanTable* const tables[] = {nullptr, &tuned};
  std::vector<double> ms[2];
  for (int pass = 0; pass <= kPasses; ++pass) {  // the first pass is not counted
    for (int i = 0; i < kNumInputs; ++i) {
      for (int plan = 0; plan < 2; ++plan) {
        const auto start = Clock::now();
        prepared.RunOrDie(batch, i, {.plans = tables[plan]});
        if (pass > 0) ms[plan].push_back(SecondsSince(start) * 1e3);
      }
    }
  }
  return {Percentile(ms[0], 0.5), Percentile(ms[1], 0.5)};
}

// Returns the convolutions whose plan is not the default one: "stage4.0.conv1 (128 to 256): implicit_gemm 64 x 64
// rows".
std::vector<std::string> ChangesOf(const std::vector<ConvReport>& convs) {
  std::vector<std::string> changes;
  for (const ConvReport& conv : convs) {
    if (conv.plan == kDefaultCudaConvPlan) continue;
    changes.push_back(
        absl::StrFormat("%s (%d to %d): %s", conv.node, conv.in_channels, conv.out_channels, Describe(conv.plan)));
  }
  return changes;
}

int Measure(const std::vector<BenchCase>& cases, const Options& options) {
  const auto begin = Clock::now();
  std::vector<std::string> left_out, changes;
  std::printf("%s, CUDA %s, %d CPU threads, %d inputs a row, searches of at most %g s\n\n",
              ListCudaDevices().front().name.c_str(), CudaVersion().c_str(), kernels::ThreadPool::AvailableCpus(),
              kNumInputs, options.search_seconds);
  std::puts(
      "| network, scan | batch | default ms | tuned ms | default / tuned | GPU, first batch: default ms | tuned ms |"
      " default / tuned | changed convolutions | batches of the search |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
  for (const BenchCase& c : cases) {
    if (SecondsSince(begin) > options.seconds) {
      left_out.push_back(c.name);
      continue;
    }
    PreparedCase prepared(c, support::Device::kCuda);
    for (const int batch : c.batches) {
      if (SecondsSince(begin) > options.seconds) {
        left_out.push_back(absl::StrCat(c.name, ", batch ", batch));
        continue;
      }
      for (int i = 0; i < kNumInputs; ++i) prepared.RunOrDie(batch, i, {});  // a warm-up
      const SearchResult found = Search(prepared, batch, options.search_seconds);
      const TunedBucket& bucket = found.buckets.at(0);
      const auto [default_ms, tuned_ms] = TimeInTurns(prepared, batch, PlanTable(prepared.program(), {bucket.bucket}));
      const std::vector<std::string> changed = ChangesOf(found.convs.at(0));
      std::puts(absl::StrFormat("| %s | %d | %.3f | %.3f | %.3f | %.3f | %.3f | %.3f | %d of %d | %d |", c.name, batch,
                                default_ms, tuned_ms, default_ms / tuned_ms,
                                absl::ToDoubleMilliseconds(bucket.default_time),
                                absl::ToDoubleMilliseconds(bucket.tuned_time),
                                absl::FDivDuration(bucket.default_time, bucket.tuned_time), changed.size(),
                                found.convs.at(0).size(), found.num_runs)
                    .c_str());
      std::fflush(stdout);
      if (changed.empty()) continue;
      changes.push_back(absl::StrFormat("- %s, batch %d: %s", c.name, batch, absl::StrJoin(changed, "; ")));
    }
  }
  std::printf(
      "\ndefault, tuned: medians by the host's clock, in turns. GPU: by events, of the batch that was searched "
      "on.\n\n%s\n",
      absl::StrJoin(changes, "\n").c_str());
  if (left_out.empty()) return 0;
  std::printf("\n**Left out for want of time: %s**\n", absl::StrJoin(left_out, "; ").c_str());
  return 1;
}

bool Parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    const auto next = [&]() -> std::string { return i + 1 < argc ? argv[++i] : ""; };
    bool is_right = true;
    if (option == "--filter") {
      options.filter = next();
    } else if (option == "--model") {
      const std::string folder = next();
      options.models.emplace_back(folder, next());
      is_right = !options.models.back().second.empty();
    } else if (option == "--search_seconds") {
      is_right = absl::SimpleAtod(next(), &options.search_seconds) && options.search_seconds > 0;
    } else if (option == "--seconds") {
      is_right = absl::SimpleAtod(next(), &options.seconds) && options.seconds > 0;
    } else {
      is_right = false;
    }
    if (!is_right) return false;
  }
  return true;
}

int Main(int argc, char** argv) {
  Options options;
  if (!Parse(argc, argv, options)) {
    std::fprintf(stderr, "usage: %s [--filter TEXT] [--model FOLDER SCAN]... [--search_seconds S] [--seconds S]\n",
                 argv[0]);
    return 2;
  }
  if (!support::HasDevice(support::Device::kCuda)) {
    std::puts("skipped: no CUDA device here");
    return 77;
  }
  std::vector<BenchCase> cases = VariedCases(options.models, /*with_deterministic=*/false);
  std::erase_if(cases, [&](const BenchCase& c) { return !absl::StrContains(c.name, options.filter); });
  if (cases.empty()) {
    std::fprintf(stderr, "no case has '%s' in its name\n", options.filter.c_str());
    return 2;
  }
  return Measure(cases, options);
}

}  // namespace
}  // namespace voxserve::bench

int main(int argc, char** argv) { return voxserve::bench::Main(argc, argv); }
