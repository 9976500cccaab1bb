// Compares brick tables and map search on the GPU with stored results and with the CPU's search, whose own tests use
// loops over all sites. Pairs are compared by their sites, since the GPU orders rows differently.

#include <algorithm>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/coordinates/brick_table.h"
#include "kernels/coordinates/neighbour_search.h"
#include "kernels/coordinates/output_coordinates.h"
#include "tests/kernels/conv/rulebook_sites.h"
#include "tests/kernels/coordinates/conv_cases.h"
#include "tests/kernels/coordinates/device_sites.h"
#include "tests/kernels/coordinates/geometry_testing.h"
#include "tests/support/test_device.h"

namespace voxserve::kernels::mapping_cuda_test {
namespace {

using fixtures::AllConvCases;
using fixtures::ConvCase;
using fixtures::Level;
using fixtures::PairSites;
using fixtures::RandomSites;
using fixtures::RunOutputCoordinates;
using fixtures::SitesOf;
using fixtures::Sorted;
using fixtures::ToMorton;
using fixtures::VisitMorton;
using support::Device;
using support::DeviceArray;
using support::ExpectCudaSuccess;
using support::TestStream;

// Builds the brick table of a level on the GPU and owns its memory.
class Table {
 public:
  Table(const Level& in, int32_t dimension) {
    cuda::BrickTableParams params{
        .dimension = dimension, .keys = in.keys.data(), .capacity = in.capacity, .num_keys = in.count.data()};
    memory_ = std::make_unique<DeviceArray<char>>(Device::kCuda, cuda::BrickTableBytes(params));
    params.memory = memory_->data();
    ExpectCudaSuccess(cuda::BuildBrickTables({&params, 1}, {&view_, 1}, TestStream()));
  }

  const cuda::BrickTable& view() const { return view_; }

 private:
  std::unique_ptr<DeviceArray<char>> memory_;
  cuda::BrickTable view_;
};

class NeighbourSearchCudaTest : public ::testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT(Device::kCuda); }

