#include "tests/bench/network_cases.h"

#include "absl/strings/str_format.h"
#include "tests/support/minkunet.h"

namespace voxserve::bench {

const char* NameOf(ModelConfig::Precision precision) {
  constexpr const char* kPrecisions[] = {"fp16", "fp32", "tf32", "bf16", "int8"};
  return kPrecisions[static_cast<int>(precision)];
}

std::string NetworkCase::name() const {
  return absl::StrFormat("%s %.1fx, %s, %g cm, batch %d, %s", network, width, scan.name, voxel_size_m * 100, batch,
                         NameOf(precision));
}

std::vector<NetworkCase> CudaNetworkCases() {
  using Precision = ModelConfig::Precision;
  const auto& kitti = support::kSemanticKittiScan;
  const auto& sweeps = support::kNuScenesSweeps;
  const auto& waymo = support::kWaymoFrame;
  return {
      {"minkunet", 1.0, kitti, 0.05f, 1, Precision::kFloat16, {9.4, 18.5}},
      {"minkunet", 1.0, kitti, 0.05f, 4, Precision::kFloat16, {25.0, 0}},
      {"minkunet", 0.5, kitti, 0.05f, 1, Precision::kFloat16, {9.4, 25.7}},
      {"minkunet", 0.5, kitti, 0.05f, 4, Precision::kFloat16, {}},
      {"minkunet", 1.0, sweeps, 0.1f, 1, Precision::kFloat16, {}},
      {"minkunet", 1.0, sweeps, 0.1f, 4, Precision::kFloat16, {}},
      {"minkunet", 0.5, sweeps, 0.1f, 1, Precision::kFloat16, {}},
      {"minkunet", 0.5, sweeps, 0.1f, 4, Precision::kFloat16, {}},
      {"minkunet", 1.0, waymo, 0.1f, 1, Precision::kFloat16, {10.5, 18.2}},
      {"minkunet", 1.0, waymo, 0.1f, 4, Precision::kFloat16, {}},
      {"minkunet", 0.5, waymo, 0.1f, 1, Precision::kFloat16, {}},
      {"minkunet", 0.5, waymo, 0.1f, 4, Precision::kFloat16, {}},
      {"minkunet", 1.0, kitti, 0.05f, 1, Precision::kBfloat16, {}},
      {"minkunet", 1.0, kitti, 0.05f, 1, Precision::kTfloat32, {}},
      {"minkunet", 1.0, kitti, 0.05f, 1, Precision::kFloat32, {}},
      {"resnet21d", 1.0, kitti, 0.1f, 1, Precision::kFloat16, {4.0, 12.1}},
      {"resnet21d", 1.0, sweeps, 0.1f, 1, Precision::kFloat16, {}},
      {"resnet21d", 1.0, waymo, 0.1f, 1, Precision::kFloat16, {}},
  };
}

absl::StatusOr<Graph> LoadNetwork(const NetworkCase& network_case) {
  const support::NetworkOptions options{.width = network_case.width,
                                        .features = support::FeaturesOf(network_case.scan.format),
                                        .voxel_size_m = network_case.voxel_size_m};
  return support::LoadNetwork(network_case.network == "resnet21d" ? support::SparseResNet21D(options)
                                                                  : support::MinkUNet(options));
}

}  // namespace voxserve::bench
