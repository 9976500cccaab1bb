// Prints the numbers of pairs that kernel offsets have on real scans, which are the reason for TorchSparse's adaptive
// grouping (Tang et al., MLSys 2022, Figure 12). The map of an offset is its list of pairs. The CPU counts the pairs;
// nothing is timed. Tables are Markdown.
//
//   map_statistics_bench

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/conv/matmul_grouping.h"
#include "tests/bench/map_workloads.h"

namespace voxserve::bench {
namespace {

// Statistics of a convolution's maps. The map of the identity offset is left out where noted, because its product needs
// no gathered rows.
struct MapStatistics {
  int64_t num_pairs = 0;        // with the identity's
  std::vector<int64_t> sizes;   // of each map, ascending, without the identity's
  bool is_mirrored = true;      // offsets k and K - 1 - k have the same size
  double padding_together = 0;  // 1 - sum(n) / (max(n) * count(n)) for n in `sizes`
  double padding_fixed = 0;     // the share of padding with Grouping::kFixed, which pads each group to its largest map
};

MapStatistics StatisticsOf(const NetworkMap& map, const std::vector<int64_t>& offset_begin) {
  const int32_t num_offsets = map.geometry.NumOffsets();
  const int32_t identity = map.is_symmetric() ? num_offsets / 2 : -1;
  const auto size = [&](int32_t k) {
    return offset_begin[static_cast<size_t>(k) + 1] - offset_begin[static_cast<size_t>(k)];
  };
  MapStatistics statistics{.num_pairs = offset_begin.back()};
  int64_t sum = 0;
  for (int32_t k = 0; k < num_offsets; ++k) {
    statistics.is_mirrored &= size(k) == size(num_offsets - 1 - k);
    if (k == identity) continue;
    statistics.sizes.push_back(size(k));
    sum += size(k);
  }
  std::sort(statistics.sizes.begin(), statistics.sizes.end());
  if (sum == 0) return statistics;
  const auto padding = [&](int64_t padded_rows) {
    return 1 - static_cast<double>(sum) / static_cast<double>(padded_rows);
  };
  statistics.padding_together = padding(statistics.sizes.back() * static_cast<int64_t>(statistics.sizes.size()));
  const kernels::MatmulGrouping fixed = kernels::GroupMatmuls({.num_offsets = num_offsets,
                                                               .offset_begin = offset_begin.data(),
                                                               .is_symmetric = map.is_symmetric(),
                                                               .identity_offset = identity},
                                                              {.grouping = kernels::Grouping::kFixed});
  statistics.padding_fixed = padding(fixed.num_gathered_rows);
  return statistics;
}

// Returns the count and its share of the sites, for example "8123 (12.4%)".
std::string WithShare(int64_t count, int64_t sites) {
  if (sites == 0) return absl::StrFormat("%d", count);
  return absl::StrFormat("%d (%.1f%%)", count, 100.0 * static_cast<double>(count) / static_cast<double>(sites));
}

void Print(const MapWorkload& workload, const CpuMaps& maps) {
  std::printf("\n#### %s\n\n", workload.name.c_str());
  std::puts(
      "| level | map | sites in | sites out | pairs | pairs a site | smallest | median | largest | mirrored | "
      "padding, all together | padding, FIXED |");
  std::puts("|--:|---|--:|--:|--:|--:|--:|--:|--:|---|--:|--:|");
  for (size_t i = 0; i < workload.maps.size(); ++i) {
    const NetworkMap& map = workload.maps[i];
    const MapStatistics statistics = StatisticsOf(map, maps.offset_begin[i]);
    const int64_t num_out = maps.num_sites(map.out_level);
    const std::vector<int64_t>& sizes = statistics.sizes;
    const char* const mirrored = !map.is_symmetric() ? "" : statistics.is_mirrored ? "yes" : "NO";
    std::puts(
        absl::StrFormat("| %d | %s | %d | %d | %d | %.2f | %s | %s | %s | %s | %.1f%% | %.1f%% |", map.in_level,
                        map.name(), maps.num_sites(map.in_level), num_out, statistics.num_pairs,
                        static_cast<double>(statistics.num_pairs) / static_cast<double>(std::max<int64_t>(num_out, 1)),
                        WithShare(sizes.front(), num_out), WithShare(sizes[sizes.size() / 2], num_out),
                        WithShare(sizes.back(), num_out), mirrored, 100 * statistics.padding_together,
                        100 * statistics.padding_fixed)
            .c_str());
  }
}

int Main() {
  std::puts(
      "#### Map sizes\n\nPairs of an offset, and their share of the output sites; the identity of submanifold maps "
      "left out there and in padding.");
  kernels::ThreadPool pool(kernels::ThreadPool::AvailableCpus());
  for (const MapWorkload& workload :
       {MinkUNetMaps(support::kSemanticKittiScan, 0.05F), MinkUNetMaps(support::kNuScenesSweeps, 0.1F),
        MinkUNetMaps(support::kWaymoFrame, 0.1F), CenterPointMaps(support::kWaymoFrame)}) {
    const absl::StatusOr<CpuMaps> maps = MapOnCpu(workload, pool);
    if (!maps.ok()) {
      std::cerr << maps.status() << std::endl;
      return 1;
    }
    Print(workload, *maps);
  }
  return 0;
}

}  // namespace
}  // namespace voxserve::bench

int main() { return voxserve::bench::Main(); }
