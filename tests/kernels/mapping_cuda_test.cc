// Coordinate tables, output coordinates and map search on the GPU: against the stored definition, and against the CPU,
// whose own tests hold it to loops over all sites. Rows are compared as sites: the GPU has them in another order.

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/coordinate_table.h"
#include "kernels/morton_key.h"
#include "kernels/neighbour_search.h"
#include "kernels/output_coordinates.h"
#include "tests/kernels/conv_cases.h"
#include "tests/support/test_device.h"

namespace voxserve::kernels {
namespace {

using support::Device;
using support::DeviceArray;
using support::ExpectCudaSuccess;
using support::TestStream;
using testing::AllConvCases;
using testing::ConvCase;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::PairSites;
using testing::RunOutputCoordinates;
using testing::SitesOf;

constexpr int64_t kSlack = 37;  // rows between a count and its capacity
constexpr int64_t kMaxGridCells = 1 << 20;

template <typename T>
std::vector<T> Sorted(std::vector<T> values) {
  std::sort(values.begin(), values.end());
  return values;
}

// Calls visit with the MortonKey of a dimension.
template <typename Visitor>
auto VisitMorton(int32_t dimension, const Visitor& visit) {
  switch (dimension) {
    case 1:
      return visit(MortonKey<1>());
    case 2:
      return visit(MortonKey<2>());
    case 3:
      return visit(MortonKey<3>());
    default:
      return visit(MortonKey<4>());
  }
}

// The same sites as ascending MortonKeys.
std::vector<uint64_t> ToMorton(std::vector<uint64_t> keys, int32_t dimension) {
  const CoordinateKey layout(dimension);
  VisitMorton(dimension, [&](auto morton) {
    for (uint64_t& key : keys) key = morton.Pack(layout.Sample(key), layout.Unpack(key));
  });
  return Sorted(keys);
}

// Keys on the device, more of them than their count says: those past it are sites that are there already, so that
// whoever reads them makes pairs that nobody expects.
struct Level {
  explicit Level(const std::vector<uint64_t>& morton_keys)
      : host(morton_keys),
        capacity(static_cast<int64_t>(morton_keys.size()) + kSlack),
        keys(Device::kCuda, Padded(morton_keys)),
        count(Device::kCuda, std::vector<int64_t>{static_cast<int64_t>(morton_keys.size())}) {}

  std::vector<uint64_t> host;
  int64_t capacity;
  DeviceArray<uint64_t> keys;
  DeviceArray<int64_t> count;

 private:
  static std::vector<uint64_t> Padded(std::vector<uint64_t> keys) {
    keys.resize(keys.size() + static_cast<size_t>(kSlack), keys.empty() ? 77 : keys.front());
    return keys;
  }
};

class OutputCoordinatesCudaTest : public ::testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT(Device::kCuda); }

  // Ascending MortonKeys of the outputs.
  std::vector<uint64_t> Run(OutputCoordinatesParams params, const Level& in, std::vector<int64_t>* beyond_limits) {
    params.in_keys = in.keys.data();
    params.num_in = in.capacity;
    params.device_num_in = in.count.data();
    params.out_capacity = OutputCoordinatesCapacity(params);
    const DeviceArray<uint64_t> out(Device::kCuda, static_cast<size_t>(params.out_capacity));
    const DeviceArray<int64_t> num_out(Device::kCuda, 1);
    const DeviceArray<int64_t> beyond(Device::kCuda, static_cast<size_t>(params.num_samples));
    const DeviceArray<char> workspace(Device::kCuda, cuda::OutputCoordinatesWorkspaceBytes(params));
    params.out_keys = out.data();
    params.num_out = num_out.data();
    params.num_beyond_limits = beyond.data();
    params.first_in_rows = nullptr;
    params.workspace = workspace.data();
    ExpectCudaSuccess(cuda::OutputCoordinates(params, TestStream()));
    *beyond_limits = beyond.ToHost();
    std::vector<uint64_t> keys = out.ToHost();
    const auto count = static_cast<size_t>(num_out.ToHost()[0]);
    EXPECT_LE(count, keys.size());
    keys.resize(std::min(count, keys.size()));
    return keys;
  }

