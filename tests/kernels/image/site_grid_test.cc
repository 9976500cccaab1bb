// Compares copies from sites to grid cells and back with their definition, on every device. Results are exact, since
// values are only copied.

#include "kernels/image/sites/site_grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/morton_key.h"
#include "tests/kernels/core/feature_testing.h"

namespace voxserve::kernels::site_grid_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

const std::vector<Margins> kMargins = {{}, {.before = 8, .after = 8}, {.before = 1, .after = 2}};

// Returns CoordinateKeys of some positions of the shape in some samples, in random order.
std::vector<uint64_t> RandomSites(const SiteGrid& grid, int64_t num_samples, double occupancy, Random& random) {
  const CoordinateKey layout(grid.dimension);
  std::vector<uint64_t> keys;
  for (int64_t cell = 0; cell < num_samples * grid.num_cells(); ++cell) {
    if (!random.Chance(occupancy)) continue;
    Axes site = {0, 0, 0, 0};
    int64_t rest = cell;
    for (int axis = grid.dimension - 1; axis >= 0; --axis) {
      const auto a = static_cast<size_t>(axis);
      site[a] = static_cast<int32_t>(rest % grid.size[a]);
      rest /= grid.size[a];
    }
    keys.push_back(layout.Pack(static_cast<int32_t>(rest), site));
  }
  std::shuffle(keys.begin(), keys.end(), random.engine());
  return keys;
}

class SiteGridTest : public testing::TestWithParam<Ground> {
 protected:
  void SetUp() override { SKIP_WITHOUT(device()); }
  Device device() const { return GetParam().device; }
  DType dtype() const { return GetParam().dtype; }

  std::vector<uint64_t> KeysOf(const SiteGrid& grid, std::vector<uint64_t> keys) const {
    if (device() == Device::kCuda) {
      for (uint64_t& key : keys) key = ToMortonKey(CoordinateKey(grid.dimension), key);
    }
    return keys;
  }

  Matrix ToCells(const SiteGrid& grid, int64_t num_samples, const std::vector<uint64_t>& sites, int32_t depth,
                 const Matrix& in, Margins margins, DType out_dtype) const {
    const DeviceArray<uint64_t> keys(device(), KeysOf(grid, sites));
    const DeviceMatrix from(device(), dtype(), in);
    const DeviceMatrix out(
        device(), out_dtype,
        Matrix(num_samples * grid.num_cells() / depth, in.channels * depth, margins, nullptr, out_dtype));
    SitesToCellsParams params{.grid = grid,
                              .num_samples = num_samples,
                              .keys = keys.data(),
                              .depth = depth,
                              .in = from.View(),
                              .out = out.View()};
    if (device() == Device::kCpu) {
      ThreadPool pool(3);
      cpu::SitesToCells(params, pool);
    } else if constexpr (kHasCuda) {
      const DeviceArray<char> workspace(device(), cuda::SitesToCellsWorkspaceBytes(grid, num_samples));
      params.workspace = workspace.data();
      ExpectCudaSuccess(cuda::SitesToCells(params, TestStream()));
      support::Synchronize();
    }
    return out.ToHost();
  }

  Matrix ToSites(const SiteGrid& grid, const std::vector<uint64_t>& sites, const Matrix& in, Margins margins,
                 DType out_dtype) const {
    const DeviceArray<uint64_t> keys(device(), KeysOf(grid, sites));
    const DeviceMatrix from(device(), dtype(), in);
    const auto num_sites = static_cast<int64_t>(sites.size());
    const DeviceMatrix out(device(), out_dtype, Matrix(num_sites, in.channels, margins, nullptr, out_dtype));
    const CellsToSitesParams params{.grid = grid, .keys = keys.data(), .in = from.View(), .out = out.View()};
    if (device() == Device::kCpu) {
      ThreadPool pool(3);
      cpu::CellsToSites(params, pool);
    } else if constexpr (kHasCuda) {
      ExpectCudaSuccess(cuda::CellsToSites(params, TestStream()));
      support::Synchronize();
    }
    return out.ToHost();
  }
};
INSTANTIATE_TEST_SUITE_P(Grounds, SiteGridTest, AllGrounds(), GroundName);

