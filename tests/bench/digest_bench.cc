// Prints a hash of everything that networks answer, for many networks, scans and plans. It guards changes that must not
// alter a byte of any answer: run it before and after the change on the same machine, and compare the outputs. It
// measures no time.
//
//   digest_bench [--device cpu|cuda]... [--filter TEXT] [--model FOLDER SCAN]... [--twice]
//
//   --device cpu|cuda    runs this device's cases; without it, those of every device of the machine
//   --filter TEXT        runs only cases whose line contains this text, "cuda minkunet 0.5x" for instance
//   --model FOLDER SCAN  adds a model's version 1 on a scan. SCAN is the scan's name in the lines below
//                        ("waymo/frame_100"). On a GPU it runs in the precision of the model's configuration
//   --twice              runs in two processes, prints the output of the first, and says if the second's is the same
//
// A line is `<16 hexadecimal digits> <case>`, or `skipped <case>: <file>` if the case's scan is missing, or `failed
// <case>: <why>`. A line that begins with # names what the digests of the cases below it depend on: a CPU's on its
// vector instructions, a GPU's on its kind and on CUDA's version. The exit status is 0 if no case failed and at least
// one ran.
//
// In 8 bits a network's scales are the largest values on another scan, and its first and last layers stay in floats.
//
// The hash (FNV-1a) covers every sample's labels, scores, boxes, counts and sampled points.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/status_macros.h"
#include "engine/compiler/plan.h"
#include "engine/executor/executor.h"
#include "engine/model/model_version.h"
#include "engine/runtime/cuda_devices.h"
#include "engine/tensor/infer_result.h"
#include "engine/tensor/infer_task.h"
#include "kernels/conv/fetch_on_demand.h"
#include "kernels/core/thread_pool.h"
#include "tests/bench/network_cases.h"
#include "tests/bench/varied_scans.h"
#include "tests/engine/device_runner.h"
#include "tests/engine/measured_scales.h"
#include "tests/support/paths.h"
#include "tests/support/real_scans.h"

namespace voxserve::bench {
namespace {

using Precision = ModelConfig::Precision;
using support::ScanFormat;

struct Scan {
  std::string name;
  std::string file;
  ScanFormat format;
  uint64_t max_points = UINT64_MAX;  // only this many points of the file, from its beginning
  uint64_t stride = 1;               // of these points, every stride-th, beginning with the first
  bool is_timed = false;             // with a field t
};

struct Case {
  std::string name;
  std::function<absl::StatusOr<LoadedModel>()> load;
  Variant variant;
  std::vector<Scan> scans;  // one per sample
  std::optional<FarthestPoints> sample = {};
};

Scan GoldenScan063() {
  return {"pandaset_063", support::SourceDir() + "/tests/golden/pandaset_063.bin", ScanFormat::kKitti};
}

Scan GoldenScan070() {
  return {"pandaset_070", support::SourceDir() + "/deploy/scans/pandaset_070.bin", ScanFormat::kKitti};
}

Scan ScanOf(const support::RealScan& scan) { return {scan.name, scan.path(), scan.format}; }

std::optional<Scan> ScanNamed(const std::string& name) {
  if (const auto scan = support::RealScanNamed(name)) return ScanOf(*scan);
  for (const Scan& scan : {GoldenScan063(), GoldenScan070()}) {
    if (scan.name == name) return scan;
  }
  return std::nullopt;
}

absl::StatusOr<PointCloud> Read(const Scan& scan) {
  ASSIGN_OR_RETURN(const PointCloud file, support::ReadScan(scan.format, scan.file));
  PointCloudLayout layout = file.layout();
  layout.num_points = 0;
  std::string bytes;
  for (uint64_t i = 0; i < std::min(scan.max_points, file.num_points()); i += scan.stride) {
    bytes.append(file.bytes().substr(i * layout.point_step, layout.point_step));
    ++layout.num_points;
  }
  ASSIGN_OR_RETURN(PointCloud cloud, PointCloud::Create(std::move(layout), std::move(bytes)));
  return scan.is_timed ? WithTime(cloud) : cloud;
}

const char* ShortName(support::Device device) { return device == support::Device::kCpu ? "cpu" : "cuda"; }

// Returns the variant that a server without a tuned plan runs.
Variant DefaultVariant(support::Device device, Precision precision) {
  if (device == support::Device::kCpu) return {.precision = precision, .merges_products = false};
  return {.device = device, .precision = precision, .plan = DefaultPlanOf(device, precision)};
}

struct NamedPlan {
  std::string name;
  ConvPlan plan;
};

// Returns choices that a tuned plan may make for a convolution, other than `usual`. A case uses one for all of its
// convolutions.
std::vector<NamedPlan> PlansBeside(const ConvPlan& usual) {
  using kernels::Grouping;
  std::vector<NamedPlan> plans;
  const auto add = [&](const std::string& name) -> ConvPlan& {
    plans.push_back({.name = name, .plan = usual});
    return plans.back().plan;
  };
  const auto add_gathered = [&](const std::string& name, const kernels::GroupingOptions& grouping) {
    ConvPlan& plan = add(name);
    plan = ByDataflow(usual, Dataflow::kGatherGemmScatter);
    plan.grouping = grouping;
  };
  add_gathered("gather-GEMM-scatter", usual.grouping);
  add_gathered("separate products", {.grouping = Grouping::kSeparate});
  add_gathered("symmetric groups", {.grouping = Grouping::kSymmetric});
  add_gathered("fixed groups", {.grouping = Grouping::kFixed});
  add_gathered("adaptive groups, 0.4, 8192", {.grouping = Grouping::kAdaptive, .epsilon = 0.4, .bmm_max_rows = 8192});
  add("grid search").map_search = kernels::MapSearch::kGrid;
  return plans;
}

// Lists all cases of a device.
class CaseList {
 public:
  explicit CaseList(support::Device device) : device_(device) {
    AddLargeNetworks();
    for (const Precision precision : precisions()) {
      AddTrainedNetwork(precision);
      AddSmallNetworks(precision);
    }
    if (MultipliesInInt8(device)) AddTrainedNetworkInInt8();
  }