  // in: CoordinateKeys.
  void ExpectWhatTheCpuMakes(OutputCoordinatesParams params, const std::vector<uint64_t>& in) {
    const int32_t dimension = params.geometry.dimension;
    const Level level(ToMorton(in, dimension));
    std::vector<int64_t> beyond, cpu_beyond;
    const std::vector<uint64_t> out = Run(params, level, &beyond);
    ThreadPool pool(2);
    const std::vector<uint64_t> sorted = Sorted(in);
    params.in_keys = sorted.data();
    params.num_in = static_cast<int64_t>(sorted.size());
    EXPECT_EQ(out, ToMorton(RunOutputCoordinates(params, pool, &cpu_beyond), dimension));
    EXPECT_EQ(beyond, cpu_beyond);
  }
};

TEST_F(OutputCoordinatesCudaTest, AgreeWithTheDefinition) {
  for (const ConvCase& c : AllConvCases()) {
    if (c.is_submanifold) continue;
    SCOPED_TRACE(c.name);
    std::vector<int64_t> beyond_limits;
    const Level in(ToMorton(c.in_keys, c.geometry.dimension));
    EXPECT_EQ(Run(c.OutputParams(), in, &beyond_limits), ToMorton(c.out_keys, c.geometry.dimension));
    EXPECT_THAT(beyond_limits, Each(0));
  }
}

// CoordinateKeys of different sites in a box around the origin.
std::vector<uint64_t> RandomSites(int32_t dimension, int32_t num_samples, size_t count, int32_t extent) {
  const CoordinateKey layout(dimension);
  std::mt19937 random(11);
  std::set<uint64_t> keys;
  while (keys.size() < count) {
    Axes site = {0, 0, 0, 0};
    for (int axis = 0; axis < dimension; ++axis) {
      site[axis] = static_cast<int32_t>(random() % static_cast<uint32_t>(extent)) - extent / 2;
    }
    keys.insert(layout.Pack(static_cast<int32_t>(random() % static_cast<uint32_t>(num_samples)), site));
  }
  return {keys.begin(), keys.end()};
}

TEST_F(OutputCoordinatesCudaTest, OfALargeCloudAreWhatTheCpuMakes) {
  const std::vector<uint64_t> in = RandomSites(3, 3, 20000, 60);
  std::vector<ConvGeometry> geometries;
  for (const int32_t stride : {1, 2, 3, 4, 8}) {
    geometries.push_back({.kernel_size = {stride, stride, stride, 1}, .stride = {stride, stride, stride, 1}});
  }
  geometries.push_back({.kernel_size = {1, 2, 4, 1}, .stride = {1, 2, 4, 1}});
  geometries.push_back({.kernel_size = {3, 3, 3, 1}, .stride = {2, 2, 2, 1}, .padding = {1, 1, 1, 0}});
  geometries.push_back(
      {.kernel_size = {3, 2, 5, 1}, .stride = {1, 3, 2, 1}, .dilation = {2, 1, 2, 1}, .padding = {2, 0, 4, 0}});
  for (const ConvGeometry& geometry : geometries) {
    SCOPED_TRACE(::testing::Message() << geometry.kernel_size[0] << " " << geometry.stride[0]);
    for (const CoordinateRule rule : {CoordinateRule::kFloor, CoordinateRule::kPadded, CoordinateRule::kExpand}) {
      OutputCoordinatesParams params;
      params.rule = rule;
      params.geometry = geometry;
      params.num_samples = 3;
      params.out_shape = {13, 9, 20, 0};
      ExpectWhatTheCpuMakes(params, in);
      params.has_lower = params.has_upper = true;
      params.lower = {-20, -7, 0, 0};
      params.upper = {25, 5, 11, 0};
      ExpectWhatTheCpuMakes(params, in);
    }
  }
}

