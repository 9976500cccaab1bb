#pragma once

// Runs networks of conv_network.h through the loader, the compiler and a device, and compares the scores with the rows
// that plain loops compute from the definitions of convolutions and pools (conv_reference.h).

#include <algorithm>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "tests/engine/executor/conv_network.h"
#include "tests/engine/executor/expected_scores.h"

namespace voxserve {

// Returns rows for 10 to 40% of the sites of a box.
inline Rows RandomVoxels(int dimension, int channels, const Place& lowest, const Place& shape, std::mt19937& random) {
  Rows rows;
  const double fill = std::uniform_real_distribution<double>(0.1, 0.4)(random);
  std::uniform_real_distribution<float> unit(-1, 1);
  for (const Place& site :
       BoxDeltas(dimension, shape, {1, 1, 1, 1}, {-lowest[0], -lowest[1], -lowest[2], -lowest[3]})) {
    if (std::uniform_real_distribution<double>(0, 1)(random) > fill) continue;
    for (int c = 0; c < channels; ++c) rows[site].push_back(double{unit(random)});
  }
  return rows;
}

// Expects that the scores of the points of all samples are the rows that the network's definition gives for `head`.
inline void ExpectWhatIsDefined(support::Device device, ConvNetwork& network, const std::string& head,
                                const std::vector<Rows>& samples) {
  std::vector<ScoredCloud> expected;
  for (const Rows& voxels : samples) {
    expected.push_back({.cloud = CloudOf(voxels, network.dimension(), network.Channels("voxels"))});
  }
  const support::TestModel model = network.Finish(head);
  for (size_t i = 0; i < samples.size(); ++i) {
    for (const auto& [site, row] : network.Evaluate(samples[i])) {
      expected[i].scores.insert(expected[i].scores.end(), row.begin(), row.end());
    }
  }
  ExpectScores(device, model, expected);
}

// Draws the parameters of a network by seed.
class Draw {
 public:
  Draw(uint32_t seed, int dimension) : random_(seed), dimension_(dimension) {}

  int Up(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  Place Axes(int low, int high) {
    Place place = {1, 1, 1, 1};
    for (int axis = 0; axis < dimension_; ++axis) place[static_cast<size_t>(axis)] = Up(low, high);
    return place;
  }
  KernelShape Box(const Place& stride) {
    return {.kernel_size = Axes(1, dimension_ < 3 ? 5 : 3), .stride = stride, .dilation = Axes(1, 2)};
  }
  // Draws a shape for RULE_PADDED. ConvNetwork::Fitting adds the padding that it needs.
  KernelShape PaddedBox() {
    return {.kernel_size = Axes(1, dimension_ < 3 ? 5 : 3),
            .stride = Axes(1, 3),
            .dilation = Axes(1, 3),
            .padding = Axes(0, 3)};
  }
  KernelShape Cross(const Place& stride) {
    KernelShape shape = Box(stride);
    for (int32_t& size : shape.kernel_size) size += 1 - size % 2;
    shape.is_cross = true;
    return shape;
  }
  // Draws different offsets in any order. The centre may be missing.
  KernelShape List(const Place& stride) {
    std::vector<Place> all = BoxDeltas(dimension_, Axes(2, 4), {1, 1, 1, 1}, Axes(0, 2));
    std::shuffle(all.begin(), all.end(), random_);
    all.resize(std::min<size_t>(all.size(), static_cast<size_t>(Up(1, 9))));
    return {.stride = stride, .dilation = Axes(1, 2), .offsets = all};
  }
  KernelShape Any(const Place& stride) {
    switch (Up(0, 2)) {
      case 0:
        return Box(stride);
      case 1:
        return Cross(stride);
      default:
        return List(stride);
    }
  }
  kernels::PoolReduce Reduce() { return static_cast<kernels::PoolReduce>(Up(0, 2)); }
  std::mt19937& random() { return random_; }

 private:
  std::mt19937 random_;
  const int dimension_;
};

// Expects that a network which `build` draws gives the defined scores for three random samples. With an even seed the
// second sample is empty. If has_grid is true, the voxelization has a range, and the samples lie in it.
inline void ExpectDrawnNetwork(support::Device device, int dimension, uint32_t seed, bool has_grid,
                               const std::function<std::string(ConvNetwork&, Draw&)>& build) {
  Draw draw(seed * 31 + static_cast<uint32_t>(dimension), dimension);
  const int largest[] = {30, 9, 6, 4};
  const Place shape = draw.Axes(largest[dimension - 1] / 2, largest[dimension - 1]);
  ConvNetwork network(dimension, 4, has_grid ? std::optional(shape) : std::nullopt, seed);
  const std::string head = build(network, draw);
  std::vector<Rows> samples;
  for (int i = 0; i < 3; ++i) {
    const Place lowest = has_grid ? Place{0, 0, 0, 0} : draw.Axes(-9, 5);
    samples.push_back(RandomVoxels(dimension, 4, lowest, shape, draw.random()));
  }
  if (seed % 2 == 0) samples[1].clear();
  ExpectWhatIsDefined(device, network, head, samples);
}

// device, dimension, seed
using DrawnNetwork = std::tuple<support::Device, int, uint32_t>;

inline std::string NameOfDrawn(const ::testing::TestParamInfo<DrawnNetwork>& test) {
  const auto [device, dimension, seed] = test.param;
  return absl::StrCat(device == support::Device::kCpu ? "Cpu" : "Cuda", dimension, "d", seed);
}

// Returns cases in 1 to 4 dimensions.
inline auto DrawnNetworks() {
  return ::testing::Combine(support::AllDevices(), ::testing::Range(1, 5), ::testing::Range(0u, 8u));
}

}  // namespace voxserve
