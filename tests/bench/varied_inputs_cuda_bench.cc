// Times networks on batches whose inputs all differ, by the host's clock, from points in host memory to labels or boxes
// in host memory. Afterwards CUPTI measures in further runs how long the GPU was busy, and counts launches, waits and
// allocations.
//
//   varied_inputs_cuda_bench [networks] [OPTIONS]   MinkUNet 1.0x and 0.5x on real scans, and models; batches of 1 to 8
//   varied_inputs_cuda_bench voxels [OPTIONS]       MinkUNet 1.0x in float16 from 1,000 to 1,000,000 voxels, batch 1
//
//   --filter TEXT         only cases whose name contains this text ("MinkUNet 1.0x, semantickitti" for instance)
//   --model FOLDER SCAN   adds a model's version 1 ("FOLDER:N": version N) on a scan of tests/support/real_scans.h by
//                         its name; "SCAN+t" gives its points a field t
//   --int8                runs each case a second time in 8 bits (InInt8 of varied_cases.h)
//   --batch N             only batches of N scans
//   --inputs N            inputs a case (default 20); not of `voxels`
//   --captured            runs each case a second time, as captured batches (engine/executor/captured_batches.h)
//   --row_seconds S       time for the runs of one row (default 0.8); every input runs at least twice
//   --seconds S           time for everything: a case that would begin later is left out, and the output names it
//                         (default 90)
//   --save_points DIR     writes the inputs of MinkUNet's cases for peer_bench.py, and measures nothing
//   --device cpu          tries the program on a machine without a GPU; nothing is counted
//
// varied_cases.h describes the cases. Exits with 77 if there is no GPU, with 1 if a case was left out.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "engine/runtime/cuda_devices.h"
#include "tests/bench/cuda_activity.h"
#include "tests/bench/or_die.h"
#include "tests/bench/percentile.h"
#include "tests/bench/varied_cases.h"
#include "tests/bench/varied_scans.h"

namespace voxserve::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  support::Device device = support::Device::kCuda;
  bool sweeps_voxels = false;
  std::string filter;
  std::vector<std::pair<std::string, std::string>> models;  // folder, scan
  int batch = 0;                                            // 0: all
  int num_inputs = kNumInputs;
  bool with_captured = false;
  bool with_int8 = false;
  double row_seconds = 0.8;
  double seconds = 90;
  std::string save_points;
};

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Row {
  std::string name;
  int batch = 1;
  int runs = 0;
  double points = 0, voxels = 0;  // means over the scans
  double p50_ms = 0, p99_ms = 0, p999_ms = 0, features_ms = 0;
  std::optional<ActivitySummary> activity;  // of one batch for each input
  int activity_batches = 0;
  int64_t reserved_bytes = 0;
};

// The times of a case's batches.
class TimedCase {
 public:
  TimedCase(const BenchCase& c, support::Device device) : case_(c), prepared_(c, device) {}

  // Runs kNumInputs inputs, so that memory has about its size and kernels are loaded. With captures it runs three times
  // as many, since the first two batches of a shape are not replayed.
  void WarmUp(int batch) {
    for (int i = 0; i < (case_.captures ? 3 : 1) * kNumInputs; ++i) Run(batch, i);
  }

  Row Time(int batch, double row_seconds) {
    WarmUp(batch);
    Row row{.name = case_.name, .batch = batch};
    std::vector<double> ms, features_ms;
    const auto begin = Clock::now();
    for (int pass = 0; pass < 2 || SecondsSince(begin) < row_seconds; ++pass) {
      for (int i = 0; i < num_inputs(); ++i) {
        const auto start = Clock::now();
        const BatchReport output = Run(batch, i);
        ms.push_back(SecondsSince(start) * 1e3);
        for (const StageTime& time : output.stages) {
          if (time.stage == Stage::kFeatures) features_ms.push_back(absl::ToDoubleMilliseconds(time.duration));
        }
        // Every input is the first of one batch, so the mean over first samples is the mean over all inputs.
        row.voxels += static_cast<double>(output.samples[0].counts.voxels);
        row.points += static_cast<double>(prepared_.inputs()[static_cast<size_t>(i)].num_points());
      }
    }
    row.runs = static_cast<int>(ms.size());
    row.voxels /= row.runs;
    row.points /= row.runs;
    row.p50_ms = Percentile(ms, 0.5);
    row.p99_ms = Percentile(ms, 0.99);
    row.p999_ms = Percentile(ms, 0.999);
    if (!features_ms.empty()) row.features_ms = Percentile(features_ms, 0.5);
    const Device& device = prepared_.runner().device();
    if (device.is_cuda()) row.reserved_bytes = OrDie(device.pool->reserved_bytes());
    return row;
  }