TEST_F(OutputCoordinatesCudaTest, SitesAtTheLimitsOfTheKeySurviveTheFloor) {
  for (int32_t dimension = 1; dimension <= kMaxDimension; ++dimension) {
    SCOPED_TRACE(dimension);
    const CoordinateKey layout(dimension);
    std::vector<uint64_t> in;
    for (const int32_t first : {layout.min_coordinate(), -3, -1, 0, 1, layout.max_coordinate()}) {
      for (const int32_t last : {layout.min_coordinate(), -2, -1, 0, 2, layout.max_coordinate()}) {
        Axes site = {0, 0, 0, 0};
        site[dimension - 1] = last;
        site[0] = first;
        for (const int32_t sample : {0, 1, kMaxSamples - 1}) in.push_back(layout.Pack(sample, site));
      }
    }
    std::sort(in.begin(), in.end());
    in.erase(std::unique(in.begin(), in.end()), in.end());
    for (const int32_t stride : {1, 2, 3, 4, 64, 4096, 1 << 20}) {
      OutputCoordinatesParams params;
      params.geometry.dimension = dimension;
      params.geometry.stride = {stride, stride, stride, stride};
      params.num_samples = kMaxSamples;
      ExpectWhatTheCpuMakes(params, in);
      params.geometry.stride[0] = 1;
      ExpectWhatTheCpuMakes(params, in);
    }
  }
}

TEST_F(OutputCoordinatesCudaTest, WhatNoKeyCanHoldIsCountedAsOnTheCpu) {
  const CoordinateKey layout(3);
  const int32_t high = layout.max_coordinate(), low = layout.min_coordinate();
  const std::vector<uint64_t> in = {layout.Pack(1, {0, 0, high, 0}),     layout.Pack(2, {0, 0, 7, 0}),
                                    layout.Pack(3, {1, 0, high, 0}),     layout.Pack(3, {2, 0, low, 0}),
                                    layout.Pack(3, {2, 0, high - 1, 0}), layout.Pack(1023, {high, low, high, 0})};
  OutputCoordinatesParams params;
  params.rule = CoordinateRule::kExpand;
  params.geometry = {.kernel_size = {3, 1, 3, 1}, .stride = {2, 1, 1, 1}, .padding = {1, 0, 1, 0}};
  params.num_samples = kMaxSamples;
  ExpectWhatTheCpuMakes(params, in);
  params.has_lower = true;
  params.lower = {INT32_MIN, INT32_MIN, INT32_MIN, 0};
  ExpectWhatTheCpuMakes(params, in);
  params.geometry.stride = {1, 1, 2, 1};
  params.has_upper = true;
  params.upper = {INT32_MAX, INT32_MAX, 3, 0};
  ExpectWhatTheCpuMakes(params, in);
}

TEST_F(OutputCoordinatesCudaTest, ZeroRowsMakeZeroRows) {
  std::vector<int64_t> beyond_limits;
  for (const CoordinateRule rule : {CoordinateRule::kFloor, CoordinateRule::kPadded, CoordinateRule::kExpand}) {
    OutputCoordinatesParams params;
    params.rule = rule;
    params.geometry = {.kernel_size = {3, 3, 3, 1}, .stride = {2, 2, 2, 1}, .padding = {1, 1, 1, 0}};
    params.out_shape = {5, 5, 5, 0};
    params.num_samples = 2;
    EXPECT_THAT(Run(params, Level({}), &beyond_limits), IsEmpty());
    EXPECT_THAT(beyond_limits, ElementsAre(0, 0));
    Level without_room({});
    without_room.capacity = 0;
    EXPECT_THAT(Run(params, without_room, &beyond_limits), IsEmpty());
    EXPECT_THAT(beyond_limits, ElementsAre(0, 0));
  }
}

