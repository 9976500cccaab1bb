// Networks over inputs that differ, from points in host memory to labels or boxes there: the times by the host's clock,
// then, with CUPTI attached, the time in which the GPU did anything.
//
//   varied_inputs_cuda_bench [networks] [OPTIONS]   MinkUNet 1.0x and 0.5x on real scans, and models; batches of 1 to 8
//   varied_inputs_cuda_bench voxels [OPTIONS]       MinkUNet 1.0x in float16 from 1,000 to 1,000,000 voxels, batch 1
//
//   --filter TEXT         only cases whose name has this text ("MinkUNet 1.0x, semantickitti" for instance)
//   --model FOLDER SCAN   adds a model's version 1 on a scan of tests/support/real_scans.h by its name; "SCAN+t" gives
//                         its points a field t
//   --captured            each case a second time, as captured batches (engine/executor/captured_batches.h)
//   --row_seconds S       for the timed runs of one row (default 0.8); every input runs twice at least
//   --seconds S           for all: a case that would begin later is left out, and said to be (default 90)
//   --save_points DIR     writes the inputs of MinkUNet's cases for peer_bench.py, and measures nothing
//   --device cpu          tries the program where there is no GPU; nothing is counted
//
// An input is a scan of a drive, turned, thinned and shifted (varied_scans.h). There are 20 for each scan; batch i of n
// holds the inputs i to i + n - 1. Weights are random (only shapes matter for time) unless a model has trained ones.
// Exits with 77 where there is no GPU, with 1 where a case was left out.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "engine/model/model_version.h"
#include "engine/runtime/cuda_devices.h"
#include "tests/bench/cuda_activity.h"
#include "tests/bench/network_cases.h"
#include "tests/bench/or_die.h"
#include "tests/bench/percentile.h"
#include "tests/bench/varied_scans.h"
#include "tests/engine/device_runner.h"
#include "tests/support/real_scans.h"

namespace voxserve::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kNumInputs = 20;
constexpr uint32_t kSeed = 1;

struct Options {
  support::Device device = support::Device::kCuda;
  bool sweeps_voxels = false;
  std::string filter;
  std::vector<std::pair<std::string, std::string>> models;  // folder, scan
  bool with_captured = false;
  double row_seconds = 0.8;
  double seconds = 90;
  std::string save_points;
};

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// A value that is made when it is first asked for, once for all copies.
template <typename T>
class Lazy {
 public:
  Lazy() = default;
  explicit Lazy(std::function<T()> make) : shared_(std::make_shared<Shared>(Shared{std::move(make), {}})) {}

  const T& operator*() const {
    if (!shared_->value) shared_->value = shared_->make();
    return *shared_->value;
  }

 private:
  struct Shared {
    std::function<T()> make;
    std::optional<T> value;
  };
  std::shared_ptr<Shared> shared_;
};

// A network and the inputs that it runs on.
struct BenchCase {
  std::string name;
  Lazy<LoadedModel> model;
  Lazy<std::vector<PointCloud>> inputs;
  std::vector<int> batches = {1, 2, 4, 8};
  bool is_deterministic = false;
  bool captures = false;
};

struct Row {
  std::string name;
  int batch = 1;
  int runs = 0;
  double points = 0, voxels = 0;  // means over the scans
  double p50_ms = 0, p99_ms = 0, features_ms = 0;
  std::optional<double> busy_ms;  // mean of the batches
  int64_t reserved_bytes = 0;
};

// A case on the device, ready to run.
class Prepared {
 public:
  Prepared(const BenchCase& c, support::Device device) : case_(c), model_(*c.model), inputs_(*c.inputs) {
    runner_ = OrDie(DeviceRunner::Create({.device = device, .num_threads = kernels::ThreadPool::AvailableCpus()}));
    program_ = OrDie(runner_->Compile(model_.graph,
                                      {.device = device,
                                       .precision = model_.config.precision,
                                       .plan = DefaultPlanOf(device, model_.config.precision),
                                       .is_deterministic = c.is_deterministic},
                                      model_.config.bytes_per_label()));
  }
  ~Prepared() { program_ = Program(); }

