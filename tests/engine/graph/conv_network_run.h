#pragma once

// Runs networks of conv_network.h: through the loader, the compiler and a device, beside their definitions.

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/engine/graph/conv_network.h"
#include "tests/engine/graph/expected_scores.h"

namespace voxserve {

// 10 to 40% of the sites of a box.
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

inline void ExpectWhatIsDefined(support::Device device, ConvNetwork& network, const std::string& head,
                                const std::vector<Rows>& samples) {
  std::vector<ScoredCloud> expected;
  for (const Rows& voxels : samples) {
    expected.push_back({.cloud = CloudOf(voxels, network.dimension(), network.Channels("voxels"))});
  }
  const testing::TestModel model = network.Finish(head);
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
  ConvShape Box(const Place& stride) {
    return {.kernel_size = Axes(1, dimension_ < 3 ? 5 : 3), .stride = stride, .dilation = Axes(1, 2)};
  }
  ConvShape Cross(const Place& stride) {
    ConvShape shape = Box(stride);
    for (int32_t& size : shape.kernel_size) size += 1 - size % 2;
    shape.is_cross = true;
    return shape;
  }
  // Different offsets in any order; not always the centre among them.
  ConvShape List(const Place& stride) {
    std::vector<Place> all = BoxDeltas(dimension_, Axes(2, 4), {1, 1, 1, 1}, Axes(0, 2));
    std::shuffle(all.begin(), all.end(), random_);
    all.resize(std::min<size_t>(all.size(), static_cast<size_t>(Up(1, 9))));
    return {.stride = stride, .dilation = Axes(1, 2), .offsets = all};
  }
  ConvShape Any(const Place& stride) {
    switch (Up(0, 2)) {
      case 0:
        return Box(stride);
      case 1:
        return Cross(stride);
      default:
        return List(stride);
    }
  }
  std::mt19937& random() { return random_; }

 private:
  std::mt19937 random_;
  const int dimension_;
};

}  // namespace voxserve