// A U-Net's levels at once, and where each output's inputs begin, against the levels one by one.
TEST_F(OutputCoordinatesCudaTest, OfAChainAreThoseOfItsLevels) {
  for (const int32_t dimension : {1, 2, 3, 4}) {
    for (const size_t count : {0, 1, 9000}) {
      SCOPED_TRACE(::testing::Message() << dimension << " " << count);
      const int32_t extent = dimension == 1 ? 20000 : dimension == 2 ? 150 : 40;
      const Level first(ToMorton(RandomSites(dimension, 3, count, extent), dimension));
      std::vector<std::vector<uint64_t>> expected = {first.host};
      std::vector<OutputCoordinatesParams> chain;
      std::vector<std::unique_ptr<DeviceArray<uint64_t>>> keys;
      std::vector<std::unique_ptr<DeviceArray<int32_t>>> first_in_rows;
      const std::vector<int32_t> strides = {2, 1, 4, 2, 2};
      const DeviceArray<int64_t> num_out(Device::kCuda, strides.size());
      const DeviceArray<int64_t> beyond(Device::kCuda, 3 * strides.size());
      for (size_t i = 0; i < strides.size(); ++i) {
        OutputCoordinatesParams params;
        params.geometry.dimension = dimension;
        params.geometry.stride = {strides[i], strides[i], strides[i], strides[i]};
        params.num_samples = 3;
        std::vector<int64_t> beyond_limits;
        expected.push_back(Run(params, Level(expected.back()), &beyond_limits));
        params.in_keys = chain.empty() ? first.keys.data() : chain.back().out_keys;
        params.num_in = first.capacity;
        params.device_num_in = chain.empty() ? first.count.data() : chain.back().num_out;
        params.out_capacity = OutputCoordinatesCapacity(params);
        keys.push_back(std::make_unique<DeviceArray<uint64_t>>(Device::kCuda, static_cast<size_t>(first.capacity)));
        first_in_rows.push_back(
            std::make_unique<DeviceArray<int32_t>>(Device::kCuda, static_cast<size_t>(first.capacity)));
        params.out_keys = keys.back()->data();
        params.first_in_rows = i == 1 ? nullptr : first_in_rows.back()->data();
        params.num_out = num_out.data() + i;
        params.num_beyond_limits = beyond.data() + 3 * i;
        chain.push_back(params);
      }
      ASSERT_TRUE(cuda::CanBeChained(chain));
      const DeviceArray<char> workspace(Device::kCuda, cuda::OutputCoordinatesChainWorkspaceBytes(chain));
      chain[0].workspace = workspace.data();
      ExpectCudaSuccess(cuda::OutputCoordinatesChain(chain, TestStream()));
      EXPECT_THAT(beyond.ToHost(), Each(0));
      for (size_t i = 0; i < strides.size(); ++i) {
        SCOPED_TRACE(i);
        const std::vector<uint64_t>& out = expected[i + 1];
        ASSERT_EQ(num_out.ToHost()[i], static_cast<int64_t>(out.size()));
        std::vector<uint64_t> made = keys[i]->ToHost();
        made.resize(out.size());
        EXPECT_EQ(made, out);
        if (chain[i].first_in_rows == nullptr) continue;
        const std::vector<int32_t> rows = first_in_rows[i]->ToHost();
        for (size_t row = 0; row < out.size(); ++row) {
          // The inputs up to there make the outputs up to there.
          std::vector<int64_t> beyond_limits;
          const auto in_row = static_cast<size_t>(rows[row]);
          ASSERT_LT(in_row, expected[i].size());
          if (row % 500 != 0) continue;
          const std::vector<uint64_t> before(expected[i].begin(), expected[i].begin() + rows[row]);
          EXPECT_EQ(Run(chain[i], Level(before), &beyond_limits).size(), row);
          const std::vector<uint64_t> with(expected[i].begin(), expected[i].begin() + rows[row] + 1);
          EXPECT_EQ(Run(chain[i], Level(with), &beyond_limits).size(), row + 1);
        }
      }
    }
  }
}

TEST_F(OutputCoordinatesCudaTest, OnlyWhatKeepsMortonOrderIsChained) {
  OutputCoordinatesParams floor;
  floor.geometry.stride = {2, 2, 2, 1};
  OutputCoordinatesParams uneven = floor;
  uneven.geometry.stride = {2, 2, 1, 1};
  OutputCoordinatesParams padded = floor;
  padded.rule = CoordinateRule::kPadded;
  EXPECT_TRUE(cuda::CanBeChained(std::vector{floor, floor, floor}));
  EXPECT_FALSE(cuda::CanBeChained(std::vector{floor, uneven}));
  EXPECT_FALSE(cuda::CanBeChained(std::vector{padded}));
  OutputCoordinatesParams far = floor;
  far.geometry.stride = {1 << 12, 1 << 12, 1 << 12, 1};
  EXPECT_TRUE(cuda::CanBeChained(std::vector{far}));
  EXPECT_FALSE(cuda::CanBeChained(std::vector{far, far})) << "a field has no 24 bits";
  EXPECT_FALSE(cuda::CanBeChained(std::vector(9, floor)));
}

TEST_F(OutputCoordinatesCudaTest, RefuseTooLittleRoom) {
  OutputCoordinatesParams params;
  params.num_in = 10;
  params.out_capacity = 9;
  EXPECT_NE(cuda::OutputCoordinates(params, TestStream()), cudaError_t{});
}

