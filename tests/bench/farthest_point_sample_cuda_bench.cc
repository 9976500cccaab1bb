// Times farthest point sampling on a GPU. In the same run it times the kernel of other projects, which uses one block,
// and, with --layouts, other layouts of our kernel over the device. Every result is compared with the CPU's, which the
// CPU's own tests compare with the serial algorithm; the program fails if one differs. Tables are Markdown.
//
//   farthest_point_sample_cuda_bench [--layouts]

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/event_timer.h"
#include "tests/bench/plain_farthest_point_sample.h"
#include "tests/kernels/points/farthest/farthest_point_testing.h"
#include "tests/support/paths.h"

namespace voxserve::bench {
namespace {

using kernels::cuda::FarthestPointLayout;
using kernels::fixtures::DeviceClouds;
using kernels::fixtures::PointClouds;
using support::Device;
using support::DeviceArray;
using support::ExpectCudaSuccess;

constexpr int kNumRuns = 11;
constexpr int kNumPlainRuns = 3;

struct Case {
  std::string name;
  PointClouds clouds;
  std::vector<int32_t> expected;
};

Case CaseOf(std::string name, PointClouds clouds, kernels::ThreadPool& pool) {
  DeviceClouds cpu(Device::kCpu, clouds);
  cpu.RunOnCpu(pool);
  return {.name = std::move(name), .clouds = std::move(clouds), .expected = cpu.ToHost().selected};
}

// Makes a batch of samples from a scan. Each has num_points of the scan's points.
Case CaseOf(const std::vector<float>& scan, int batch, int64_t num_points, int64_t num_selected,
            kernels::ThreadPool& pool) {
  PointClouds clouds{.pitch = 4};
  for (int sample = 0; sample < batch; ++sample) {
    clouds.Add(kernels::fixtures::Thinned(scan, num_points, sample), num_selected);
  }
  return CaseOf(std::to_string(batch) + " x " + std::to_string(num_points) + " to " + std::to_string(num_selected),
                std::move(clouds), pool);
}

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

GpuTimes TimeOurs(DeviceClouds& clouds, const FarthestPointLayout& layout) {
  return TimeOnGpu(
      support::TestStream(), /*num_steps=*/0, [&](const MarkStep&) { ExpectCudaSuccess(clouds.Launch(layout)); },
      kNumRuns);
}

GpuTimes TimePlain(const Case& c) {
  const PointClouds& clouds = c.clouds;
  std::vector<float> points;
  for (int64_t row = 0; row < clouds.point_begin.back(); ++row) {
    const auto first = clouds.rows.begin() + row * clouds.pitch;
    points.insert(points.end(), first, first + 3);
  }
  const DeviceArray<float> device_points(Device::kCuda, points);
  const DeviceArray<float> distances(Device::kCuda, points.size() / 3);
  const DeviceArray<int32_t> selected(Device::kCuda, c.expected.size());
  const PlainFarthestPointSampleParams params{.num_samples = clouds.num_samples(),
                                              .num_points = static_cast<int32_t>(clouds.NumPoints(0)),
                                              .num_selected = static_cast<int32_t>(clouds.NumSelected(0)),
                                              .points = device_points.data(),
                                              .distances = distances.data(),
                                              .selected = selected.data()};
  const GpuTimes times = TimeOnGpu(
      support::TestStream(), /*num_steps=*/0,
      [&](const MarkStep&) { ExpectCudaSuccess(PlainFarthestPointSample(params, support::TestStream())); },
      kNumPlainRuns);
  if (selected.ToHost() != c.expected) Fail("the one-block kernel's points are not the CPU's: " + c.name);
  return times;
}

void PrintComparison(const std::vector<Case>& cases) {
  std::puts("\n| case | one-block kernel ms | ours ms | with launches ms | us an iteration | times faster |");
  std::puts("|---|--:|--:|--:|--:|--:|");
  for (const Case& c : cases) {
    DeviceClouds clouds(Device::kCuda, c.clouds);
    const GpuTimes ours = TimeOurs(clouds, {});
    if (clouds.ToHost().selected != c.expected) Fail("our points are not the CPU's: " + c.name);
    const GpuTimes plain = TimePlain(c);
    std::printf("| %s | %.2f | %.3f | %.3f | %.3f | %.1f |\n", c.name.c_str(), plain.back_to_back_ms,
                ours.back_to_back_ms, ours.as_launched_ms,
                1e3 * ours.back_to_back_ms / static_cast<double>(c.clouds.NumSelected(0)),
                plain.back_to_back_ms / ours.back_to_back_ms);
    std::fflush(stdout);
  }
}

void PrintLayouts(const Case& c) {
  int32_t most_blocks = 1;
  ExpectCudaSuccess(kernels::cuda::MaxFarthestPointBlocks(&most_blocks));
  std::printf("\n### Layouts: %s, ms\n\n| blocks | 4 warps | 8 | 16 | 32 |\n", c.name.c_str());
  std::puts("|--:|--:|--:|--:|--:|");
  DeviceClouds clouds(Device::kCuda, c.clouds);
  for (int32_t blocks = 1; blocks <= most_blocks; blocks *= 2) {
    std::printf("| %d |", blocks);
    for (const int32_t warps : {4, 8, 16, 32}) {
      const double ms = TimeOurs(clouds, {.num_blocks = blocks, .num_warps = warps}).back_to_back_ms;
      if (clouds.ToHost().selected != c.expected) Fail("our points are not the CPU's in some layout: " + c.name);
      std::printf(" %.3f |", ms);
    }
    std::puts("");
    std::fflush(stdout);
  }
}

int Main(int argc, char** argv) {
  if (!support::HasDevice(Device::kCuda)) {
    std::puts("skipped: no CUDA device here");
    return 0;
  }
  const bool shows_layouts = argc == 2 && std::string(argv[1]) == "--layouts";
  if (argc > 1 && !shows_layouts) Fail("farthest_point_sample_cuda_bench [--layouts]");
  std::string name = "semantickitti-00/000000";
  std::vector<float> scan = kernels::fixtures::ReadKittiScan(support::SharedData() + "/" + name + ".bin");
  if (scan.empty()) {
    name = "pandaset_070";
    scan = kernels::fixtures::ReadKittiScan(support::SourceDir() + "/deploy/scans/" + name + ".bin");
  }
  const auto num_points = static_cast<int64_t>(scan.size() / 4);
  if (num_points < 20'000) Fail("no scan of 20,000 points or more here");
  cudaDeviceProp properties;
  ExpectCudaSuccess(cudaGetDeviceProperties(&properties, 0));
  std::printf("#### Farthest point sampling on %s, %s: medians of %d (one-block kernel: %d)\n", properties.name,
              name.c_str(), kNumRuns, kNumPlainRuns);
  std::puts("\nThe GPU's own time, sort included; beside it ours with the host's launches, from an idle stream.");

  kernels::ThreadPool pool(kernels::ThreadPool::AvailableCpus());
  if (shows_layouts) {
    for (const Case& c : {CaseOf(scan, 1, num_points, 4096, pool), CaseOf(scan, 6, 10'000, 10'000, pool),
                          CaseOf(scan, 8, num_points, 4096, pool), CaseOf(scan, 1, 34'000, 4096, pool)}) {
      PrintLayouts(c);
    }
    return 0;
  }
  PointClouds lattice{.pitch = 4};
  lattice.Add(kernels::fixtures::Lattice(50, lattice.pitch), 4096);
  PrintComparison({CaseOf(scan, 1, 10'000, 1000, pool), CaseOf(scan, 6, 10'000, 1000, pool),
                   CaseOf(scan, 6, 10'000, 10'000, pool), CaseOf(scan, 1, num_points, 4096, pool),
                   CaseOf(scan, 1, num_points, 16'384, pool), CaseOf(scan, 8, num_points, 4096, pool),
                   CaseOf("a lattice of 50 x 50 x 50 to 4096", std::move(lattice), pool)});
  return 0;
}

}  // namespace
}  // namespace voxserve::bench

int main(int argc, char** argv) { return voxserve::bench::Main(argc, argv); }