  BatchOutput Run(int batch, int index) {
    std::vector<const PointCloud*> clouds;
    for (int i = 0; i < batch; ++i) clouds.push_back(&inputs_[static_cast<size_t>(index + i) % inputs_.size()]);
    const ModelConfig& config = model_.config;
    BatchOutput output = runner_->Run(
        program_, clouds, /*return_scores=*/false,
        {.ignore_label = config.ignore_label, .max_voxels = config.max_voxels, .voxel_overflow = config.voxel_overflow},
        {.captures = case_.captures});
    for (const InferResult& sample : output.samples) output.status.Update(sample.status);
    if (output.status.ok()) return output;
    std::cerr << case_.name << ": " << output.status << std::endl;
    std::exit(1);
  }

  // Every input once, so that memory has its size and kernels are loaded; three times where batches are captured, which
  // takes two of a shape.
  void WarmUp(int batch) {
    for (int i = 0; i < (case_.captures ? 3 : 1) * kNumInputs; ++i) Run(batch, i);
  }

  Row Time(int batch, double row_seconds) {
    WarmUp(batch);
    Row row{.name = case_.name, .batch = batch};
    std::vector<double> ms, features_ms;
    const auto begin = Clock::now();
    for (int pass = 0; pass < 2 || SecondsSince(begin) < row_seconds; ++pass) {
      for (int i = 0; i < kNumInputs; ++i) {
        const auto start = Clock::now();
        const BatchOutput output = Run(batch, i);
        ms.push_back(SecondsSince(start) * 1e3);
        for (const StageTime& time : output.stages) {
          if (time.stage == Stage::kFeatures) features_ms.push_back(absl::ToDoubleMilliseconds(time.duration));
        }
        // Every input is in as many batches as every other, so the first of each stands for all.
        row.voxels += static_cast<double>(output.samples[0].counts.voxels);
        row.points += static_cast<double>(inputs_[static_cast<size_t>(i)].num_points());
      }
    }
    row.runs = static_cast<int>(ms.size());
    row.voxels /= row.runs;
    row.points /= row.runs;
    row.p50_ms = Percentile(ms, 0.5);
    row.p99_ms = Percentile(ms, 0.99);
    if (!features_ms.empty()) row.features_ms = Percentile(features_ms, 0.5);
    if (runner_->device().is_cuda()) row.reserved_bytes = OrDie(runner_->device().pool->reserved_bytes());
    return row;
  }

  double BusyMs(int batch, CudaActivity& activity) {
    WarmUp(batch);
    if (const absl::Status status = activity.Start(); !status.ok()) std::cerr << status << std::endl;
    for (int i = 0; i < kNumInputs; ++i) Run(batch, i);
    const ActivitySummary summary = OrDie(activity.Stop());
    if (summary.dropped_records > 0) std::cerr << case_.name << ": CUPTI lost records; busy is too low" << std::endl;
    return summary.busy_us / 1e3 / kNumInputs;
  }

 private:
  const BenchCase& case_;
  const LoadedModel& model_;
  const std::vector<PointCloud>& inputs_;
  std::unique_ptr<DeviceRunner> runner_;
  Program program_;
};

// The frames of drives, each read once.
const std::vector<PointCloud>& FramesOf(const support::RealScan& scan) {
  static auto* const drives = new std::map<std::string, std::vector<PointCloud>>();
  auto [drive, is_new] = drives->try_emplace(scan.name);
  if (is_new) drive->second = DriveOf(scan);
  return drive->second;
}

// The inputs of a scan, which all its cases share.
Lazy<std::vector<PointCloud>> InputsOf(const support::RealScan& scan, bool has_time) {
  static auto* const inputs = new std::map<std::pair<std::string, bool>, Lazy<std::vector<PointCloud>>>();
  const auto make = [scan, has_time] {
    std::vector<PointCloud> varied = VariedScans(FramesOf(scan), kNumInputs, kSeed);
    if (has_time) std::transform(varied.begin(), varied.end(), varied.begin(), WithTime);
    return varied;
  };
  return inputs->try_emplace({scan.name, has_time}, make).first->second;
}