// A table over a level in memory of its own, and the grid's cells.
class Table {
 public:
  Table(const Level& in, int32_t dimension, int32_t num_samples, MapSearch search,
        int64_t max_grid_cells = kMaxGridCells)
      : in_(in), cells_(Device::kCuda, std::vector<int32_t>(static_cast<size_t>(kMaxGridCells), -1)) {
    cuda::CoordinateTableBuildParams params{.dimension = dimension,
                                            .search = search,
                                            .num_samples = num_samples,
                                            .keys = in.keys.data(),
                                            .capacity = in.capacity,
                                            .num_keys = in.count.data(),
                                            .grid_cells = search == MapSearch::kGrid ? cells_.data() : nullptr,
                                            .max_grid_cells = search == MapSearch::kGrid ? max_grid_cells : 0};
    memory_ = std::make_unique<DeviceArray<char>>(Device::kCuda, cuda::CoordinateTableBytes(params));
    params.memory = memory_->data();
    ExpectCudaSuccess(cuda::BuildCoordinateTable(params, &view_, TestStream()));
  }

  const cuda::CoordinateTable& view() const { return view_; }
  bool UsesGrid() const {
    int32_t uses_grid = -1;
    support::CopyFromDevice(Device::kCuda, &uses_grid, view_.uses_grid, sizeof(uses_grid));
    EXPECT_TRUE(uses_grid == 0 || uses_grid == 1);
    return uses_grid == 1;
  }
  // Whether ResetGrid leaves the cells as they were.
  void Reset() const {
    ExpectCudaSuccess(cuda::ResetGrid(view_, in_.keys.data(), in_.capacity, in_.count.data(), TestStream()));
    const std::vector<int32_t> cells = cells_.ToHost();
    EXPECT_EQ(std::count(cells.begin(), cells.end(), -1), static_cast<int64_t>(cells.size()));
  }

 private:
  const Level& in_;
  DeviceArray<int32_t> cells_;
  std::unique_ptr<DeviceArray<char>> memory_;
  cuda::CoordinateTable view_;
};

class NeighbourSearchCudaTest : public ::testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT(Device::kCuda); }

  // [K, num_out]
  std::vector<int32_t> Search(const ConvGeometry& geometry, const Table& table, const Level& out, bool same_sites) {
    const auto num_offsets = static_cast<size_t>(geometry.NumOffsets());
    const auto capacity = static_cast<size_t>(out.capacity);
    const DeviceArray<int32_t> neighbours(Device::kCuda, num_offsets * capacity);
    ExpectCudaSuccess(cuda::SearchNeighbours({.geometry = geometry,
                                              .table = table.view(),
                                              .dimension = geometry.dimension,
                                              .out_keys = out.keys.data(),
                                              .out_capacity = out.capacity,
                                              .num_out = out.count.data(),
                                              .same_sites = same_sites,
                                              .neighbours = neighbours.data()},
                                             TestStream()));
    const std::vector<int32_t> all = neighbours.ToHost();
    std::vector<int32_t> found;
    for (size_t k = 0; k < num_offsets; ++k) {
      const auto first = all.begin() + static_cast<int64_t>(k * capacity);
      found.insert(found.end(), first, first + static_cast<int64_t>(out.host.size()));
    }
    return found;
  }

  // With a hash table, with a grid, and with a grid that does not fit: all the same, and these pairs.
  void ExpectPairs(const ConvGeometry& geometry, int32_t num_samples, const Level& in, const Level& out,
                   bool same_sites, std::vector<PairSites> expected) {
    const int32_t dimension = geometry.dimension;
    const Table hash(in, dimension, num_samples, MapSearch::kHash);
    const std::vector<int32_t> neighbours = Search(geometry, hash, out, same_sites);
    std::vector<PairSites> pairs;
    VisitMorton(dimension, [&](auto morton) {
      for (size_t i = 0; i < neighbours.size(); ++i) {
        ASSERT_GE(neighbours[i], -1);
        if (neighbours[i] < 0) continue;
        const uint64_t from = in.host.at(static_cast<size_t>(neighbours[i]));
        const uint64_t to = out.host[i % out.host.size()];
        const int32_t sample = morton.Sample(from) == morton.Sample(to) ? morton.Sample(from) : -1;
        pairs.emplace_back(static_cast<int32_t>(i / out.host.size()), sample, morton.Unpack(from), morton.Unpack(to));
      }
    });
    EXPECT_EQ(Sorted(pairs), Sorted(expected));
    EXPECT_FALSE(hash.UsesGrid());

    const Table grid(in, dimension, num_samples, MapSearch::kGrid);
    EXPECT_EQ(Search(geometry, grid, out, same_sites), neighbours);
    EXPECT_EQ(grid.UsesGrid(), grid_fits_);
    grid.Reset();
    const Table too_large(in, dimension, num_samples, MapSearch::kGrid, 0);
    EXPECT_EQ(Search(geometry, too_large, out, same_sites), neighbours);
    EXPECT_EQ(too_large.UsesGrid(), in.host.empty());
    too_large.Reset();
  }

  // in: CoordinateKeys, ascending; out likewise, `in` itself for a submanifold convolution.
  void ExpectTheCpusPairs(const ConvGeometry& geometry, int32_t num_samples, const std::vector<uint64_t>& in,
                          const std::vector<uint64_t>& out) {
    const bool same_sites = &in == &out;
    ThreadPool pool(2);
    const RulebookSearchParams params{.geometry = geometry,
                                      .in_keys = in.data(),
                                      .num_in = static_cast<int64_t>(in.size()),
                                      .out_keys = out.data(),
                                      .num_out = static_cast<int64_t>(out.size())};
    Rulebook rulebook;
    cpu::SearchRulebook(params, pool, rulebook);
    const Level in_level(ToMorton(in, geometry.dimension));
    const Level out_level(ToMorton(out, geometry.dimension));
    ExpectPairs(geometry, num_samples, in_level, same_sites ? in_level : out_level, same_sites,
                SitesOf(rulebook.View(), in, out, geometry.dimension));
  }

  bool grid_fits_ = true;  // in kMaxGridCells
};

