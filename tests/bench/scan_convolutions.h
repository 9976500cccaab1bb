#pragma once

// Runs MinkUNet on a real scan and gives its convolutions, with their rulebooks on the GPU, to benchmarks of single
// kernels. Errors end the program.

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

// Convolutions with one rulebook and the same channels.
struct ScanConvolution {
  std::string name;  // the name of the first of them
  int count = 0;     // how many of them the network has
  int rulebook = 0;  // convolutions with equal numbers share one rulebook
  kernels::PairTablesView tables;
  ConvShape shape;
  std::vector<ServedDataflow> served;

  int64_t num_pairs() const { return tables.offset_begin[tables.num_offsets]; }
  // A convolution with more than one offset is submanifold if it has the identity.
  bool is_submanifold() const { return tables.identity_offset >= 0 && tables.num_offsets > 1; }
};

class ScanConvolutions {
 public:
  // The network takes x, y, z and intensity, which clouds of all formats have.
  ScanConvolutions(double width, const PointCloud& cloud, float voxel_size_m);
  explicit ScanConvolutions(double width, const support::RealScan& scan = support::kSemanticKittiScan,
                            float voxel_size_m = 0.05f);
  ~ScanConvolutions();

  // Lists them in the network's order. The tables are valid as long as this object.
  const std::vector<ScanConvolution>& all() const { return all_; }
  // Returns what a dataflow's Launch needs except scratch memory: the scan's rulebooks in all forms that a dataflow
  // reads, and a stream. It is valid as long as this object.
  StepContext context();

 private:
  std::unique_ptr<DeviceRunner> runner_;
  Program program_;
  std::vector<ScanConvolution> all_;
  GroupingCache groupings_;
};

// Returns only the points of the newest sweeps of a scan with several. The field dt, a sweep's age, tells sweeps apart.
PointCloud NewestSweeps(const support::RealScan& scan, int num_sweeps);

}  // namespace voxserve::bench