  void Count(CudaActivity& activity, Row& row) {
    WarmUp(row.batch);
    if (const absl::Status status = activity.Start(); !status.ok()) std::cerr << status << std::endl;
    for (int i = 0; i < num_inputs(); ++i) Run(row.batch, i);
    row.activity = OrDie(activity.Stop());
    row.activity_batches = num_inputs();
    if (row.activity->dropped_records == 0) return;
    std::cerr << case_.name << ": CUPTI lost records; GPU busy is too low" << std::endl;
  }

 private:
  int num_inputs() const { return static_cast<int>(prepared_.inputs().size()); }
  BatchReport Run(int batch, int index) { return prepared_.RunOrDie(batch, index, {.captures = case_.captures}); }

  const BenchCase& case_;
  PreparedCase prepared_;
};

BenchCase Captured(BenchCase c) {
  c.name += ", captured";
  c.captures = true;
  return c;
}

// Returns each case, followed by what `change` makes of it.
template <typename Change>
std::vector<BenchCase> Doubled(const std::vector<BenchCase>& cases, const Change& change) {
  std::vector<BenchCase> both;
  for (const BenchCase& c : cases) {
    both.push_back(c);
    both.push_back(change(c));
  }
  return both;
}

void PrintRow(const Row& row) {
  std::string counted = " | | | ";
  if (row.activity) {
    const ActivitySummary& activity = *row.activity;
    const auto batches = static_cast<double>(row.activity_batches);
    counted = absl::StrFormat("%.3f | %.1f | %.2f | %.3f", activity.busy_us / 1e3 / batches,
                              static_cast<double>(activity.launch_calls) / batches,
                              static_cast<double>(activity.synchronizations) / batches,
                              static_cast<double>(activity.device_allocations + activity.host_allocations) / batches);
  }
  std::puts(absl::StrFormat("| %s | %d | %.0f | %.0f | %.3f | %.3f | %.3f | %.3f | %.3f | %s | %.0f | %d |", row.name,
                            row.batch, row.points, row.voxels, row.p50_ms, row.p99_ms, row.p999_ms,
                            row.p50_ms / row.batch, row.features_ms, counted,
                            static_cast<double>(row.reserved_bytes) / (1 << 20), row.runs)
                .c_str());
}

int Measure(const std::vector<BenchCase>& cases, const Options& options) {
  const bool on_cuda = options.device == support::Device::kCuda;
  const auto begin = Clock::now();
  std::vector<std::string> left_out;
  std::vector<std::vector<Row>> rows(cases.size());
  // All times are taken before CUPTI is attached for the first time. Counting takes a fifth of the time or so.
  for (size_t i = 0; i < cases.size(); ++i) {
    if (SecondsSince(begin) > 0.75 * options.seconds) {
      left_out.push_back(cases[i].name);
      continue;
    }
    TimedCase timed(cases[i], options.device);
    for (const int batch : cases[i].batches) {
      rows[i].push_back(timed.Time(batch, options.row_seconds));
      const Row& row = rows[i].back();
      std::fprintf(stderr, "%s, batch %d: p50 %.3f ms, p99 %.3f ms\n", row.name.c_str(), batch, row.p50_ms, row.p99_ms);
    }
  }
  if (const auto activity = on_cuda ? CudaActivity::Create() : absl::UnavailableError("there is no GPU");
      activity.ok()) {
    for (size_t i = 0; i < cases.size(); ++i) {
      if (rows[i].empty()) continue;
      if (SecondsSince(begin) > options.seconds) {
        left_out.push_back(cases[i].name + ", GPU busy");
        continue;
      }
      TimedCase timed(cases[i], options.device);
      for (Row& row : rows[i]) timed.Count(**activity, row);
    }
  } else {
    std::fprintf(stderr, "GPU busy is not counted: %s\n", activity.status().ToString().c_str());
  }

  std::printf("%s, CUDA %s, %d CPU threads, %d inputs a case\n\n",
              on_cuda ? ListCudaDevices().front().name.c_str() : "CPU", CudaVersion().c_str(),
              kernels::ThreadPool::AvailableCpus(), options.sweeps_voxels ? kNumInputs : options.num_inputs);
  std::puts(
      "| network, scan | batch | points | voxels | p50 ms | p99 ms | p99.9 ms | a scan ms | features ms | GPU busy ms |"
      " launches | waits | allocations | device MiB | runs |\n"
      "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
  for (const std::vector<Row>& of_case : rows) {
    for (const Row& row : of_case) PrintRow(row);
  }
  std::puts(
      "\npoints, voxels: means of a scan. features: median of that stage. GPU busy: mean of a batch's kernels, copies"
      " and memsets, overlaps counted once. launches, waits, allocations: the host's calls a batch; waits are for a"
      " stream, an event or a blocking copy, allocations of device and page-locked memory. device MiB: all that the "
      "memory pool holds, weights included; it grows over"
      " a case's batches.");
  if (left_out.empty()) return 0;
  std::printf("\n**Left out for want of time: %s**\n", absl::StrJoin(left_out, "; ").c_str());
  return 1;
}

// DIR/<scan>/<index>.bin has the float32 features of every point; DIR/<scan>/inputs.json says how to read them.
int SavePoints(const Options& options) {
  for (const NetworkCase& network : MinkUNetScans(1.0)) {
    const BenchCase c = CaseOf(network);
    if (!absl::StrContains(c.name, options.filter)) continue;
    const std::filesystem::path folder =
        std::filesystem::path(options.save_points) / absl::StrReplaceAll(network.scan.name, {{"/", "_"}});
    std::filesystem::create_directories(folder);
    const std::vector<std::string> fields = support::FeaturesOf(network.scan.format);
    const std::vector<PointCloud>& inputs = *c.inputs;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const absl::Status status = WriteFloats(inputs[i], fields, folder / absl::StrFormat("%02d.bin", i));
      if (status.ok()) continue;
      std::cerr << status << std::endl;
      return 1;
    }
    std::ofstream(folder / "inputs.json")
        << absl::StrFormat("{\"scan\": \"%s\", \"voxel_size_m\": %g, \"columns\": [\"%s\"], \"num_inputs\": %d}\n",
                           network.scan.name, network.voxel_size_m, absl::StrJoin(fields, "\", \""), inputs.size());
    std::printf("%s: %d inputs\n", folder.c_str(), static_cast<int>(inputs.size()));
  }
  return 0;
}