TEST_F(NeighbourSearchCudaTest, AgreesWithTheDefinition) {
  for (const ConvCase& c : AllConvCases()) {
    SCOPED_TRACE(c.name);
    const Level in(ToMorton(c.in_keys, c.geometry.dimension));
    const Level strided_out(ToMorton(c.out_keys, c.geometry.dimension));
    ExpectPairs(c.geometry, c.num_samples, in, c.is_submanifold ? in : strided_out, c.is_submanifold, c.pairs);
  }
}

ConvGeometry Cube(int32_t size, int32_t stride) {
  const int32_t padding = size % 2 == 1 ? size / 2 : 0;
  return {.kernel_size = {size, size, size, 1},
          .stride = {stride, stride, stride, 1},
          .padding = {padding, padding, padding, 0}};
}

// Kernel volumes from 1 to 343: those with a kernel of their own, and those that take several launches.
TEST_F(NeighbourSearchCudaTest, OfALargeCloudAgreesWithTheCpu) {
  const std::vector<uint64_t> in = RandomSites(3, 3, 20000, 40);
  ThreadPool pool(2);
  for (const int32_t size : {1, 2, 3, 4, 5, 7}) {
    for (const int32_t stride : {1, 2, 3}) {
      SCOPED_TRACE(::testing::Message() << size << " " << stride);
      const ConvGeometry geometry = Cube(size, stride);
      if (stride == 1) ExpectTheCpusPairs(geometry, 3, in, in);
      OutputCoordinatesParams params;
      params.geometry = geometry;
      params.num_samples = 3;
      params.in_keys = in.data();
      params.num_in = static_cast<int64_t>(in.size());
      const std::vector<uint64_t> out = RunOutputCoordinates(params, pool);
      ExpectTheCpusPairs(geometry, 3, in, out);
    }
  }
}

TEST_F(NeighbourSearchCudaTest, NothingIsFoundAcrossAFieldsEdge) {
  grid_fits_ = false;
  const CoordinateKey layout(3);
  const int32_t low = layout.min_coordinate(), high = layout.max_coordinate();
  const std::vector<uint64_t> in = Sorted(std::vector<uint64_t>{
      layout.Pack(0, {0, 0, high, 0}), layout.Pack(0, {0, 1, low, 0}), layout.Pack(0, {high, high, high, 0}),
      layout.Pack(1, {low, low, low, 0}), layout.Pack(1023, {high, high, high, 0})});
  ExpectTheCpusPairs(
      {.kernel_size = {1, 3, 3, 1}, .dilation = {1, 1, kCoordinateMargin, 1}, .padding = {0, 1, kCoordinateMargin, 0}},
      kMaxSamples, in, in);
  // Outputs whose inputs no key can hold, and one whose inputs it can.
  const std::vector<uint64_t> out = Sorted(std::vector<uint64_t>{
      layout.Pack(0, {high, high, high, 0}), layout.Pack(0, {0, 0, high / 2 + 1, 0}),
      layout.Pack(1, {low / 2, low / 2, low / 2, 0}), layout.Pack(1023, {high / 2, high / 2, high / 2, 0})});
  ExpectTheCpusPairs(Cube(3, 2), kMaxSamples, in, out);
}