  void AddModel(const std::string& folder, const Scan& scan) {
    absl::StatusOr<LoadedModel> model = LoadModelVersion(folder, 1);
    const bool is_int8 = model.ok() && model->config.precision == Precision::kInt8;
    const Precision precision = model.ok() && (is_cuda() || is_int8) ? model->config.precision : Precision::kFloat32;
    std::error_code ignored;
    const std::string network = std::filesystem::weakly_canonical(folder, ignored).filename();
    Add({.name = Name(network, scan.name, precision),
         .load = [model = std::move(model)] { return model; },
         .variant = DefaultVariant(device_, precision),
         .scans = {scan}});
  }

  const std::vector<Case>& cases() const { return cases_; }

 private:
  bool is_cuda() const { return device_ == support::Device::kCuda; }
  std::vector<Precision> precisions() const {
    if (is_cuda()) return {Precision::kFloat32, Precision::kFloat16};
    return {Precision::kFloat32};
  }

  std::string Name(const std::string& network, const std::string& scan, Precision precision) const {
    return absl::StrCat(network, ", ", scan, ", ", NameOf(precision));
  }

  void Add(Case added) {
    added.name = absl::StrCat(ShortName(device_), " ", added.name);
    cases_.push_back(std::move(added));
  }

  // Adds networks with random weights, on real scans.
  void AddLargeNetworks() {
    std::vector<NetworkCase> networks;
    if (is_cuda()) {
      networks = CudaNetworkCases();
    } else {
      constexpr auto kPrecision = Precision::kFloat32;
      networks = {{"minkunet", 1.0, support::kSemanticKittiScan, 0.05f, 1, kPrecision, {}},
                  {"minkunet", 0.5, support::kSemanticKittiScan, 0.05f, 1, kPrecision, {}},
                  {"minkunet", 0.5, support::kNuScenesSweeps, 0.1f, 1, kPrecision, {}},
                  {"minkunet", 0.5, support::kWaymoFrame, 0.1f, 1, kPrecision, {}},
                  {"resnet21d", 1.0, support::kWaymoFrame, 0.1f, 1, kPrecision, {}}};
    }
    for (const NetworkCase& network : networks) {
      const auto load = [network]() -> absl::StatusOr<LoadedModel> {
        ASSIGN_OR_RETURN(Graph graph, LoadNetwork(network));
        return LoadedModel{.graph = std::move(graph)};
      };
      Add({.name = network.name(),
           .load = load,
           .variant = DefaultVariant(device_, network.precision),
           .scans = std::vector<Scan>(static_cast<size_t>(network.batch), ScanOf(network.scan))});
    }
  }

