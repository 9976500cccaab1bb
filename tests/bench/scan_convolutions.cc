#include "tests/bench/scan_convolutions.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <set>
#include <utility>

#include "engine/executor/cuda_executor.h"
#include "engine/ops/conv/sparse_conv.h"
#include "tests/support/minkunet.h"

namespace voxserve::bench {
namespace {

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::cerr << value.status() << std::endl;
  std::exit(1);
}

}  // namespace

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
  const BatchOutput output = runner_->Run(program_, {&cloud}, /*return_scores=*/false);
  if (!output.status.ok() || !output.samples[0].status.ok()) {
    std::cerr << (output.status.ok() ? output.samples[0].status : output.status) << std::endl;
    std::exit(1);
  }
  const DeviceGeometry& geometry = static_cast<const CudaExecutor&>(runner_->executor()).geometry();
  for (const auto& step : program_.steps) {
    const auto* conv = dynamic_cast<const SparseConvStep*>(step.get());
    if (conv == nullptr) continue;
    const SparseConvStep::Options& options = conv->options();
    const auto same = std::find_if(all_.begin(), all_.end(), [&options](const ScanConvolution& other) {
      return other.rulebook == options.rulebook && other.in_channels == options.in.channels &&
             other.out_channels == options.out.channels;
    });
    if (same != all_.end()) {
      ++same->count;
      continue;
    }
    all_.push_back({.name = step->name,
                    .count = 1,
                    .rulebook = options.rulebook,
                    .tables = geometry.rulebook(options.rulebook),
                    .is_symmetric = options.is_symmetric,
                    .in_channels = options.in.channels,
                    .out_channels = options.out.channels});
  }
}

// The weights go back to the runner's pool before it goes.
ScanConvolutions::~ScanConvolutions() { program_ = Program(); }

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
  PointCloudLayout layout = all.layout();  // packed, as all of ReadScan's
  std::string bytes;
  for (size_t i = 0; i < ages.size(); ++i) {
    if (ages[i] <= oldest) bytes += all.bytes().substr(i * layout.point_step, layout.point_step);
  }
  layout.num_points = bytes.size() / layout.point_step;
  return OrDie(PointCloud::Create(std::move(layout), std::move(bytes)));
}

}  // namespace voxserve::bench
