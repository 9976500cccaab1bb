// Times the CPU's farthest point sampling, on as many threads as the process may use, and the serial algorithm in the
// same run. Fails if the selected points differ. The table is Markdown.
//
//   farthest_point_sample_bench

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "tests/kernels/points/farthest/farthest_point_testing.h"
#include "tests/support/paths.h"

namespace voxserve::bench {
namespace {

using kernels::fixtures::DeviceClouds;
using kernels::fixtures::PointClouds;
using kernels::fixtures::Selection;

constexpr int kNumRuns = 5;

double BestMs(int num_runs, const std::function<void()>& work) {
  double best = 0;
  for (int run = 0; run < num_runs; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - begin;
    best = run == 0 ? ms.count() : std::min(best, ms.count());
  }
  return best;
}

// Returns false if the results differ.
bool Compare(const std::string& name, const PointClouds& clouds, kernels::ThreadPool& pool) {
  Selection expected;
  const double serial_ms = BestMs(2, [&] { expected = SelectSerially(clouds); });
  DeviceClouds device(support::Device::kCpu, clouds);
  const double ms = BestMs(kNumRuns, [&] { device.RunOnCpu(pool); });
  std::printf("| %s | %.1f | %.2f | %.1f |\n", name.c_str(), serial_ms, ms, serial_ms / ms);
  std::fflush(stdout);
  const Selection selection = device.ToHost();
  return selection.selected == expected.selected && selection.distances == expected.distances;
}

int Main() {
  kernels::ThreadPool pool(kernels::ThreadPool::AvailableCpus());
  std::string name = "semantickitti-00/000000";
  std::vector<float> scan = kernels::fixtures::ReadKittiScan(support::SharedData() + "/" + name + ".bin");
  if (scan.empty()) {
    name = "pandaset_070";
    scan = kernels::fixtures::ReadKittiScan(support::SourceDir() + "/deploy/scans/" + name + ".bin");
  }
  const auto num_points = static_cast<int64_t>(scan.size() / 4);
  if (num_points < 20'000) {
    std::fprintf(stderr, "no scan of 20,000 points or more here\n");
    return 1;
  }
  std::printf("#### Farthest point sampling on %d threads, %s; best of %d\n\n", pool.num_threads(), name.c_str(),
              kNumRuns);
  std::puts("| case | serial ms | ours ms | times faster |\n|---|--:|--:|--:|");
  bool is_same = true;
  const auto label = [](int64_t batch, int64_t from, int64_t to) {
    return std::to_string(batch) + " x " + std::to_string(from) + " to " + std::to_string(to);
  };
  for (const int64_t num_selected : {int64_t{1024}, int64_t{4096}, int64_t{16384}}) {
    PointClouds clouds{.pitch = 4};
    clouds.Add(scan, num_selected);
    is_same &= Compare(label(1, num_points, num_selected), clouds, pool);
  }
  for (const int64_t num_selected : {int64_t{1000}, int64_t{10'000}}) {
    PointClouds clouds{.pitch = 4};
    for (int64_t first = 0; first < 6; ++first)
      clouds.Add(kernels::fixtures::Thinned(scan, 10'000, first), num_selected);
    is_same &= Compare(label(6, 10'000, num_selected), clouds, pool);
  }
  PointClouds lattice;
  lattice.Add(kernels::fixtures::Lattice(50, 3), 4096);
  is_same &= Compare("a lattice of 50 x 50 x 50 to 4096", lattice, pool);
  if (!is_same) std::fprintf(stderr, "the selected points are not the serial algorithm's\n");
  return is_same ? 0 : 1;
}

}  // namespace
}  // namespace voxserve::bench

int main() { return voxserve::bench::Main(); }