std::optional<Options> Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    const auto next = [&]() -> std::string { return i + 1 < argc ? argv[++i] : ""; };
    bool is_right = true;
    if (option == "networks" || option == "voxels") {
      options.sweeps_voxels = option == "voxels";
    } else if (option == "--filter") {
      options.filter = next();
    } else if (option == "--model") {
      const std::string folder = next();
      options.models.emplace_back(folder, next());
      is_right = !options.models.back().second.empty();
    } else if (option == "--batch") {
      is_right = absl::SimpleAtoi(next(), &options.batch) && options.batch > 0;
    } else if (option == "--inputs") {
      is_right = absl::SimpleAtoi(next(), &options.num_inputs) && options.num_inputs > 0;
    } else if (option == "--captured") {
      options.with_captured = true;
    } else if (option == "--int8") {
      options.with_int8 = true;
    } else if (option == "--row_seconds") {
      is_right = absl::SimpleAtod(next(), &options.row_seconds) && options.row_seconds >= 0;
    } else if (option == "--seconds") {
      is_right = absl::SimpleAtod(next(), &options.seconds) && options.seconds > 0;
    } else if (option == "--save_points") {
      options.save_points = next();
      is_right = !options.save_points.empty();
    } else if (option == "--device") {
      const std::string device = next();
      is_right = device == "cpu" || device == "cuda";
      options.device = device == "cpu" ? support::Device::kCpu : support::Device::kCuda;
    } else {
      is_right = false;
    }
    if (!is_right) return std::nullopt;
  }
  return options;
}

int Main(int argc, char** argv) {
  const std::optional<Options> options = Parse(argc, argv);
  if (!options) {
    std::fprintf(stderr,
                 "usage: %s [networks|voxels] [--filter TEXT] [--model FOLDER SCAN]... [--batch N] [--inputs N]"
                 " [--captured] [--int8] [--row_seconds S] [--seconds S] [--save_points DIR] [--device cpu|cuda]\n",
                 argv[0]);
    return 2;
  }
  if (!options->save_points.empty()) return SavePoints(*options);
  if (!support::HasDevice(options->device)) {
    std::puts("skipped: no CUDA device here");
    return 77;
  }
  if (options->sweeps_voxels && options->num_inputs != kNumInputs) {
    std::fputs("--inputs is not for `voxels`\n", stderr);
    return 2;
  }
  std::vector<BenchCase> cases = options->sweeps_voxels
                                     ? VoxelCases()
                                     : VariedCases(options->models, /*with_deterministic=*/true, options->num_inputs);
  std::erase_if(cases, [&](BenchCase& c) {
    std::erase_if(c.batches, [&](int batch) { return options->batch > 0 && batch != options->batch; });
    return c.batches.empty() || !absl::StrContains(c.name, options->filter);
  });
  if (cases.empty()) {
    std::fprintf(stderr, "no case has '%s' in its name and batches of that size\n", options->filter.c_str());
    return 2;
  }
  if (options->with_int8) cases = Doubled(cases, InInt8);
  if (options->with_captured) cases = Doubled(cases, Captured);
  return Measure(cases, *options);
}

}  // namespace
}  // namespace voxserve::bench

int main(int argc, char** argv) { return voxserve::bench::Main(argc, argv); }
