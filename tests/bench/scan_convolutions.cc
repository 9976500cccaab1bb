#include "tests/bench/scan_convolutions.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <utility>

#include "engine/graph/cuda_executor.h"
#include "engine/ops/sparse_conv.h"
#include "tests/support/minkunet.h"
#include "tests/support/real_scans.h"

namespace voxserve::bench {
namespace {

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::cerr << value.status() << std::endl;
  std::exit(1);
}

}  // namespace

ScanConvolutions::ScanConvolutions(double width) {
  const support::RealScan& scan = support::kSemanticKittiScan;
  const support::NetworkOptions network{
      .width = width, .features = support::FeaturesOf(scan.format), .voxel_size_m = 0.05f};
  const Graph graph = OrDie(support::LoadNetwork(support::MinkUNet(network)));
  const PointCloud cloud = OrDie(support::ReadScan(scan.format, scan.path()));
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

}  // namespace voxserve::bench