  // Adds deploy/models/minkunet: by each plan, with a sample of the points, and with a limit below its number of
  // voxels.
  void AddTrainedNetwork(Precision precision) {
    const auto load = [] { return LoadModelVersion(support::SourceDir() + "/deploy/models/minkunet", 1); };
    const Case usual = {.name = Name("trained minkunet", "pandaset_070", precision),
                        .load = load,
                        .variant = DefaultVariant(device_, precision),
                        .scans = {GoldenScan070()}};
    Add(usual);
    if (is_cuda()) {
      for (const NamedPlan& plan : PlansBeside(usual.variant.plan)) {
        Case planned = usual;
        planned.name += ", " + plan.name;
        planned.variant.plan = plan.plan;
        Add(planned);
      }
    }

    Case sampled = usual;
    sampled.name = usual.name + ", 4096 farthest points beside it";
    sampled.sample = FarthestPoints{.num_points = 4096};
    Add(sampled);
    sampled.name = usual.name + ", 4096 farthest points alone";
    sampled.sample = FarthestPoints{.num_points = 4096, .seed = 7, .restricts_network = true};
    Add(sampled);

    for (const auto& [name, overflow] : {std::pair("nearest", ModelConfig::VoxelOverflow::kNearestFirst),
                                         std::pair("first seen", ModelConfig::VoxelOverflow::kFirstSeen)}) {
      Case limited = usual;
      absl::StrAppend(&limited.name, ", the 20000 ", name, " voxels");
      limited.load = [load, overflow = overflow]() -> absl::StatusOr<LoadedModel> {
        ASSIGN_OR_RETURN(LoadedModel model, load());
        model.config.max_voxels = 20'000;
        model.config.voxel_overflow = overflow;
        return model;
      };
      Add(limited);
    }
  }

  // Adds deploy/models/minkunet in 8 bits, on one scan and on four, and with all layers in 8 bits.
  void AddTrainedNetworkInInt8() {
    for (const bool has_floats : {true, false}) {
      Case alone = {.name = Name(has_floats ? "trained minkunet" : "trained minkunet without layers of floats",
                                 "pandaset_070", Precision::kInt8),
                    .load = [has_floats]() -> absl::StatusOr<LoadedModel> {
                      ASSIGN_OR_RETURN(LoadedModel model,
                                       LoadModelVersion(support::SourceDir() + "/deploy/models/minkunet", 1));
                      ASSIGN_OR_RETURN(const PointCloud cloud, Read(GoldenScan063()));
                      RETURN_IF_ERROR(SetMeasuredScales(cloud, model.graph));
                      if (has_floats) model.config.float_nodes = FirstAndLastLayers(model.graph);
                      return model;
                    },
                    .variant = DefaultVariant(device_, Precision::kInt8),
                    .scans = {GoldenScan070()}};
      Add(alone);
      Case batch = alone;
      batch.name += ", batch of 4";
      batch.scans = {GoldenScan063(), GoldenScan070(), GoldenScan063(), GoldenScan070()};
      Add(batch);
    }
  }

  // Adds every kind of network that the exporter writes, on its own and in a batch. Some of them answer with boxes.
  void AddSmallNetworks(Precision precision) {
    for (const char* network :
         {"small-centerpoint-det3d", "small-centerpoint-openpcdet", "small-centerpoint-pillar", "small-voxelnext",
          "small-pointpillars", "small-second", "small-spvcnn", "small-resnet21d", "small-minkowski-cube",
          "small-minkowski-cube-cross", "small-minkowski-hypercross", "small-minkowski-hypercube"}) {
      const std::string folder = absl::StrCat(support::SourceDir(), "/tests/golden/networks/", network);
      Scan whole = GoldenScan063();
      whole.is_timed = true;
      Scan beginning = whole;  // these points are beyond the detectors' range, so detectors find no boxes
      beginning.max_points = 20'000;
      Scan thinned = whole;
      thinned.stride = 5;
      const Case alone = {.name = Name(network, whole.name, precision),
                          .load = [folder] { return LoadModelVersion(folder, 1); },
                          .variant = DefaultVariant(device_, precision),
                          .scans = {whole}};
      Add(alone);
      Case batch = alone;
      batch.scans = {whole, beginning, thinned};
      batch.name += ", batch with its first 20000 points and every fifth";
      Add(batch);
      if (!is_cuda()) continue;
      batch.name += ", deterministic";
      batch.variant.is_deterministic = true;
      Add(batch);
      Case gathered = alone;
      gathered.name += ", gather-GEMM-scatter";
      gathered.variant.plan.dataflow = Dataflow::kGatherGemmScatter;
      Add(gathered);
    }
  }