  // Returns [K, num_out]: for each offset and output row the input row of its pair, or -1 if there is none.
  std::vector<int32_t> Search(const ConvGeometry& geometry, const Table& table, const Level& out) {
    const auto num_offsets = static_cast<size_t>(geometry.NumOffsets());
    const auto capacity = static_cast<size_t>(out.capacity);
    const DeviceArray<int32_t> neighbours(Device::kCuda, num_offsets * capacity);
    ExpectCudaSuccess(cuda::SearchNeighbours({.geometry = geometry,
                                              .table = table.view(),
                                              .dimension = geometry.dimension,
                                              .out_keys = out.keys.data(),
                                              .out_capacity = out.capacity,
                                              .num_out = out.count.data(),
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

  void ExpectPairs(const ConvGeometry& geometry, const Level& in, const Level& out, std::vector<PairSites> expected) {
    const int32_t dimension = geometry.dimension;
    const std::vector<int32_t> neighbours = Search(geometry, Table(in, dimension), out);
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
  }

  // Expects that the GPU finds the pairs of the CPU's search. in and out are ascending CoordinateKeys; for a
  // submanifold convolution both are the same vector.
  void ExpectTheCpusPairs(const ConvGeometry& geometry, const std::vector<uint64_t>& in,
                          const std::vector<uint64_t>& out) {
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
    ExpectPairs(geometry, in_level, out_level, SitesOf(rulebook.View(), in, out, geometry.dimension));
  }
};

TEST_F(NeighbourSearchCudaTest, AgreesWithTheDefinition) {
  for (const ConvCase& c : AllConvCases()) {
    SCOPED_TRACE(c.name);
    const Level in(ToMorton(c.in_keys, c.geometry.dimension));
    const Level strided_out(ToMorton(c.out_keys, c.geometry.dimension));
    ExpectPairs(c.geometry, in, c.is_submanifold ? in : strided_out, c.pairs);
  }
}

ConvGeometry Cube(int32_t size, int32_t stride) {
  const int32_t padding = size % 2 == 1 ? size / 2 : 0;
  return {.kernel_size = {size, size, size, 1},
          .stride = {stride, stride, stride, 1},
          .padding = {padding, padding, padding, 0}};
}

// The kernel volumes range from 1 to 343. Some have a specialised CUDA kernel, and the large ones need several
// launches.
TEST_F(NeighbourSearchCudaTest, OfALargeCloudAgreesWithTheCpu) {
  const std::vector<uint64_t> in = RandomSites(3, 3, 20000, 40);
  ThreadPool pool(2);
  for (const int32_t size : {1, 2, 3, 4, 5, 7}) {
    for (const int32_t stride : {1, 2, 3}) {
      SCOPED_TRACE(::testing::Message() << size << " " << stride);
      const ConvGeometry geometry = Cube(size, stride);
      if (stride == 1) ExpectTheCpusPairs(geometry, in, in);
      OutputCoordinatesParams params;
      params.geometry = geometry;
      params.num_samples = 3;
      params.in_keys = in.data();
      params.num_in = static_cast<int64_t>(in.size());
      const std::vector<uint64_t> out = RunOutputCoordinates(params, pool);
      ExpectTheCpusPairs(geometry, in, out);
    }
  }
}

// Depending on the dilation, the cells around an output lie in one brick, in two bricks along an axis, or farther
// apart.
TEST_F(NeighbourSearchCudaTest, KernelsOfEveryDimensionAndReachAgreeWithTheCpu) {
  for (const int32_t dimension : {1, 2, 3, 4}) {
    const int32_t extent = std::vector<int32_t>{9000, 60, 14, 8}[static_cast<size_t>(dimension) - 1];
    const std::vector<uint64_t> in = RandomSites(dimension, 3, 4000, extent);
    for (const int32_t size : {2, 3, 5}) {
      for (const int32_t dilation : {1, 2, 3, 40}) {
        SCOPED_TRACE(::testing::Message() << dimension << " " << size << " " << dilation);
        ConvGeometry geometry;
        geometry.dimension = dimension;
        for (int axis = 0; axis < dimension; ++axis) {
          const auto at = static_cast<size_t>(axis);
          geometry.kernel_size[at] = size;
          geometry.dilation[at] = axis == 0 ? dilation : 1;
          geometry.padding[at] = geometry.dilation[at] * (size / 2);
        }
        ExpectTheCpusPairs(geometry, in, in);
      }
    }
  }
}

// These boxes have more than 32 cells, and most have different numbers of them on their axes. Some with 5 cells on the
// last axis reach as far as two bricks on each axis, others one cell farther.
TEST_F(NeighbourSearchCudaTest, OfUnevenBoxesAgreesWithTheCpu) {
  struct Box {
    int32_t dimension;
    Axes kernel_size;
    Axes dilation;
  };
  for (const auto& [dimension, kernel_size, dilation] :
       {Box{1, {33, 1, 1, 1}, {2, 1, 1, 1}}, Box{2, {9, 5, 1, 1}, {1, 2, 1, 1}}, Box{2, {10, 5, 1, 1}, {1, 1, 1, 1}},
        Box{2, {7, 5, 1, 1}, {1, 3, 1, 1}}, Box{2, {5, 9, 1, 1}, {2, 1, 1, 1}}, Box{3, {3, 4, 5, 1}, {2, 1, 1, 1}},
        Box{3, {2, 5, 5, 1}, {4, 1, 1, 1}}, Box{3, {2, 5, 5, 1}, {5, 1, 1, 1}}, Box{3, {7, 1, 5, 1}, {1, 9, 1, 1}},
        Box{3, {5, 5, 5, 1}, {1, 1, 1, 1}}, Box{3, {3, 3, 5, 1}, {2, 1, 2, 1}}, Box{3, {4, 4, 4, 1}, {1, 1, 1, 1}},
        Box{4, {3, 2, 3, 5}, {1, 1, 2, 1}}, Box{4, {3, 3, 3, 3}, {1, 1, 1, 1}}}) {
    const int32_t extent = std::vector<int32_t>{9000, 60, 14, 8}[static_cast<size_t>(dimension) - 1];
    const std::vector<uint64_t> in = RandomSites(dimension, 3, 4000, extent);
    const std::vector<uint64_t> out = RandomSites(dimension, 3, 600, extent / 2);
    ConvGeometry geometry{.dimension = dimension, .kernel_size = kernel_size, .dilation = dilation};
    for (int32_t stride = 1; stride < 4; ++stride) {
      SCOPED_TRACE(::testing::Message() << dimension << " axes, " << kernel_size[0] << " x " << kernel_size[1] << " x "
                                        << kernel_size[2] << " x " << kernel_size[3] << ", stride " << stride);
      for (int axis = 0; axis < dimension; ++axis) {
        const auto at = static_cast<size_t>(axis);
        geometry.stride[at] = stride;
        geometry.padding[at] = dilation[at] * (kernel_size[at] / 2) - axis;
      }
      ExpectTheCpusPairs(geometry, in, out);
    }
  }
}

// Neighbouring rows share look-ups if their cells begin in one brick. Here most rows are alone in theirs, or some rows
// of a warp are close together and others far apart.
TEST_F(NeighbourSearchCudaTest, OfScatteredSitesAgreesWithTheCpu) {
  for (const int32_t dimension : {1, 2, 3, 4}) {
    const CoordinateKey layout(dimension);
    for (const size_t count : {1, 31, 32, 33, 100, 3000}) {
      std::vector<uint64_t> in = RandomSites(dimension, 3, count, dimension == 1 ? 100000 : 1000);
      for (size_t i = 0; i < count; i += 7) {
        Axes site = layout.Unpack(in[i]);
        const int32_t sample = layout.Sample(in[i]);
        for (size_t more = 1; more < 1 + i % 5; ++more) {
          ++site[more % static_cast<size_t>(dimension)];
          in.push_back(layout.Pack(sample, site));
        }
      }
      std::sort(in.begin(), in.end());
      in.erase(std::unique(in.begin(), in.end()), in.end());
      for (const int32_t size : {3, 5}) {
        for (const int32_t stride : {1, 2}) {
          SCOPED_TRACE(::testing::Message() << dimension << " axes, " << count << ", " << size << ", " << stride);
          ConvGeometry geometry{.dimension = dimension};
          for (size_t axis = 0; axis < static_cast<size_t>(dimension); ++axis) {
            geometry.kernel_size[axis] = size;
            geometry.stride[axis] = stride;
            geometry.padding[axis] = size / 2;
          }
          ExpectTheCpusPairs(geometry, in, in);
        }
      }
    }
  }
}

TEST_F(NeighbourSearchCudaTest, NothingIsFoundAcrossAFieldsEdge) {
  const CoordinateKey layout(3);
  const int32_t low = layout.min_coordinate(), high = layout.max_coordinate();
  const std::vector<uint64_t> in = Sorted(std::vector<uint64_t>{
      layout.Pack(0, {0, 0, high, 0}), layout.Pack(0, {0, 1, low, 0}), layout.Pack(0, {high, high, high, 0}),
      layout.Pack(1, {low, low, low, 0}), layout.Pack(1023, {high, high, high, 0})});
  ExpectTheCpusPairs(
      {.kernel_size = {1, 3, 3, 1}, .dilation = {1, 1, kCoordinateMargin, 1}, .padding = {0, 1, kCoordinateMargin, 0}},
      in, in);
  // For some of these outputs no key can hold an input's coordinate. One output has valid inputs.
  const std::vector<uint64_t> out = Sorted(std::vector<uint64_t>{
      layout.Pack(0, {high, high, high, 0}), layout.Pack(0, {0, 0, high / 2 + 1, 0}),
      layout.Pack(1, {low / 2, low / 2, low / 2, 0}), layout.Pack(1023, {high / 2, high / 2, high / 2, 0})});
  ExpectTheCpusPairs(Cube(3, 2), in, out);
}

TEST_F(NeighbourSearchCudaTest, ZeroRowsHaveNoNeighbours) {
  const CoordinateKey layout(3);
  const std::vector<uint64_t> none;
  const std::vector<uint64_t> one = {layout.Pack(1, {-5, 0, 7, 0})};
  ExpectTheCpusPairs(Cube(3, 1), none, none);
  ExpectTheCpusPairs(Cube(3, 2), none, one);
  ExpectTheCpusPairs(Cube(3, 2), one, none);
  ExpectTheCpusPairs(Cube(3, 1), one, one);
}

// A line of sites fills few bricks with many keys.
TEST_F(NeighbourSearchCudaTest, SitesInALineAndInEverySampleAreFound) {
  const CoordinateKey layout(1);
  std::vector<uint64_t> in;
  for (int32_t sample = 0; sample < kMaxSamples; ++sample) {
    for (int32_t i = -8; i < 8; ++i) in.push_back(layout.Pack(sample, {i}));
  }
  const ConvGeometry geometry{.dimension = 1, .kernel_size = {5, 1, 1, 1}, .padding = {2, 0, 0, 0}};
  ExpectTheCpusPairs(geometry, in, in);
}

// Expects that bit k of a row's entry is set exactly if the row has a neighbour at offset k. neighbours: [K, num_rows].
void ExpectRowMasks(const DeviceArray<uint32_t>& made, const std::vector<int32_t>& neighbours, size_t num_rows) {
  const std::vector<uint32_t> row_masks = made.ToHost();
  for (size_t row = 0; row < num_rows; ++row) {
    uint32_t expected = 0;
    for (size_t at = row; at < neighbours.size(); at += num_rows) {
      expected |= static_cast<uint32_t>(neighbours[at] >= 0) << at / num_rows;
    }
    ASSERT_EQ(row_masks[row], expected) << row;
  }
}

// Returns [K, num_in] the output row that reads each input row, or -1.
std::vector<int32_t> Swapped(const std::vector<int32_t>& neighbours, size_t num_out, size_t num_in) {
  const size_t num_offsets = num_out == 0 ? 0 : neighbours.size() / num_out;
  std::vector<int32_t> swapped(num_offsets * num_in, -1);
  for (size_t at = 0; at < neighbours.size(); ++at) {
    if (neighbours[at] < 0) continue;
    swapped[at / num_out * num_in + static_cast<size_t>(neighbours[at])] = static_cast<int32_t>(at % num_out);
  }
  return swapped;
}

// A brick of 64 sites spans the rows of two or three warps, wherever it begins. The last brick ends with the last row.
TEST_F(NeighbourSearchCudaTest, FullBricksAreFoundWhereverTheyBegin) {
  for (const int num_before : {0, 1, 7, 31}) {
    for (const int32_t dimension : {1, 2, 3}) {
      SCOPED_TRACE(::testing::Message() << num_before << " " << dimension);
      const CoordinateKey layout(dimension);
      std::vector<uint64_t> keys;
      for (int i = 0; i < num_before; ++i) keys.push_back(layout.Pack(0, {100 * i, 0, 0, 0}));
      const int32_t side = dimension == 1 ? 1024 : dimension == 2 ? 32 : 12;
      const int32_t sides[3] = {side, dimension > 1 ? side : 1, dimension > 2 ? side : 1};
      for (int32_t x = 0; x < sides[0]; ++x) {
        for (int32_t y = 0; y < sides[1]; ++y) {
          for (int32_t z = 0; z < sides[2]; ++z) keys.push_back(layout.Pack(1, {x, y, z, 0}));
        }
      }
      const std::vector<uint64_t> sites = Sorted(keys);
      ConvGeometry geometry{.dimension = dimension};
      for (int axis = 0; axis < dimension; ++axis) geometry.kernel_size[axis] = 3, geometry.padding[axis] = 1;
      ExpectTheCpusPairs(geometry, sites, sites);
    }
  }
}

// Makes all tables and rulebooks of a network in one call, which needs more than one launch. Each rulebook must equal
// the one that a separate call makes.
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

  std::vector<cuda::BrickTableParams> builds;
  std::vector<std::unique_ptr<DeviceArray<char>>> memory;
  const size_t num_tables = 35;  // several for each level
  for (size_t i = 0; i < num_tables; ++i) {
    const Level& level = *levels[i % levels.size()];
    builds.push_back(
        {.dimension = 3, .keys = level.keys.data(), .capacity = level.capacity, .num_keys = level.count.data()});
    memory.push_back(std::make_unique<DeviceArray<char>>(Device::kCuda, cuda::BrickTableBytes(builds.back())));
    builds.back().memory = memory.back()->data();
  }
  std::vector<cuda::BrickTable> tables(num_tables);
  ExpectCudaSuccess(cuda::BuildBrickTables(builds, tables, TestStream()));

  std::vector<NeighbourSearchParams> searches;
  std::vector<std::unique_ptr<DeviceArray<int32_t>>> neighbours;
  std::vector<std::unique_ptr<DeviceArray<uint32_t>>> row_masks;  // searched only for small kernels
  for (size_t i = 0; i < rulebooks.size(); ++i) {
    const Rulebook& rulebook = rulebooks[i];
    const Level& out = *levels[rulebook.out];
    const bool is_small = rulebook.geometry.NumOffsets() <= kRowMaskBits;
    row_masks.push_back(std::make_unique<DeviceArray<uint32_t>>(
        Device::kCuda, std::vector<uint32_t>(static_cast<size_t>(out.capacity))));
    neighbours.push_back(std::make_unique<DeviceArray<int32_t>>(
        Device::kCuda, static_cast<size_t>(rulebook.geometry.NumOffsets() * out.capacity)));
    searches.push_back({.geometry = rulebook.geometry,
                        .table = tables[rulebook.in + levels.size() * (i % 7)],
                        .out_keys = out.keys.data(),
                        .out_capacity = out.capacity,
                        .num_out = out.count.data(),
                        .neighbours = neighbours.back()->data(),
                        .row_masks = is_small ? row_masks.back()->data() : nullptr});
  }
  ExpectCudaSuccess(cuda::SearchNeighbours(searches, TestStream()));
  for (size_t i = 0; i < rulebooks.size(); ++i) {
    SCOPED_TRACE(i);
    const Rulebook& rulebook = rulebooks[i];
    const Level& out = *levels[rulebook.out];
    const Table table(*levels[rulebook.in], 3);
    const std::vector<int32_t> expected = Search(rulebook.geometry, table, out);
    const std::vector<int32_t> all = neighbours[i]->ToHost();
    for (size_t at = 0; at < expected.size(); ++at) {
      const size_t offset = at / out.host.size();
      ASSERT_EQ(all[offset * static_cast<size_t>(out.capacity) + at % out.host.size()], expected[at]) << at;
    }
    if (searches[i].row_masks != nullptr) ExpectRowMasks(*row_masks[i], expected, out.host.size());
  }
}

// A row's compact list of inputs must hold the input rows of the row's neighbours, in the order of the offsets.
TEST_F(NeighbourSearchCudaTest, RowsInputsAreTheNeighboursInOrder) {
  for (const int32_t size : {1, 2, 3}) {
    for (const int32_t dilation : {1, 40}) {
      SCOPED_TRACE(::testing::Message() << size << " " << dilation);
      const Level level(ToMorton(RandomSites(3, 3, 5000, 24), 3));
      ConvGeometry geometry = Cube(size, 1);
      geometry.dilation = {dilation, 1, 1, 1};
      const Table table(level, 3);
      const std::vector<int32_t> neighbours = Search(geometry, table, level);
      const auto num_offsets = static_cast<size_t>(geometry.NumOffsets()), num_rows = level.host.size();
      const auto pitch = static_cast<size_t>(RowInputsPitch(geometry.NumOffsets()));
      const DeviceArray<uint32_t> row_masks(Device::kCuda, static_cast<size_t>(level.capacity));
      const DeviceArray<int32_t> row_inputs(Device::kCuda, pitch * static_cast<size_t>(level.capacity));
      ExpectCudaSuccess(cuda::SearchNeighbours({.geometry = geometry,
                                                .table = table.view(),
                                                .out_keys = level.keys.data(),
                                                .out_capacity = level.capacity,
                                                .num_out = level.count.data(),
                                                .row_masks = row_masks.data(),
                                                .row_inputs = row_inputs.data()},
                                               TestStream()));
      ExpectRowMasks(row_masks, neighbours, num_rows);
      const std::vector<int32_t> inputs = row_inputs.ToHost();
      for (size_t row = 0; row < num_rows; ++row) {
        size_t next = row * pitch;
        for (size_t k = 0; k < num_offsets; ++k) {
          const int32_t in_row = neighbours[k * num_rows + row];
          if (in_row < 0) continue;
          ASSERT_EQ(inputs[next++], in_row) << row << " " << k;
        }
      }
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
        const Table table(in, dimension);
        const std::vector<int32_t> expected = Search(made.geometry, table, out);
        const auto capacity = static_cast<size_t>(in.capacity);
        const DeviceArray<int32_t> neighbours(Device::kCuda,
                                              static_cast<size_t>(made.geometry.NumOffsets()) * capacity);
        const DeviceArray<uint32_t> row_masks(Device::kCuda, std::vector<uint32_t>(capacity));
        const bool is_small = made.geometry.NumOffsets() <= kRowMaskBits;
        NeighbourSearchParams search{.geometry = made.geometry,
                                     .dimension = dimension,
                                     .out_keys = made.out_keys,
                                     .out_capacity = in.capacity,
                                     .num_out = made.num_out,
                                     .first_in_rows = made.first_in_rows,
                                     .in_keys = made.in_keys,
                                     .in_capacity = in.capacity,
                                     .num_in = in.count.data(),
                                     .neighbours = neighbours.data(),
                                     .row_masks = is_small ? row_masks.data() : nullptr};
        ExpectCudaSuccess(cuda::SearchNeighbours(search, TestStream()));
        const std::vector<int32_t> all = neighbours.ToHost();
        for (size_t at = 0; at < expected.size(); ++at) {
          const size_t offset = at / out_host.size();
          ASSERT_EQ(all[offset * capacity + at % out_host.size()], expected[at]) << at;
        }
        if (!is_small) continue;
        ExpectRowMasks(row_masks, expected, out_host.size());

        constexpr uint32_t kUntouched = 0xCDCDCDCD;
        // Every input row must have the one output row that reads it, also if only the swapped outputs are wanted.
        const std::vector<int32_t> swapped = Swapped(expected, out_host.size(), in.host.size());
        for (const bool wants_neighbours : {true, false}) {
          const DeviceArray<uint32_t> swapped_masks(Device::kCuda, std::vector<uint32_t>(capacity, kUntouched));
          const DeviceArray<int32_t> swapped_inputs(Device::kCuda, capacity);
          if (!wants_neighbours) search.neighbours = nullptr;
          search.swapped_row_masks = swapped_masks.data();
          search.swapped_row_inputs = swapped_inputs.data();
          ExpectCudaSuccess(cuda::SearchNeighbours(search, TestStream()));
          ExpectRowMasks(swapped_masks, swapped, in.host.size());
          const std::vector<uint32_t> masks = swapped_masks.ToHost();
          EXPECT_EQ(std::count(masks.begin() + static_cast<int64_t>(in.host.size()), masks.end(), kUntouched),
                    static_cast<int64_t>(capacity - in.host.size()));
          const std::vector<int32_t> outputs = swapped_inputs.ToHost();
          for (size_t at = 0; at < swapped.size(); ++at) {
            if (swapped[at] < 0) continue;
            ASSERT_EQ(outputs[at % in.host.size()], swapped[at]) << at;
          }
        }
      }
    }
  }
}

// The host finds these errors before any launch. The tests thus need no GPU, and the params point to no memory.
TEST(BrickTableRefusalCudaTest, TablesOfTwoDimensionsOrOfTooManyKeysAreRefused) {
  constexpr size_t kNumTables = 35;  // so many tables need a second launch
  const std::vector<cuda::BrickTableParams> building(kNumTables, {.capacity = 10});
  std::vector<cuda::BrickTable> tables(kNumTables);
  for (const size_t other : {size_t{1}, kNumTables - 1}) {
    SCOPED_TRACE(other);
    std::vector<cuda::BrickTableParams> two_dimensions = building;
    two_dimensions[other].dimension = 2;
    EXPECT_EQ(cuda::BuildBrickTables(two_dimensions, tables, TestStream()), cudaErrorInvalidValue);
    support::Synchronize();
  }
  const cuda::BrickTableParams too_many{.capacity = int64_t{1} << 33};
  EXPECT_EQ(cuda::BuildBrickTables({&too_many, 1}, {tables.data(), 1}, TestStream()), cudaErrorInvalidValue);
  support::Synchronize();
}

TEST(NeighbourSearchRefusalCudaTest, ParamsThatDisagreeInDimensionAreRefused) {
  const NeighbourSearchParams agreeing{.geometry = Cube(3, 1)};
  NeighbourSearchParams of_geometry = agreeing, of_params = agreeing, of_table = agreeing;
  of_geometry.geometry.dimension = 2;
  of_params.dimension = 2;
  of_table.table.dimension = 2;
  NeighbourSearchParams of_all = of_geometry;  // its dimensions agree, but not with those of the call's other params
  of_all.dimension = of_all.table.dimension = 2;
  const auto search = [](std::vector<NeighbourSearchParams> params, int64_t out_capacity) {
    for (NeighbourSearchParams& one : params) one.out_capacity = out_capacity;
    const cudaError_t status = cuda::SearchNeighbours(params, TestStream());
    support::Synchronize();
    return status;
  };
  for (const NeighbourSearchParams& disagreeing : {of_geometry, of_params, of_table}) {
    SCOPED_TRACE(::testing::Message() << disagreeing.geometry.dimension << disagreeing.dimension
                                      << disagreeing.table.dimension);
    EXPECT_EQ(search({disagreeing}, 10), cudaErrorInvalidValue);
    EXPECT_EQ(search({agreeing, disagreeing}, 10), cudaErrorInvalidValue);
  }
  EXPECT_EQ(search({agreeing, of_all}, 10), cudaErrorInvalidValue);

  uint32_t offsets = 0;
  NeighbourSearchParams of_large_kernel{.geometry = Cube(5, 1), .row_masks = &offsets};
  EXPECT_EQ(search({of_large_kernel}, 10), cudaErrorInvalidValue);

  int32_t input = 0;
  const NeighbourSearchParams without_offsets{.geometry = Cube(3, 1), .row_inputs = &input};
  EXPECT_EQ(search({without_offsets}, 10), cudaErrorInvalidValue);
  const NeighbourSearchParams of_blocks{
      .geometry = Cube(2, 2), .first_in_rows = &input, .row_masks = &offsets, .row_inputs = &input};
  EXPECT_EQ(search({of_blocks}, 10), cudaErrorInvalidValue);

  // Without rows nothing is launched. The accepted params can therefore be tested without memory.
  EXPECT_EQ(search({agreeing, agreeing}, 0), cudaSuccess);
  EXPECT_EQ(search({of_all}, 0), cudaSuccess);
  const int32_t row = 0;
  of_table.first_in_rows = &row;
  EXPECT_EQ(search({agreeing, of_table}, 0), cudaSuccess) << "its table is not read";
}

TEST(NeighbourSearchRefusalCudaTest, SwappedOutputsWithoutWhatTheyNeedAreRefused) {
  uint32_t offsets = 0;
  int32_t input = 0;
  const NeighbourSearchParams swapped_without_inputs{
      .geometry = Cube(2, 2), .first_in_rows = &input, .swapped_row_masks = &offsets};
  EXPECT_EQ(cuda::SearchNeighbours(swapped_without_inputs, TestStream()), cudaErrorInvalidValue);
  const NeighbourSearchParams swapped_without_masks{
      .geometry = Cube(2, 2), .first_in_rows = &input, .swapped_row_inputs = &input};
  EXPECT_EQ(cuda::SearchNeighbours(swapped_without_masks, TestStream()), cudaErrorInvalidValue);
  const NeighbourSearchParams swapped_of_a_table{
      .geometry = Cube(2, 2), .swapped_row_masks = &offsets, .swapped_row_inputs = &input};
  EXPECT_EQ(cuda::SearchNeighbours(swapped_of_a_table, TestStream()), cudaErrorInvalidValue);
  const NeighbourSearchParams swapped_of_large_blocks{
      .geometry = Cube(4, 4), .first_in_rows = &input, .swapped_row_masks = &offsets, .swapped_row_inputs = &input};
  EXPECT_EQ(cuda::SearchNeighbours(swapped_of_large_blocks, TestStream()), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace voxserve::kernels::mapping_cuda_test
