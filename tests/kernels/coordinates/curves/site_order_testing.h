#pragma once

// Levels of random sites in the memory of a device, and orders of them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/curves/site_order.h"
#include "tests/kernels/coordinates/device_sites.h"

namespace voxserve::kernels {

using SampleSites = std::vector<std::vector<Axes>>;  // by sample: its sites

// Returns random unique sites. counts and extents: of each sample.
inline SampleSites RandomSites(const std::vector<size_t>& counts, const std::vector<Axes>& extents, uint32_t seed) {
  std::mt19937 random(seed);
  SampleSites sites;
  for (size_t sample = 0; sample < counts.size(); ++sample) {
    std::set<Axes> unique;
    while (unique.size() < counts[sample]) {
      Axes site = {0, 0, 0, 0};
      for (size_t axis = 0; axis < 3; ++axis) {
        site[axis] = static_cast<int32_t>(random() % static_cast<uint32_t>(extents[sample][axis]));
      }
      unique.insert(site);
    }
    sites.emplace_back(unique.begin(), unique.end());
  }
  return sites;
}

// A level in the memory of a device. On the GPU its capacity exceeds its number of sites.
struct DeviceLevel {
  DeviceLevel(support::Device d, const SampleSites& sites, const Axes& extent) {
    std::vector<uint64_t> values;
    const CoordinateKey layout(3);
    for (size_t sample = 0; sample < sites.size(); ++sample) {
      for (const Axes& site : sites[sample]) values.push_back(layout.Pack(static_cast<int32_t>(sample), site));
    }
    host = d == support::Device::kCpu ? fixtures::Sorted(values) : fixtures::ToMorton(values, 3);
    const size_t slack = d == support::Device::kCpu ? 0 : static_cast<size_t>(fixtures::kSlack);
    std::vector<uint64_t> padded = host;
    padded.resize(host.size() + slack, host.empty() ? 77 : host.front());
    keys = std::make_unique<support::DeviceArray<uint64_t>>(d, padded);
    count = std::make_unique<support::DeviceArray<int64_t>>(d, std::vector<int64_t>{static_cast<int64_t>(host.size())});
    view = {.keys = keys->data(),
            .num_sites = static_cast<int64_t>(padded.size()),
            .device_num_sites = d == support::Device::kCpu ? nullptr : count->data(),
            .extent = extent};
  }

  std::vector<uint64_t> host;
  std::unique_ptr<support::DeviceArray<uint64_t>> keys;
  std::unique_ptr<support::DeviceArray<int64_t>> count;
  LevelSites view;
};

// Returns the places of each order.
inline std::vector<std::vector<int32_t>> RunSiteOrders(support::Device device, const std::vector<SiteOrder>& orders,
                                                       int32_t num_samples) {
  size_t size = 0;
  for (const SiteOrder& order : orders) size += static_cast<size_t>(order.sites.num_sites);
  const support::DeviceArray<int32_t> out(device, size);
  if (device == support::Device::kCpu) {
    ThreadPool pool(3);
    cpu::SiteOrders(orders, num_samples, out.data(), pool);
  } else if constexpr (kHasCuda) {
    const size_t bytes = cuda::SiteOrdersWorkspaceBytes(orders, num_samples);
    const support::DeviceArray<uint8_t> workspace(device, std::vector<uint8_t>(bytes + 64, 0xA5));
    support::ExpectCudaSuccess(
        cuda::SiteOrders(orders, num_samples, out.data(), workspace.data(), support::TestStream()));
    support::Synchronize();
    const std::vector<uint8_t> after = workspace.ToHost();
    EXPECT_TRUE(std::all_of(after.end() - 64, after.end(), [](uint8_t byte) { return byte == 0xA5; }));
  }
  const std::vector<int32_t> places = out.ToHost();
  std::vector<std::vector<int32_t>> result;
  auto begin = places.begin();
  for (const SiteOrder& order : orders) {
    result.emplace_back(begin, begin + order.sites.num_sites);
    begin += order.sites.num_sites;
  }
  return result;
}

}  // namespace voxserve::kernels
