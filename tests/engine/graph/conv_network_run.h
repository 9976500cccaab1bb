#pragma once

// Runs networks of conv_network.h: through the loader, the compiler and a device, beside their definitions.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/graph/model_loader.h"
#include "tests/engine/device_runner.h"
#include "tests/engine/graph/conv_network.h"

namespace voxserve {

// A point in the middle of every voxel, with its features.
inline PointCloud CloudOf(const Rows& voxels, int dimension, int channels) {
  std::vector<std::string> fields(ConvNetwork::kFields, ConvNetwork::kFields + dimension);
  for (int c = 0; c < channels; ++c) fields.push_back(absl::StrCat("f", c));
  std::vector<float> values;
  for (const auto& [site, row] : voxels) {
    for (int axis = 0; axis < dimension; ++axis)
      values.push_back(static_cast<float>(site[static_cast<size_t>(axis)]) + 0.5f);
    for (const double value : row) values.push_back(static_cast<float>(value));
  }
  return *PointCloud::FromFloats(fields, values.data(), voxels.size());
}

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

inline std::vector<Variant> VariantsOf(support::Device device) {
  using kernels::MapSearch;
  if (device == support::Device::kCpu) {
    return {{.name = "FetchOnDemand", .plan = {.map_search = MapSearch::kMerge}},
            {.name = "GatherGemmScatter",
             .plan = {.map_search = MapSearch::kHash, .dataflow = Dataflow::kGatherGemmScatter}},
            {.name = "Grid", .plan = {.map_search = MapSearch::kGrid}}};
  }
  Variant hash{.name = "Hash", .device = device, .plan = kDefaultCudaConvPlan};
  Variant grid = hash;
  grid.name = "Grid";
  grid.plan.map_search = MapSearch::kGrid;
  grid.plan.grouping.grouping = kernels::Grouping::kSymmetric;
  Variant half = hash;
  half.name = "HalfFetchOnDemand";
  half.precision = ModelConfig::Precision::kFloat16;
  half.plan.dataflow = Dataflow::kFetchOnDemand;
  return {hash, grid, half};
}

inline void ExpectWhatIsDefined(support::Device device, ConvNetwork& network, const std::string& head,
                                const std::vector<Rows>& samples) {
  const testing::TestModel model = network.Finish(head);
  SCOPED_TRACE(model.graph);
  const testing::TemporaryFolder folder;
  model.WriteTo(folder.path());
  const absl::StatusOr<Graph> graph = LoadGraph(folder.path() / "1");
  ASSERT_TRUE(graph.ok()) << graph.status();
  const int channels = network.Channels("voxels");
  std::vector<PointCloud> clouds;
  std::vector<const PointCloud*> batch;
  std::vector<Rows> expected;
  for (const Rows& voxels : samples) {
    clouds.push_back(CloudOf(voxels, network.dimension(), channels));
    expected.push_back(network.Evaluate(voxels));
  }
  for (const PointCloud& cloud : clouds) batch.push_back(&cloud);
  const auto classes = static_cast<size_t>(network.Channels(head));
  double largest = 1;
  for (const Rows& rows : expected) {
    for (const auto& [site, row] : rows) {
      for (const double value : row) largest = std::max(largest, std::abs(value));
    }
  }
  const auto runner = DeviceRunner::Create({.device = device});
  ASSERT_TRUE(runner.ok()) << runner.status();
  for (const Variant& variant : VariantsOf(device)) {
    SCOPED_TRACE(variant.name);
    const auto program = (*runner)->Compile(*graph, variant, 2);
    ASSERT_TRUE(program.ok()) << program.status();
    const BatchOutput output = (*runner)->Run(*program, batch, true);
    ASSERT_TRUE(output.status.ok()) << output.status;
    const double tolerance = (variant.precision == ModelConfig::Precision::kFloat16 ? 1e-2 : 1e-4) * largest;
    for (size_t i = 0; i < samples.size(); ++i) {
      ASSERT_TRUE(output.samples[i].status.ok()) << output.samples[i].status;
      const std::vector<float>& scores = output.samples[i].scores;
      ASSERT_EQ(scores.size(), samples[i].size() * classes);
      size_t point = 0;
      for (const auto& [site, unused] : samples[i]) {
        const std::vector<double>& row = expected[i].at(site);
        for (size_t c = 0; c < classes; ++c) {
          ASSERT_NEAR(scores[point * classes + c], row[c], tolerance) << "sample " << i << ", point " << point;
        }
        ++point;
      }
    }
  }
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
