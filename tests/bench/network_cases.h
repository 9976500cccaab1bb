#pragma once

// Large networks on real scans: the cases that network_cuda_bench measures and digest_bench keeps watch over.
//
// Weights are random (only shapes matter for time), scans are real.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/graph.h"
#include "engine/model/model_config.h"
#include "tests/support/real_scans.h"

namespace voxserve::bench {

// "fp16", "fp32", "tf32" or "bf16".
const char* NameOf(ModelConfig::Precision precision);

// What peers need for the same, in ms: the network alone, its input voxelized and on the device, in fp16 on an H200
// (TorchSparse 2.1, tuned on the very scan). 0: not measured.
struct PeerTimes {
  double torchsparse_pp_ms = 0;  // implicit GEMM and fetch-on-demand
  double mlsys_ms = 0;           // gather-GEMM-scatter, adaptive grouping
};

struct NetworkCase {
  std::string network;  // minkunet or resnet21d
  double width = 1.0;
  support::RealScan scan = support::kSemanticKittiScan;
  float voxel_size_m = 0.05f;
  int batch = 1;  // so many copies of the scan
  ModelConfig::Precision precision = ModelConfig::Precision::kFloat16;
  PeerTimes peers = {};

  std::string name() const;
};

// MinkUNet on a GPU: every width, scan and batch in float16, one of them in every precision.
std::vector<NetworkCase> MinkUNetCudaCases();

absl::StatusOr<Graph> LoadNetwork(const NetworkCase& network_case);

}  // namespace voxserve::bench