  const support::Device device_;
  std::vector<Case> cases_;
};

class Fnv1a {
 public:
  void AddBytes(const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) hash_ = (hash_ ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001b3u;
  }
  // Adds a number, which may be a float.
  template <typename T>
  void AddValue(T value) {
    AddBytes(&value, sizeof(value));
  }
  template <typename T>
  void AddArray(absl::Span<const T> values) {
    AddValue<uint64_t>(values.size());
    AddBytes(values.data(), values.size() * sizeof(T));
  }

  uint64_t hash() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

void AddOutput(const InferResult& output, Fnv1a& hash) {
  hash.AddArray(output.labels());
  hash.AddArray(output.scores());
  const std::vector<Box> boxes = output.boxes();
  hash.AddValue<uint64_t>(boxes.size());
  for (const Box& box : boxes) {
    hash.AddValue(box.class_id);
    for (const float number :
         {box.score, box.x, box.y, box.z, box.length, box.width, box.height, box.yaw, box.velocity_x, box.velocity_y}) {
      hash.AddValue(number);
    }
  }
  const PointCounts& counts = output.counts;
  for (const int64_t count :
       {counts.used, counts.invalid, counts.out_of_range, counts.dropped, counts.unsampled, counts.voxels}) {
    hash.AddValue(count);
  }
  hash.AddArray(absl::MakeConstSpan(output.sampled_points));
}

absl::StatusOr<uint64_t> DigestOf(const Case& c, DeviceRunner& runner) {
  std::vector<PointCloud> clouds;
  for (const Scan& scan : c.scans) {
    ASSIGN_OR_RETURN(PointCloud cloud, Read(scan));
    clouds.push_back(std::move(cloud));
  }
  ASSIGN_OR_RETURN(const LoadedModel model, c.load());
  Variant variant = c.variant;
  variant.float_nodes = model.config.float_nodes;
  ASSIGN_OR_RETURN(const Program program, runner.Compile(model.graph, variant, model.config.bytes_per_label()));
  std::vector<InferTask> tasks;
  for (const PointCloud& cloud : clouds) {
    tasks.push_back({.cloud = cloud, .return_scores = program.has_scores, .sample = c.sample});
  }
  const RunLimits limits = {.ignore_label = model.config.ignore_label,
                            .max_voxels = model.config.max_voxels,
                            .voxel_overflow = model.config.voxel_overflow};
  const BatchReport output = runner.Run(program, tasks, limits);
  RETURN_IF_ERROR(output.status);
  Fnv1a hash;
  for (const InferResult& sample : output.samples) {
    RETURN_IF_ERROR(sample.status);
    AddOutput(sample, hash);
  }
  return hash.hash();
}

// Runs a case and returns its line.
std::string RunCase(const Case& c, DeviceRunner& runner) {
  for (const Scan& scan : c.scans) {
    if (!std::filesystem::exists(scan.file)) return absl::StrCat("skipped ", c.name, ": ", scan.file);
  }
  const absl::StatusOr<uint64_t> digest = DigestOf(c, runner);
  if (!digest.ok()) return absl::StrCat("failed ", c.name, ": ", digest.status().message());
  return absl::StrFormat("%016x %s", *digest, c.name);
}

struct Options {
  std::vector<support::Device> devices;
  std::string filter;
  std::vector<std::pair<std::string, Scan>> models;
  bool is_twice = false;
};

// Returns the line that names what digests on this device depend on.
std::string Header(support::Device device, int num_threads) {
  if (device == support::Device::kCpu) {
    return absl::StrFormat("# cpu: %s, threads %d", kernels::cpu::VectorInstructionSet(), num_threads);
  }
  return absl::StrFormat("# cuda: %s, CUDA %s", ListCudaDevices().front().name, CudaVersion());
}

int RunOnce(const Options& options) {
  int num_digests = 0;
  int num_failures = 0;
  for (const support::Device device : options.devices) {
    if (!support::HasDevice(device)) {
      std::fprintf(stderr, "there is no %s device here\n", ShortName(device));
      return 1;
    }
    const int num_threads = kernels::ThreadPool::AvailableCpus();
    const auto runner = DeviceRunner::Create({.device = device, .num_threads = num_threads});
    if (!runner.ok()) {
      std::cerr << runner.status() << std::endl;
      return 1;
    }
    std::puts(Header(device, num_threads).c_str());
    CaseList list(device);
    for (const auto& [folder, scan] : options.models) list.AddModel(folder, scan);
    for (const Case& c : list.cases()) {
      if (!absl::StrContains(c.name, options.filter)) continue;
      const std::string line = RunCase(c, **runner);
      std::puts(line.c_str());
      std::fflush(stdout);
      if (absl::StartsWith(line, "failed ")) {
        ++num_failures;
      } else if (!absl::StartsWith(line, "skipped ")) {
        ++num_digests;
      }
    }
  }
  if (num_digests == 0) std::fprintf(stderr, "no case ran\n");
  return num_failures == 0 && num_digests > 0 ? 0 : 1;
}

// Returns what a command prints, or "" if it fails.
std::string OutputOf(const std::string& command) {
  std::string output;
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return output;
  std::array<char, 4096> part;
  for (size_t bytes = 0; (bytes = fread(part.data(), 1, part.size(), pipe)) > 0;) output.append(part.data(), bytes);
  if (pclose(pipe) == 0) return output;
  std::fputs(output.c_str(), stdout);
  return "";
}

// Runs the program in two processes. Digests are only useful if other processes get the same ones.
int RunTwice(int argc, char** argv) {
  std::string command;
  for (int i = 0; i < argc; ++i) {
    const absl::string_view argument = argv[i];
    if (argument != "--twice") absl::StrAppend(&command, "'", absl::StrReplaceAll(argument, {{"'", "'\\''"}}), "' ");
  }
  const std::string first = OutputOf(command);
  if (first.empty()) return 1;
  std::fputs(first.c_str(), stdout);
  std::fflush(stdout);
  const std::string second = OutputOf(command);
  if (second.empty()) return 1;
  if (first == second) {
    std::puts("# Two processes gave the same digests.");
    return 0;
  }
  std::puts("# Another process gave DIFFERENT digests:");
  const std::vector<std::string> lines = absl::StrSplit(first, '\n'), others = absl::StrSplit(second, '\n');
  for (size_t i = 0; i < others.size(); ++i) {
    if (i >= lines.size() || others[i] != lines[i]) std::puts(others[i].c_str());
  }
  return 1;
}

std::optional<Options> Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const int num_values = argc - 1 - i;
    if (option == "--twice") {
      options.is_twice = true;
    } else if (option == "--device" && num_values >= 1) {
      const std::string device = argv[++i];
      if (device != "cpu" && device != "cuda") return std::nullopt;
      options.devices.push_back(device == "cpu" ? support::Device::kCpu : support::Device::kCuda);
    } else if (option == "--filter" && num_values >= 1) {
      options.filter = argv[++i];
    } else if (option == "--model" && num_values >= 2) {
      const std::string folder = argv[++i];
      const std::optional<Scan> scan = ScanNamed(argv[++i]);
      if (!scan) {
        std::fprintf(stderr, "no scan is named %s\n", argv[i]);
        return std::nullopt;
      }
      options.models.emplace_back(folder, *scan);
    } else {
      return std::nullopt;
    }
  }
  return options;
}

int Main(int argc, char** argv) {
  std::optional<Options> options = Parse(argc, argv);
  if (!options) {
    std::fprintf(stderr, "usage: %s [--device cpu|cuda]... [--filter TEXT] [--model FOLDER SCAN]... [--twice]\n",
                 argv[0]);
    return 2;
  }
  if (options->is_twice) return RunTwice(argc, argv);
  if (options->devices.empty()) {
    for (const support::Device device : {support::Device::kCpu, support::Device::kCuda}) {
      if (support::HasDevice(device)) options->devices.push_back(device);
    }
  }
  return RunOnce(*options);
}

}  // namespace
}  // namespace voxserve::bench

int main(int argc, char** argv) { return voxserve::bench::Main(argc, argv); }