BenchCase CaseOf(const NetworkCase& network) {
  const auto load = [network] {
    LoadedModel model{.graph = OrDie(LoadNetwork(network))};
    model.config.precision = network.precision;
    return model;
  };
  return {.name = absl::StrFormat("MinkUNet %.1fx, %s", network.width, network.scan.name),
          .model = Lazy<LoadedModel>(load),
          .inputs = InputsOf(network.scan, /*has_time=*/false)};
}

std::vector<NetworkCase> MinkUNetScans(double width) {
  std::vector<NetworkCase> cases;
  for (const auto& [scan, voxel_size_m] :
       {std::pair(support::kSemanticKittiScan, 0.05f), std::pair(support::kNuScenesKeyFrame, 0.1f),
        std::pair(support::kNuScenesSweeps, 0.1f), std::pair(support::kWaymoFrame, 0.1f)}) {
    cases.push_back({.network = "minkunet", .width = width, .scan = scan, .voxel_size_m = voxel_size_m});
  }
  return cases;
}

BenchCase CaseOf(const std::string& folder, const std::string& scan_name) {
  const bool has_time = absl::EndsWith(scan_name, "+t");
  const auto scan = support::RealScanNamed(std::string(absl::StripSuffix(scan_name, "+t")));
  if (!scan) {
    std::cerr << "no scan is named " << scan_name << std::endl;
    std::exit(2);
  }
  return {.name = absl::StrCat(std::filesystem::weakly_canonical(folder).filename().string(), ", ", scan->name),
          .model = Lazy<LoadedModel>([folder] { return OrDie(LoadModelVersion(folder, 1)); }),
          .inputs = InputsOf(*scan, has_time)};
}

std::vector<BenchCase> NetworkCases(const Options& options) {
  std::vector<BenchCase> cases;
  for (const double width : {1.0, 0.5}) {
    for (const NetworkCase& network : MinkUNetScans(width)) cases.push_back(CaseOf(network));
    if (width != 1.0) continue;
    BenchCase deterministic = cases.front();  // the others' scans cost it the same
    deterministic.name += ", deterministic";
    deterministic.is_deterministic = true;
    deterministic.batches = {1, 4};
    cases.insert(cases.begin() + 1, deterministic);
  }
  for (const auto& [folder, scan] : options.models) cases.push_back(CaseOf(folder, scan));
  return cases;
}

// Each case, and beside it the same of captured batches.
std::vector<BenchCase> WithCaptured(const std::vector<BenchCase>& cases) {
  std::vector<BenchCase> both;
  for (const BenchCase& c : cases) {
    both.push_back(c);
    both.push_back(c);
    both.back().name += ", captured";
    both.back().captures = true;
  }
  return both;
}

// A scan of semantickitti-00 has about so many voxels of 5 cm when it is thinned as inputs are. A guess: the table has
// the voxels that were counted.
constexpr double kVoxelsOfScan = 86'000;
constexpr float kScanSpacing_m = 250;

// Inputs of about that many voxels: a sector of a scan, or several scans side by side.
std::vector<PointCloud> InputsOfVoxels(double num_voxels) {
  std::vector<PointCloud> inputs;
  const std::vector<PointCloud>& frames = FramesOf(support::kSemanticKittiScan);
  uint32_t seed = kSeed;
  for (int i = 0; i < kNumInputs; ++i) {
    std::vector<PointCloud> parts;
    for (double left = num_voxels / kVoxelsOfScan; left > 0.01; left -= 1, ++seed) {
      parts.push_back(Sector(VariedScan(frames[seed % frames.size()], seed), std::min(left, 1.0)));
    }
    inputs.push_back(SideBySide(parts, kScanSpacing_m));
  }
  return inputs;
}

