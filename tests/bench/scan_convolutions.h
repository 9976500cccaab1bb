#pragma once

// ScanConvolutions runs MinkUNet on a real scan and lists its convolutions, for benchmarks of single kernels. Each has
// its rulebook on the GPU: which input rows each output row reads. Errors end the program.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/compiler/program.h"
#include "engine/ops/conv/dataflow.h"
#include "engine/tensor/point_cloud.h"
#include "kernels/conv/gather_scatter.h"
#include "tests/engine/device_runner.h"
#include "tests/support/real_scans.h"

namespace voxserve::bench {

// All convolutions of the network that share one rulebook and have the same numbers of channels.
struct ScanConvolution {
  int count = 0;  // the number of these convolutions in the network
  kernels::PairTablesView tables;
  ProgramConv layer;  // the first of them

  int64_t num_pairs() const { return tables.offset_begin[tables.num_offsets]; }
  // Returns true if the kernel has more than one offset, and one of them pairs each row with itself.
  bool is_submanifold() const { return tables.identity_offset >= 0 && tables.num_offsets > 1; }
};

class ScanConvolutions {
 public:
  // The network reads the fields x, y, z and intensity, which clouds of all ScanFormats have.
  ScanConvolutions(double width, const PointCloud& cloud, float voxel_size_m);
  explicit ScanConvolutions(double width, const support::RealScan& scan = support::kSemanticKittiScan,
                            float voxel_size_m = 0.05f);
  ~ScanConvolutions();

  // Returns the convolutions in the network's order. Their tables are valid as long as this object.
  const std::vector<ScanConvolution>& all() const { return all_; }
  // Returns one convolution of 3 x 3 x 3 cells that keeps the sites, for each level.
  std::vector<const ScanConvolution*> OfLevels() const;
  // Returns what a dataflow's Launch needs except scratch memory: the scan's rulebooks in all forms that a dataflow
  // reads, and a stream. It is valid as long as this object.
  StepContext context();

 private:
  std::unique_ptr<DeviceRunner> runner_;
  Program program_;
  std::vector<ScanConvolution> all_;
  GroupingCache groupings_;
};

struct BenchScan {
  support::RealScan scan;
  float voxel_size_m;
};

// Returns the scan that a benchmark's only argument names (tests/support/real_scans.h), without one that of
// SemanticKITTI. Voxels are 5 cm there and 10 cm elsewhere. Ends the program with its usage and 2 if the arguments are
// wrong, and with 0 if there is no GPU.
BenchScan ScanOfArguments(int argc, char** argv);

// Returns only the points of the newest num_sweeps sweeps of a scan that has several sweeps. The field dt, a sweep's
// age in seconds, tells sweeps apart.
PointCloud NewestSweeps(const support::RealScan& scan, int num_sweeps);

}  // namespace voxserve::bench