TEST_P(SiteGridTest, CellsAreNumberedByTheirSites) {
  Random random(2);
  const SiteGrid grid = SiteGrid::FromAbove({9, 6, 1, 1});
  for (const double occupancy : {0.0, 0.4, 1.0}) {
    constexpr int64_t kSamples = 3;
    std::vector<uint64_t> sites = RandomSites(grid, kSamples, occupancy, random);
    const CoordinateKey layout(3);
    const auto num_inside = static_cast<int64_t>(sites.size());
    sites.push_back(layout.Pack(1, {9, 0, 0, 0}));  // this site and the next have no cell
    sites.push_back(layout.Pack(2, {0, 0, 1, 0}));
    const DeviceArray<uint64_t> keys(device(), KeysOf(grid, sites));
    const DeviceArray<int32_t> site_of(device(), std::vector<int32_t>(kSamples * 54, 12345));
    const NumberCellsParams params{.grid = grid,
                                   .num_samples = kSamples,
                                   .keys = keys.data(),
                                   .num_sites = static_cast<int64_t>(sites.size()),
                                   .site_of = site_of.data()};
    if (device() == Device::kCpu) {
      ThreadPool pool(3);
      cpu::NumberCells(params, pool);
    } else if constexpr (kHasCuda) {
      ExpectCudaSuccess(cuda::NumberCells(params, TestStream()));
      support::Synchronize();
    }
    std::vector<int32_t> expected(kSamples * 54, -1);
    for (int64_t i = 0; i < num_inside; ++i) {
      const Axes at = layout.Unpack(sites[static_cast<size_t>(i)]);
      expected[static_cast<size_t>(layout.Sample(sites[static_cast<size_t>(i)]) * 54 + at[1] * 9 + at[0])] =
          static_cast<int32_t>(i);
    }
    EXPECT_EQ(site_of.ToHost(), expected);
  }
}

TEST_P(SiteGridTest, EveryCellHasItsSiteAndSitesGetTheirCellsBack) {
  Random random(1);
  const std::vector<std::pair<int32_t, Axes>> shapes = {
      {1, {37, 1, 1, 1}}, {2, {6, 9, 1, 1}}, {3, {7, 5, 4, 1}}, {3, {1, 1, 1, 1}}, {4, {3, 5, 2, 4}}};
  for (const auto& [dimension, size] : shapes) {
    const SiteGrid grid = SiteGrid::RowMajor(dimension, size);
    const CoordinateKey layout(dimension);
    for (const int32_t channels : {1, 5, 16, 136}) {
      for (const double occupancy : {0.0, 0.3, 1.0}) {
        for (const DType out_dtype : OutDTypes(dtype())) {
          const std::vector<uint64_t> sites = RandomSites(grid, 3, occupancy, random);
          const Matrix in(static_cast<int64_t>(sites.size()), channels, random.OneOf(kMargins), &random, dtype());
          const Matrix cells = ToCells(grid, 3, sites, 1, in, random.OneOf(kMargins), out_dtype);
          EXPECT_TRUE(cells.MarginsAreUntouched());
          std::map<int64_t, int64_t> site_of;
          for (size_t i = 0; i < sites.size(); ++i) {
            int64_t cell = layout.Sample(sites[i]);
            for (int axis = 0; axis < dimension; ++axis) {
              cell = cell * size[static_cast<size_t>(axis)] + layout.Coordinate(sites[i], axis);
            }
            site_of[cell] = static_cast<int64_t>(i);
          }
          for (int64_t cell = 0; cell < cells.rows; ++cell) {
            const auto found = site_of.find(cell);
            for (int64_t c = 0; c < channels; ++c) {
              ASSERT_EQ(cells.at(cell, c), found == site_of.end() ? 0.0f : in.at(found->second, c)) << cell << " " << c;
            }
          }
          if (out_dtype != dtype()) continue;
          for (const DType back_dtype : OutDTypes(dtype())) {
            const Matrix back = ToSites(grid, sites, cells, random.OneOf(kMargins), back_dtype);
            EXPECT_TRUE(back.MarginsAreUntouched());
            for (int64_t i = 0; i < back.rows; ++i) {
              for (int64_t c = 0; c < channels; ++c) ASSERT_EQ(back.at(i, c), in.at(i, c));
            }
          }
        }
      }
    }
  }
}