TEST_F(NeighbourSearchCudaTest, ZeroRowsHaveNoNeighbours) {
  const CoordinateKey layout(3);
  const std::vector<uint64_t> none;
  const std::vector<uint64_t> one = {layout.Pack(1, {-5, 0, 7, 0})};
  ExpectTheCpusPairs(Cube(3, 1), 2, none, none);
  ExpectTheCpusPairs(Cube(3, 2), 2, none, one);
  ExpectTheCpusPairs(Cube(3, 2), 2, one, none);
  ExpectTheCpusPairs(Cube(3, 1), 2, one, one);
}

// Many keys in few cells of memory: long runs of taken slots.
TEST_F(NeighbourSearchCudaTest, SitesInALineAndInEverySampleAreFound) {
  const CoordinateKey layout(1);
  std::vector<uint64_t> in;
  for (int32_t sample = 0; sample < kMaxSamples; ++sample) {
    for (int32_t i = -8; i < 8; ++i) in.push_back(layout.Pack(sample, {i}));
  }
  const ConvGeometry geometry{.dimension = 1, .kernel_size = {5, 1, 1, 1}, .padding = {2, 0, 0, 0}};
  ExpectTheCpusPairs(geometry, kMaxSamples, in, in);
}

// The tables and rulebooks of a network at once, more of them than a launch takes, against each one alone.
TEST_F(NeighbourSearchCudaTest, OfManyRulebooksIsThatOfEach) {
  struct Rulebook {
    size_t in;
    size_t out;
    ConvGeometry geometry;
  };
  std::vector<std::unique_ptr<Level>> levels;
  for (const size_t count : {5000, 0, 1, 1700, 300}) {
    levels.push_back(std::make_unique<Level>(ToMorton(RandomSites(3, 3, count, 24), 3)));
  }
  std::vector<Rulebook> rulebooks;
  for (size_t i = 0; i < levels.size(); ++i) {
    for (const int32_t size : {1, 3, 5}) rulebooks.push_back({i, i, Cube(size, 1)});
    for (const int32_t size : {2, 3, 4}) rulebooks.push_back({i, (i + 1) % levels.size(), Cube(size, 2)});
  }

  std::vector<cuda::CoordinateTableBuildParams> builds;
  std::vector<std::unique_ptr<DeviceArray<char>>> memory;
  const size_t num_tables = 35;  // each level has several
  for (size_t i = 0; i < num_tables; ++i) {
    const Level& level = *levels[i % levels.size()];
    builds.push_back({.dimension = 3,
                      .num_samples = 3,
                      .keys = level.keys.data(),
                      .capacity = level.capacity,
                      .num_keys = level.count.data()});
    memory.push_back(std::make_unique<DeviceArray<char>>(Device::kCuda, cuda::CoordinateTableBytes(builds.back())));
    builds.back().memory = memory.back()->data();
  }
  std::vector<cuda::CoordinateTable> tables(num_tables);
  ExpectCudaSuccess(cuda::BuildCoordinateTables(builds, tables, TestStream()));

  std::vector<NeighbourSearchParams> searches;
  std::vector<std::unique_ptr<DeviceArray<int32_t>>> neighbours;
  for (size_t i = 0; i < rulebooks.size(); ++i) {
    const Rulebook& rulebook = rulebooks[i];
    const Level& out = *levels[rulebook.out];
    neighbours.push_back(std::make_unique<DeviceArray<int32_t>>(
        Device::kCuda, static_cast<size_t>(rulebook.geometry.NumOffsets() * out.capacity)));
    searches.push_back({.geometry = rulebook.geometry,
                        .table = tables[rulebook.in + levels.size() * (i % 7)],
                        .out_keys = out.keys.data(),
                        .out_capacity = out.capacity,
                        .num_out = out.count.data(),
                        .same_sites = rulebook.in == rulebook.out,
                        .neighbours = neighbours.back()->data()});
  }
  ExpectCudaSuccess(cuda::SearchNeighbours(searches, TestStream()));
  for (size_t i = 0; i < rulebooks.size(); ++i) {
    SCOPED_TRACE(i);
    const Rulebook& rulebook = rulebooks[i];
    const Level& out = *levels[rulebook.out];
    const Table table(*levels[rulebook.in], 3, 3, MapSearch::kHash);
    const std::vector<int32_t> expected = Search(rulebook.geometry, table, out, rulebook.in == rulebook.out);
    const std::vector<int32_t> all = neighbours[i]->ToHost();
    for (size_t at = 0; at < expected.size(); ++at) {
      const size_t offset = at / out.host.size();
      ASSERT_EQ(all[offset * static_cast<size_t>(out.capacity) + at % out.host.size()], expected[at]) << at;
    }
  }
}

