#include "tests/bench/scan_convolutions.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <set>
#include <string>
#include <utility>

#include "engine/executor/cuda_executor.h"
#include "tests/bench/or_die.h"
#include "tests/support/minkunet.h"
#include "tests/support/test_device.h"

namespace voxserve::bench {

ScanConvolutions::ScanConvolutions(double width, const support::RealScan& scan, float voxel_size_m)
    : ScanConvolutions(width, OrDie(support::ReadScan(scan.format, scan.path())), voxel_size_m) {}

ScanConvolutions::ScanConvolutions(double width, const PointCloud& cloud, float voxel_size_m) {
  const support::NetworkOptions network{
      .width = width, .features = {"x", "y", "z", "intensity"}, .voxel_size_m = voxel_size_m};
  const Graph graph = OrDie(support::LoadNetwork(support::MinkUNet(network)));
  runner_ = OrDie(DeviceRunner::Create({.device = support::Device::kCuda}));
  program_ = OrDie(runner_->Compile(
      graph,
      {.device = support::Device::kCuda, .precision = ModelConfig::Precision::kFloat16, .plan = kDefaultCudaConvPlan}));
  // The scan runs by the default plan. The other plans make the engine build the forms of rulebooks that they read.
  std::vector<PlanTable::Bucket> buckets = {{.plan = {.fallback = kDefaultCudaConvPlan}}};
  for (const ConvDataflow* const dataflow : Dataflows()) {
    buckets.push_back(
        {.min_voxels = PlanTable::kNoLimit, .plan = {.fallback = ByDataflow(kDefaultCudaConvPlan, dataflow->id())}});
  }
  const PlanTable plans(program_, buckets);
  const BatchReport output = runner_->Run(program_, {&cloud}, /*return_scores=*/false, {}, {.plans = &plans});
  if (!output.status.ok() || !output.samples[0].status.ok()) {
    std::cerr << (output.status.ok() ? output.samples[0].status : output.status) << std::endl;
    std::exit(1);
  }
  for (const ProgramConv& conv : program_.convs) {
    const auto same = std::find_if(all_.begin(), all_.end(), [&conv](const ScanConvolution& other) {
      return other.layer.rulebook == conv.rulebook && other.layer.in_channels == conv.in_channels &&
             other.layer.out_channels == conv.out_channels;
    });
    if (same != all_.end()) {
      ++same->count;
      continue;
    }
    all_.push_back({.count = 1, .tables = context().device_geometry->rulebook(conv.rulebook), .layer = conv});
  }
}

// The weights must return to the runner's pool before the runner is destroyed.
ScanConvolutions::~ScanConvolutions() { program_ = Program(); }

std::vector<const ScanConvolution*> ScanConvolutions::OfLevels() const {
  std::vector<const ScanConvolution*> of_levels;
  std::set<int> rulebooks;
  for (const ScanConvolution& conv : all_) {
    if (conv.tables.num_offsets == 27 && conv.is_submanifold() && rulebooks.insert(conv.layer.rulebook).second) {
      of_levels.push_back(&conv);
    }
  }
  return of_levels;
}

StepContext ScanConvolutions::context() {
  return {.execution = &runner_->context(),
          .device_geometry = &static_cast<const CudaExecutor&>(runner_->executor()).geometry(),
          .groupings = &groupings_};
}

BenchScan ScanOfArguments(int argc, char** argv) {
  const auto scan = support::RealScanNamed(argc > 1 ? argv[1] : support::kSemanticKittiScan.name);
  if (argc > 2 || !scan) {
    std::fprintf(stderr, "usage: %s [SCAN]\n", argv[0]);
    std::exit(2);
  }
  if (!support::HasDevice(support::Device::kCuda)) {
    std::puts("skipped: no CUDA device here");
    std::exit(0);
  }
  return {*scan, std::string(scan->name) == support::kSemanticKittiScan.name ? 0.05f : 0.1f};
}

PointCloud NewestSweeps(const support::RealScan& scan, int num_sweeps) {
  const PointCloud all = OrDie(support::ReadScan(scan.format, scan.path()));
  const PointField* dt = all.FindField("dt");
  std::vector<float> ages(all.num_points());
  if (dt != nullptr) all.ReadField(*dt, 0, all.num_points(), ages.data(), /*out_step=*/1);
  const std::set<float> sweeps(ages.begin(), ages.end());
  if (dt == nullptr || std::ssize(sweeps) < num_sweeps) {
    std::cerr << scan.path() << " has no " << num_sweeps << " sweeps" << std::endl;
    std::exit(1);
  }
  const float oldest = *std::next(sweeps.begin(), num_sweeps - 1);
  PointCloudLayout layout = all.layout();  // without gaps between fields, as ReadScan makes all clouds
  std::string bytes;
  for (size_t i = 0; i < ages.size(); ++i) {
    if (ages[i] <= oldest) bytes += all.bytes().substr(i * layout.point_step, layout.point_step);
  }
  layout.num_points = bytes.size() / layout.point_step;
  return OrDie(PointCloud::Create(std::move(layout), std::move(bytes)));
}

}  // namespace voxserve::bench