std::vector<BenchCase> VoxelCases() {
  std::vector<BenchCase> cases;
  const BenchCase network = CaseOf(NetworkCase{.network = "minkunet"});
  for (const int num_voxels :
       {1'000, 2'000, 5'000, 10'000, 20'000, 50'000, 100'000, 200'000, 350'000, 500'000, 700'000, 1'000'000}) {
    BenchCase c = network;
    c.name = absl::StrFormat("MinkUNet 1.0x, about %d voxels", num_voxels);
    c.inputs = Lazy<std::vector<PointCloud>>([num_voxels] { return InputsOfVoxels(num_voxels); });
    c.batches = {1};
    cases.push_back(std::move(c));
  }
  return cases;
}

void PrintRow(const Row& row) {
  const std::string busy = row.busy_ms ? absl::StrFormat("%.3f", *row.busy_ms) : "";
  std::puts(absl::StrFormat("| %s | %d | %.0f | %.0f | %.3f | %.3f | %.3f | %.3f | %s | %.0f | %d |", row.name,
                            row.batch, row.points, row.voxels, row.p50_ms, row.p99_ms, row.p50_ms / row.batch,
                            row.features_ms, busy, static_cast<double>(row.reserved_bytes) / (1 << 20), row.runs)
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
    Prepared prepared(cases[i], options.device);
    for (const int batch : cases[i].batches) {
      rows[i].push_back(prepared.Time(batch, options.row_seconds));
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
      Prepared prepared(cases[i], options.device);
      for (Row& row : rows[i]) row.busy_ms = prepared.BusyMs(row.batch, **activity);
    }
  } else {
    std::fprintf(stderr, "GPU busy is not counted: %s\n", activity.status().ToString().c_str());
  }

  std::printf("%s, CUDA %s, %d CPU threads, %d inputs a case\n\n",
              on_cuda ? ListCudaDevices().front().name.c_str() : "CPU", CudaVersion().c_str(),
              kernels::ThreadPool::AvailableCpus(), kNumInputs);
  std::puts(
      "| network, scan | batch | points | voxels | p50 ms | p99 ms | a scan ms | features ms | GPU busy ms |"
      " device MiB | runs |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
  for (const std::vector<Row>& of_case : rows) {
    for (const Row& row : of_case) PrintRow(row);
  }
  std::puts(
      "\npoints, voxels: means of a scan. features: median of that stage. GPU busy: mean of a batch's kernels, copies"
      " and memsets, overlaps counted once. device MiB: all that the memory pool holds, weights included; it grows over"
      " a case's batches.");
  if (left_out.empty()) return 0;
  std::printf("\n**Left out for want of time: %s**\n", absl::StrJoin(left_out, "; ").c_str());
  return 1;
}

// DIR/<scan>/<index>.bin has the float32 features of every point; DIR/<scan>/inputs.json says how to read them.
int SavePoints(const Options& options) {
  for (const NetworkCase& network : MinkUNetScans(1.0)) {
    if (!absl::StrContains(CaseOf(network).name, options.filter)) continue;
    const std::filesystem::path folder =
        std::filesystem::path(options.save_points) / absl::StrReplaceAll(network.scan.name, {{"/", "_"}});
    std::filesystem::create_directories(folder);
    const std::vector<std::string> fields = support::FeaturesOf(network.scan.format);
    const std::vector<PointCloud>& inputs = *InputsOf(network.scan, /*has_time=*/false);
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
    } else if (option == "--captured") {
      options.with_captured = true;
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
                 "usage: %s [networks|voxels] [--filter TEXT] [--model FOLDER SCAN]... [--captured] [--row_seconds S]"
                 " [--seconds S] [--save_points DIR] [--device cpu|cuda]\n",
                 argv[0]);
    return 2;
  }
  if (!options->save_points.empty()) return SavePoints(*options);
  if (!support::HasDevice(options->device)) {
    std::puts("skipped: no CUDA device here");
    return 77;
  }
  std::vector<BenchCase> cases = options->sweeps_voxels ? VoxelCases() : NetworkCases(*options);
  std::erase_if(cases, [&](const BenchCase& c) { return !absl::StrContains(c.name, options->filter); });
  if (cases.empty()) {
    std::fprintf(stderr, "no case has '%s' in its name\n", options->filter.c_str());
    return 2;
  }
  if (options->with_captured) cases = WithCaptured(cases);
  return Measure(cases, *options);
}

}  // namespace
}  // namespace voxserve::bench

int main(int argc, char** argv) { return voxserve::bench::Main(argc, argv); }
