#pragma once

// Lists large networks on real scans: network_cuda_bench measures these cases, and digest_bench hashes their answers.
// Weights are random, since only shapes matter for time.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/graph.h"
#include "engine/model/model_config.h"
#include "tests/support/real_scans.h"

namespace voxserve::bench {

// Returns "fp16", "fp32", "tf32", "bf16" or "int8".
const char* NameOf(ModelConfig::Precision precision);

// The times in ms of TorchSparse 2.1 for the same case, or 0 if not measured. They are times of the network alone, with
// its input voxelized and on the device, in fp16 on an H200, tuned on the same scan.
struct PeerTimes {
  double torchsparse_pp_ms = 0;  // TorchSparse++: implicit GEMM and fetch-on-demand
  double mlsys_ms = 0;           // as in the MLSys 2022 paper: gather-GEMM-scatter with adaptive grouping
};

struct NetworkCase {
  std::string network;  // minkunet or resnet21d
  double width = 1.0;
  support::RealScan scan = support::kSemanticKittiScan;
  float voxel_size_m = 0.05f;
  int batch = 1;  // number of copies of the scan
  ModelConfig::Precision precision = ModelConfig::Precision::kFloat16;
  PeerTimes peers = {};

  std::string name() const;
};

// Returns the cases for a GPU: MinkUNet with every width, scan and batch in float16, one of these in every precision,
// and SparseResNet21D on every scan.
std::vector<NetworkCase> CudaNetworkCases();

absl::StatusOr<Graph> LoadNetwork(const NetworkCase& network_case);

}  // namespace voxserve::bench
