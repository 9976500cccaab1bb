// Times hash tables of coordinates that were chosen to collide: once with a seed that their sender knows, and once with
// the secret seed of a process. Random coordinates are timed for comparison. The rows of a GPU are printed only if
// there is one.
//
//   chosen_coordinates_bench
//
// Each time is that of building the table of 100,000 sites and of searching the neighbours of all sites in a kernel of
// 3 x 3 x 3 cells. The program exits with 1 if a number of neighbours is wrong. The table is Markdown.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

#include "kernels/coordinates/coordinate_table.h"
#include "kernels/coordinates/morton_key.h"
#include "kernels/coordinates/neighbour_search.h"
#include "tests/bench/percentile.h"
#include "tests/support/chosen_keys.h"
#include "tests/support/test_device.h"

namespace voxserve::bench {
namespace {

using kernels::CoordinateKey;
using kernels::HashSeed;
using support::Device;
using support::DeviceArray;
using support::ExpectCudaSuccess;
using support::TestStream;

constexpr size_t kNumSites = 100'000;
constexpr int kLog2Slots = 18;  // of both devices: the power of two above 2 * kNumSites
constexpr int32_t kNumCells = 27;

// Returns the number of neighbours found, counting each site as its own neighbour, and sets *ms to the time.
int64_t NeighboursOnCpu(const std::vector<uint64_t>& keys, const HashSeed& seed, double* ms) {
  static kernels::ThreadPool pool(1);
  const CoordinateKey layout(3);
  const auto start = std::chrono::steady_clock::now();
  kernels::cpu::CoordinateTable table;
  table.Build({.keys = keys.data(), .num_keys = static_cast<int64_t>(keys.size()), .seed = seed}, pool);
  int64_t num_found = 0;
  for (const uint64_t key : keys) {
    for (int32_t cell = 0; cell < kNumCells; ++cell) {
      const uint64_t offset = layout.Translation({cell / 9 - 1, cell / 3 % 3 - 1, cell % 3 - 1, 0});
      num_found += table.Find(key + offset) >= 0 ? 1 : 0;
    }
  }
  *ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return num_found;
}

int64_t NeighboursOnGpu(const std::vector<uint64_t>& keys, const HashSeed& seed, double* ms) {
  const auto num_keys = static_cast<int64_t>(keys.size());
  const DeviceArray<uint64_t> device_keys(Device::kCuda, keys);
  DeviceArray<int32_t> neighbours(Device::kCuda, keys.size() * kNumCells);
  kernels::cuda::BrickTableParams build{.keys = device_keys.data(), .capacity = num_keys, .seed = seed};
  DeviceArray<char> memory(Device::kCuda, kernels::cuda::BrickTableBytes(build));
  build.memory = memory.data();
  kernels::NeighbourSearchParams search{
      .out_keys = device_keys.data(), .out_capacity = num_keys, .neighbours = neighbours.data()};
  search.geometry.kernel_size = {3, 3, 3, 1};
  search.geometry.padding = {1, 1, 1, 0};
  support::Synchronize();
  const auto start = std::chrono::steady_clock::now();
  ExpectCudaSuccess(kernels::cuda::BuildBrickTables({&build, 1}, {&search.table, 1}, TestStream()));
  ExpectCudaSuccess(kernels::cuda::SearchNeighbours(search, TestStream()));
  support::Synchronize();
  *ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  const std::vector<int32_t> found = neighbours.ToHost();
  return std::count_if(found.begin(), found.end(), [](int32_t row) { return row >= 0; });
}

using Search = std::function<int64_t(const std::vector<uint64_t>&, const HashSeed&, double*)>;

// Returns the median of five searches after one that is not counted. With the known seed, searches are so slow that
// only one is made and counted.
double MedianMs(const std::vector<uint64_t>& keys, const HashSeed& seed, int64_t num_expected, const Search& search) {
  const int num_runs = seed.first == support::kKnownSeed.first ? 1 : 6;
  std::vector<double> all_ms;
  for (int run = 0; run < num_runs; ++run) {
    double ms = 0;
    const int64_t num_found = search(keys, seed, &ms);
    if (num_found != num_expected) {
      std::fprintf(stderr, "found %lld neighbours, expected %lld\n", static_cast<long long>(num_found),
                   static_cast<long long>(num_expected));
      std::exit(1);
    }
    if (run > 0 || num_runs == 1) all_ms.push_back(ms);
  }
  return Percentile(all_ms, 0.5);
}

// Returns ascending keys of random sites in a cube so wide that few sites have neighbours, as few as the chosen ones.
template <typename Pack>
std::vector<uint64_t> RandomKeys(Pack pack) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int32_t> coordinate(-100'000, 100'000);
  std::vector<uint64_t> keys;
  while (keys.size() < kNumSites) {
    keys.push_back(pack({coordinate(random), coordinate(random), coordinate(random), 0}));
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

void PrintRow(const char* device, const std::vector<uint64_t>& chosen, const std::vector<uint64_t>& random,
              const Search& search) {
  double unused_ms = 0;
  const HashSeed secret = HashSeed::OfProcess();
  const int64_t num_chosen = search(chosen, secret, &unused_ms), num_random = search(random, secret, &unused_ms);
  const double random_ms = MedianMs(random, secret, num_random, search);
  const double secret_ms = MedianMs(chosen, secret, num_chosen, search);
  const double known_ms = MedianMs(chosen, support::kKnownSeed, num_chosen, search);
  std::printf("| %s | %.2f | %.2f | %.2f | %.2f | %.0f |\n", device, random_ms, secret_ms, known_ms,
              secret_ms / random_ms, known_ms / random_ms);
  std::fflush(stdout);
}

void Run() {
  std::puts(
      "| device | random sites ms | chosen, secret seed ms | chosen, known seed ms | secret / random | known / random "
      "|");
  std::puts("|---|--:|--:|--:|--:|--:|");
  PrintRow("CPU, one thread", support::KeysOfOneSlot(support::kKnownSeed, kNumSites, kLog2Slots),
           RandomKeys([](const kernels::Axes& at) { return CoordinateKey(3).Pack(0, at); }), NeighboursOnCpu);
  if (!support::HasDevice(Device::kCuda)) return;
  PrintRow("GPU", support::MortonKeysOfOneSlot(support::kKnownSeed, kNumSites, kLog2Slots),
           RandomKeys([](const kernels::Axes& at) { return kernels::MortonKey<3>::Pack(0, at); }), NeighboursOnGpu);
}

}  // namespace
}  // namespace voxserve::bench

int main() { voxserve::bench::Run(); }