TEST_F(NeighbourSearchCudaTest, BlocksOfConsecutiveRowsAreWhatALookupFinds) {
  for (const int32_t dimension : {1, 2, 3, 4}) {
    for (const int32_t stride : {1, 2, 4}) {
      for (const size_t count : {0, 1, 4000}) {
        SCOPED_TRACE(::testing::Message() << dimension << " " << stride << " " << count);
        const int32_t extent = std::vector<int32_t>{9000, 60, 14, 8}[static_cast<size_t>(dimension) - 1];
        const Level in(ToMorton(RandomSites(dimension, 3, count, extent), dimension));
        OutputCoordinatesParams made;
        made.geometry.dimension = dimension;
        made.geometry.kernel_size = made.geometry.stride = {stride, stride, stride, stride};
        ASSERT_TRUE(CellsAreBlocks(made.geometry));
        made.num_samples = 3;
        made.in_keys = in.keys.data();
        made.num_in = made.out_capacity = in.capacity;
        made.device_num_in = in.count.data();
        const DeviceArray<uint64_t> out_keys(Device::kCuda, static_cast<size_t>(in.capacity));
        const DeviceArray<int32_t> first_in_rows(Device::kCuda, static_cast<size_t>(in.capacity));
        const DeviceArray<int64_t> num_out(Device::kCuda, 1);
        const DeviceArray<int64_t> beyond(Device::kCuda, 3);
        const DeviceArray<char> workspace(Device::kCuda, cuda::OutputCoordinatesWorkspaceBytes(made));
        made.out_keys = out_keys.data();
        made.first_in_rows = first_in_rows.data();
        made.num_out = num_out.data();
        made.num_beyond_limits = beyond.data();
        made.workspace = workspace.data();
        ExpectCudaSuccess(cuda::OutputCoordinates(made, TestStream()));

        std::vector<uint64_t> out_host = out_keys.ToHost();
        out_host.resize(static_cast<size_t>(num_out.ToHost()[0]));
        const Level out(out_host);
        const Table table(in, dimension, 3, MapSearch::kHash);
        const std::vector<int32_t> expected = Search(made.geometry, table, out, false);
        const auto capacity = static_cast<size_t>(in.capacity);
        const DeviceArray<int32_t> neighbours(Device::kCuda,
                                              static_cast<size_t>(made.geometry.NumOffsets()) * capacity);
        ExpectCudaSuccess(cuda::SearchNeighbours({.geometry = made.geometry,
                                                  .dimension = dimension,
                                                  .out_keys = made.out_keys,
                                                  .out_capacity = in.capacity,
                                                  .num_out = made.num_out,
                                                  .first_in_rows = made.first_in_rows,
                                                  .in_keys = made.in_keys,
                                                  .in_capacity = in.capacity,
                                                  .num_in = in.count.data(),
                                                  .neighbours = neighbours.data()},
                                                 TestStream()));
        const std::vector<int32_t> all = neighbours.ToHost();
        for (size_t at = 0; at < expected.size(); ++at) {
          const size_t offset = at / out_host.size();
          ASSERT_EQ(all[offset * capacity + at % out_host.size()], expected[at]) << at;
        }
      }
    }
  }
}

}  // namespace
}  // namespace voxserve::kernels
