#include "tests/bench/varied_cases.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "tests/bench/or_die.h"
#include "tests/bench/varied_scans.h"
#include "tests/engine/measured_scales.h"

namespace voxserve::bench {
namespace {

constexpr uint32_t kSeed = 1;

// Returns the frames of the scan's drive. Each drive is read once.
const std::vector<PointCloud>& FramesOf(const support::RealScan& scan) {
  static auto* const drives = new std::map<std::string, std::vector<PointCloud>>();
  auto [drive, is_new] = drives->try_emplace(scan.name);
  if (is_new) drive->second = DriveOf(scan);
  return drive->second;
}

// Returns the inputs made from a scan. All cases of the scan share them.
Lazy<std::vector<PointCloud>> InputsOf(const support::RealScan& scan, bool has_time, int num_inputs) {
  using Key = std::tuple<std::string, bool, int>;
  static auto* const inputs = new std::map<Key, Lazy<std::vector<PointCloud>>>();
  const auto make = [scan, has_time, num_inputs] {
    std::vector<PointCloud> varied = VariedScans(FramesOf(scan), num_inputs, kSeed);
    if (has_time) std::transform(varied.begin(), varied.end(), varied.begin(), WithTime);
    return varied;
  };
  return inputs->try_emplace({scan.name, has_time, num_inputs}, make).first->second;
}

// named: a model's folder, perhaps with ":" and a version after it.
BenchCase CaseOf(const std::string& named, const std::string& scan_name, int num_inputs) {
  const size_t colon = named.rfind(':');
  int version = 1;
  const bool has_version = colon != std::string::npos && absl::SimpleAtoi(named.substr(colon + 1), &version);
  const std::string folder = has_version ? named.substr(0, colon) : named;
  const bool has_time = absl::EndsWith(scan_name, "+t");
  const auto scan = support::RealScanNamed(std::string(absl::StripSuffix(scan_name, "+t")));
  if (!scan) {
    std::cerr << "no scan is named " << scan_name << std::endl;
    std::exit(2);
  }
  return {.name = absl::StrCat(std::filesystem::weakly_canonical(folder).filename().string(),
                               has_version ? absl::StrCat(":", version) : "", ", ", scan->name),
          .model = Lazy<LoadedModel>([folder, version] { return OrDie(LoadModelVersion(folder, version)); }),
          .inputs = InputsOf(*scan, has_time, num_inputs)};
}

// An estimate of the number of 5 cm voxels of a semantickitti-00 scan after VariedScan has thinned it. It decides how
// many points InputsOfVoxels takes. The benchmark's table has the numbers of voxels that were counted.
constexpr double kVoxelsOfScan = 86'000;
constexpr float kScanSpacing_m = 250;

// Returns inputs of about num_voxels voxels each. An input is a sector of a scan, or several scans side by side.
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

}  // namespace

PreparedCase::PreparedCase(const BenchCase& c, support::Device device)
    : case_(c), model_(*c.model), inputs_(*c.inputs) {
  runner_ = OrDie(DeviceRunner::Create({.device = device, .num_threads = kernels::ThreadPool::AvailableCpus()}));
  program_ = OrDie(runner_->Compile(model_.graph,
                                    {.device = device,
                                     .precision = model_.config.precision,
                                     .plan = DefaultPlanOf(device, model_.config.precision),
                                     .is_deterministic = c.is_deterministic,
                                     .float_nodes = model_.config.float_nodes},
                                    model_.config.bytes_per_label()));
}

PreparedCase::~PreparedCase() { program_ = Program(); }

BatchReport PreparedCase::Run(int batch, int index, const RunOptions& options, bool return_scores) {
  std::vector<const PointCloud*> clouds;
  for (int i = 0; i < batch; ++i) clouds.push_back(&inputs_[static_cast<size_t>(index + i) % inputs_.size()]);
  const ModelConfig& config = model_.config;
  BatchReport output = runner_->Run(
      program_, clouds, return_scores,
      {.ignore_label = config.ignore_label, .max_voxels = config.max_voxels, .voxel_overflow = config.voxel_overflow},
      options);
  for (const InferResult& sample : output.samples) output.status.Update(sample.status);
  return output;
}

BatchReport PreparedCase::RunOrDie(int batch, int index, const RunOptions& options) {
  BatchReport output = Run(batch, index, options);
  if (output.status.ok()) return output;
  std::cerr << case_.name << ": " << output.status << std::endl;
  std::exit(1);
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

BenchCase CaseOf(const NetworkCase& network, int num_inputs) {
  const auto load = [network] {
    LoadedModel model{.graph = OrDie(LoadNetwork(network))};
    model.config.precision = network.precision;
    return model;
  };
  return {.name = absl::StrFormat("MinkUNet %.1fx, %s", network.width, network.scan.name),
          .model = Lazy<LoadedModel>(load),
          .inputs = InputsOf(network.scan, /*has_time=*/false, num_inputs)};
}

std::vector<BenchCase> VariedCases(const std::vector<std::pair<std::string, std::string>>& models,
                                   bool with_deterministic, int num_inputs) {
  std::vector<BenchCase> cases;
  for (const double width : {1.0, 0.5}) {
    for (const NetworkCase& network : MinkUNetScans(width)) cases.push_back(CaseOf(network, num_inputs));
    if (width != 1.0 || !with_deterministic) continue;
    BenchCase deterministic = cases.front();  // one case is enough to show the cost
    deterministic.name += ", deterministic";
    deterministic.is_deterministic = true;
    deterministic.batches = {1, 4};
    cases.insert(cases.begin() + 1, deterministic);
  }
  for (const auto& [folder, scan] : models) cases.push_back(CaseOf(folder, scan, num_inputs));
  return cases;
}

BenchCase InInt8(const BenchCase& float_case) {
  BenchCase int8 = float_case;
  int8.name += ", int8";
  int8.model = Lazy<LoadedModel>([floats = float_case.model, inputs = float_case.inputs] {
    LoadedModel model = *floats;
    OrDie(SetMeasuredScales((*inputs).front(), model.graph));
    model.config.precision = ModelConfig::Precision::kInt8;
    model.config.float_nodes = FirstAndLastLayers(model.graph);
    return model;
  });
  return int8;
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

}  // namespace voxserve::bench
