#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/curves/site_order.h"
#include "kernels/core/chunks.h"
#include "kernels/core/radix_sort.h"
#include "kernels/core/scratch.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kSitesAChunk = 4096;
constexpr int32_t kOrderDimension = 3;

struct PlacedSite {
  uint64_t code;
  int32_t sample;
  int32_t row;
};

// Returns one more than the largest coordinate of each axis, at least 1.
Axes ExtentOf(const LevelSites& sites) {
  const CoordinateKey layout(kOrderDimension);
  Axes extent = {1, 1, 1, 1};
  for (int64_t row = 0; row < sites.num_sites; ++row) {
    for (int axis = 0; axis < kOrderDimension; ++axis) {
      const auto at = static_cast<size_t>(axis);
      extent[at] = std::max(extent[at], layout.Coordinate(sites.keys[row], axis) + 1);
    }
  }
  return extent;
}

// Lists the groups of the windows of sites that are sorted by sample and code.
void ListSpreadGroups(const SiteOrder& order, const PlacedSite* sorted) {
  const uint64_t volume = WindowVolume(*order.windows);
  const auto num_sites = static_cast<int32_t>(order.sites.num_sites);
  int32_t count = 0;
  for (int32_t begin = 0, end = 0; begin < num_sites; begin = end) {
    const PlacedSite& first = sorted[begin];
    while (end < num_sites && sorted[end].sample == first.sample && sorted[end].code / volume == first.code / volume) {
      ++end;
    }
    for (int32_t j = 0; j < NumSpreadGroups(end - begin, order.spread_size); ++j) {
      order.spread_groups[count++] = SpreadGroupAt(begin, end - begin, order.spread_size, j);
    }
  }
  *order.num_spread_groups = count;
}

// Returns the largest coordinate of each sample, 0 of a sample without sites.
std::vector<uint32_t> LargestCoordinates(const LevelSites& sites, int32_t num_samples) {
  const CoordinateKey layout(kOrderDimension);
  std::vector<uint32_t> largest(static_cast<size_t>(num_samples));
  for (int64_t row = 0; row < sites.num_sites; ++row) {
    uint32_t& of_sample = largest[static_cast<size_t>(layout.Sample(sites.keys[row]))];
    for (int axis = 0; axis < kOrderDimension; ++axis) {
      of_sample = std::max(of_sample, static_cast<uint32_t>(layout.Coordinate(sites.keys[row], axis)));
    }
  }
  return largest;
}

void MakeOrder(const SiteOrder& order, int32_t num_samples, int32_t* row_of_place, ThreadPool& pool,
               std::pmr::memory_resource* memory) {
  const CoordinateKey layout(kOrderDimension);
  const int64_t num_sites = order.sites.num_sites;
  std::vector<int> depths(static_cast<size_t>(num_samples));
  const Axes num_windows = order.windows ? NumWindows(*order.windows, ExtentOf(order.sites)) : Axes();
  if (!order.windows && IsHilbert(order.curve)) {
    const std::vector<uint32_t> largest = LargestCoordinates(order.depth_sites, num_samples);
    std::transform(largest.begin(), largest.end(), depths.begin(),
                   [&](uint32_t of_sample) { return CurveDepth(of_sample, order.halvings); });
  }

  ScratchVector<PlacedSite> sites(memory), scratch(memory);
  sites.resize(static_cast<size_t>(num_sites));
  scratch.resize(static_cast<size_t>(num_sites));
  const Chunks chunks(num_sites, kSitesAChunk, pool);
  std::vector<uint64_t> code_bits(static_cast<size_t>(chunks.num_chunks()));  // all bits that a chunk's codes have set
  chunks.ForEach(pool, [&](int64_t chunk, int64_t begin, int64_t end) {
    uint64_t bits = 0;
    for (int64_t row = begin; row < end; ++row) {
      const uint64_t key = order.sites.keys[row];
      const int32_t sample = layout.Sample(key);
      const Axes site = layout.Unpack(key);
      const uint64_t code = order.windows ? WindowCode(*order.windows, num_windows, site)
                                          : CurveCode(order.curve, site, depths[static_cast<size_t>(sample)]);
      bits |= code;
      sites[static_cast<size_t>(row)] = {code, sample, static_cast<int32_t>(row)};
    }
    code_bits[static_cast<size_t>(chunk)] = bits;
  });
  const int sample_shift = static_cast<int>(
      std::bit_width(std::accumulate(code_bits.begin(), code_bits.end(), uint64_t{0}, std::bit_or<>())));
  const int num_bits = sample_shift + static_cast<int>(std::bit_width(static_cast<uint32_t>(num_samples) - 1));
  const PlacedSite* const sorted =
      RadixSort(sites.data(), scratch.data(), num_sites, num_bits, pool,
                [&](const PlacedSite& site) { return static_cast<uint64_t>(site.sample) << sample_shift | site.code; });
  chunks.ForEach(pool, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t place = begin; place < end; ++place) row_of_place[place] = sorted[place].row;
  });
  if (order.spread_size > 0) ListSpreadGroups(order, sorted);
}

}  // namespace

void SiteOrders(std::span<const SiteOrder> orders, int32_t num_samples, int32_t* row_of_place, ThreadPool& pool,
                std::pmr::memory_resource* memory) {
  for (const SiteOrder& order : orders) {
    if (order.spread_size > 0) *order.num_spread_groups = 0;
    if (order.sites.num_sites > 0) MakeOrder(order, num_samples, row_of_place, pool, memory);
    row_of_place += order.sites.num_sites;
  }
}

}  // namespace voxserve::kernels::cpu