TEST_P(SiteGridTest, FromAboveHeightsStandInTheChannels) {
  Random random(2);
  for (const auto& [size, dimension] :
       {std::pair(Axes{7, 5, 2, 1}, 3), {Axes{3, 4, 1, 1}, 3}, {Axes{6, 2, 5, 1}, 3}, {Axes{7, 5, 1, 1}, 2}}) {
    const SiteGrid grid = SiteGrid::FromAbove(size, dimension);
    const int64_t columns = size[0], rows = size[1], depth = size[2];
    const CoordinateKey layout(dimension);
    for (const int32_t channels : {1, 3, 8, 32, 128}) {
      for (const DType out_dtype : OutDTypes(dtype())) {
        const std::vector<uint64_t> sites = RandomSites(grid, 2, 0.4, random);
        const Matrix in(static_cast<int64_t>(sites.size()), channels, random.OneOf(kMargins), &random, dtype());
        const Matrix image = ToCells(grid, 2, sites, size[2], in, random.OneOf(kMargins), out_dtype);
        EXPECT_TRUE(image.MarginsAreUntouched());
        std::map<std::tuple<int64_t, int64_t>, float> expected;  // by row and channel
        for (size_t i = 0; i < sites.size(); ++i) {
          const Axes site = layout.Unpack(sites[i]);
          const int64_t row = (layout.Sample(sites[i]) * rows + site[1]) * columns + site[0];
          for (int64_t c = 0; c < channels; ++c) {
            expected[{row, c * depth + site[2]}] = in.at(static_cast<int64_t>(i), c);
          }
        }
        for (int64_t row = 0; row < image.rows; ++row) {
          for (int64_t c = 0; c < image.channels; ++c) {
            const auto found = expected.find({row, c});
            ASSERT_EQ(image.at(row, c), found == expected.end() ? 0.0f : found->second) << row << " " << c;
          }
        }
      }
    }
  }
}

TEST_P(SiteGridTest, SitesBeyondTheShapeHaveNoCell) {
  Random random(3);
  const SiteGrid grid = SiteGrid::RowMajor(3, {4, 3, 2, 1});
  const CoordinateKey layout(3);
  const std::vector<uint64_t> sites = {layout.Pack(0, {4, 0, 0, 0}), layout.Pack(0, {0, -1, 0, 0}),
                                       layout.Pack(0, {3, 2, 1, 0}), layout.Pack(0, {0, 0, 2, 0})};
  const Matrix in(4, 8, {}, &random, dtype());
  const Matrix cells = ToCells(grid, 1, sites, 1, in, {}, dtype());
  for (int64_t cell = 0; cell < 24; ++cell) {
    for (int64_t c = 0; c < 8; ++c) EXPECT_EQ(cells.at(cell, c), cell == 23 ? in.at(2, c) : 0.0f);
  }
  const Matrix back = ToSites(grid, sites, cells, {}, dtype());
  for (int64_t site = 0; site < 4; ++site) {
    for (int64_t c = 0; c < 8; ++c) EXPECT_EQ(back.at(site, c), site == 2 ? in.at(2, c) : 0.0f);
  }
}

TEST_P(SiteGridTest, NoSamples) {
  const Matrix none(0, 8, {}, nullptr, dtype());
  EXPECT_EQ(ToCells(SiteGrid::RowMajor(3, {4, 3, 2, 1}), 0, {}, 1, none, {}, dtype()).rows, 0);
}

}  // namespace
}  // namespace voxserve::kernels::site_grid_test
