// Compares conversions between sparse and dense tensors with spconv's published results (golden_misc, golden_ext_misc:
// SparseConvTensor's dense and from_dense, scatter_nd, generate_sparse_data).

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/coordinates/coordinate_key.h"
#include "kernels/image/sites/site_grid.h"
#include "tests/kernels/coordinates/device_sites.h"
#include "tests/support/array_tree.h"
#include "tests/support/spconv_outputs.h"

namespace voxserve::kernels::spconv_grids_test {
namespace {

using support::ArrayTree;
using support::Device;
using support::DeviceArray;
using support::NpyArray;

// The sites of a case and their rows, in the file's order.
struct Sites {
  std::vector<uint64_t> keys;  // keys of the device's kind
  std::vector<float> features;
  int64_t channels = 0;

  int64_t count() const { return static_cast<int64_t>(keys.size()); }
};

// The column of a row of indices that holds the row's sample.
enum class SampleColumn { kNone, kFirst, kLast };

template <typename T>
std::vector<uint64_t> Keys(Device device, const NpyArray& indices, SampleColumn column) {
  const auto dimension = static_cast<int32_t>(indices.shape[1]) - (column == SampleColumn::kNone ? 0 : 1);
  std::vector<uint64_t> keys;
  for (int64_t row = 0; row < indices.shape[0]; ++row) {
    const T* at = indices.data<T>() + row * indices.shape[1];
    int32_t sample = 0;
    if (column == SampleColumn::kFirst) sample = static_cast<int32_t>(*at++);
    if (column == SampleColumn::kLast) sample = static_cast<int32_t>(at[dimension]);
    Axes site = {0, 0, 0, 0};
    std::copy_n(at, dimension, site.begin());
    if (device == Device::kCpu) {
      keys.push_back(CoordinateKey(dimension).Pack(sample, site));
    } else {
      keys.push_back(fixtures::VisitMorton(dimension, [&](auto morton) { return morton.Pack(sample, site); }));
    }
  }
  return keys;
}

Sites ReadSites(Device device, const ArrayTree& value, SampleColumn column = SampleColumn::kFirst) {
  const NpyArray& features = value.at("features").tensor();
  return {.keys = Keys<int32_t>(device, value.at("indices").tensor(), column),
          .features = features.values<float>(),
          .channels = features.shape[1]};
}

SiteGrid GridOf(const std::vector<int64_t>& shape) {
  Axes size = {1, 1, 1, 1};
  std::copy(shape.begin(), shape.end(), size.begin());
  return SiteGrid::RowMajor(static_cast<int32_t>(shape.size()), size);
}

// Returns [samples, cells, channels].
std::vector<float> ToCells(Device device, const Sites& sites, const SiteGrid& grid, int64_t num_samples) {
  const DeviceArray<uint64_t> keys(device, sites.keys);
  const DeviceArray<float> in(device, sites.features);
  const DeviceArray<float> out(device, static_cast<size_t>(num_samples * grid.num_cells() * sites.channels));
  SitesToCellsParams params{
      .grid = grid,
      .num_samples = num_samples,
      .keys = keys.data(),
      .in = Rows::Packed(in.data(), DType::kFloat32, sites.count(), static_cast<int32_t>(sites.channels)),
      .out = Rows::Packed(out.data(), DType::kFloat32, num_samples * grid.num_cells(),
                          static_cast<int32_t>(sites.channels))};
  if (device == Device::kCpu) {
    ThreadPool pool(2);
    cpu::SitesToCells(params, pool);
  } else if constexpr (kHasCuda) {
    const DeviceArray<char> workspace(device, cuda::SitesToCellsWorkspaceBytes(grid, num_samples));
    params.workspace = workspace.data();
    support::ExpectCudaSuccess(cuda::SitesToCells(params, support::TestStream()));
    support::Synchronize();
  }
  return out.ToHost();
}

// Returns [sites, channels].
std::vector<float> ToSites(Device device, const std::vector<uint64_t>& site_keys, const SiteGrid& grid,
                           const std::vector<float>& cells, int64_t channels) {
  const DeviceArray<uint64_t> keys(device, site_keys);
  const DeviceArray<float> in(device, cells);
  const DeviceArray<float> out(device, site_keys.size() * static_cast<size_t>(channels));
  const CellsToSitesParams params{
      .grid = grid,
      .keys = keys.data(),
      .in = Rows::Packed(in.data(), DType::kFloat32, static_cast<int64_t>(cells.size()) / channels,
                         static_cast<int32_t>(channels)),
      .out = Rows::Packed(out.data(), DType::kFloat32, static_cast<int64_t>(site_keys.size()),
                          static_cast<int32_t>(channels))};
  if (device == Device::kCpu) {
    ThreadPool pool(2);
    cpu::CellsToSites(params, pool);
  } else if constexpr (kHasCuda) {
    support::ExpectCudaSuccess(cuda::CellsToSites(params, support::TestStream()));
  }
  return out.ToHost();
}

// Converts [samples, channels, cells] to channels last.
std::vector<float> ChannelsLast(const NpyArray& dense) {
  const int64_t num_samples = dense.shape[0], channels = dense.shape[1];
  const int64_t cells = dense.num_elements() / num_samples / channels;
  std::vector<float> values;
  for (int64_t sample = 0; sample < num_samples; ++sample) {
    for (int64_t cell = 0; cell < cells; ++cell) {
      for (int64_t c = 0; c < channels; ++c) {
        values.push_back(dense.data<float>()[(sample * channels + c) * cells + cell]);
      }
    }
  }
  return values;
}

class SpconvGridsTest : public ::testing::TestWithParam<Device> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Devices, SpconvGridsTest, support::AllDevices(), support::DeviceName);

// Returns the case with this name.
ArrayTree CaseOf(const ArrayTree& file, const std::string& id) {
  for (const ArrayTree& one : file.at("cases").items()) {
    if (one.at("id").AsString() == id) return one;
  }
  ADD_FAILURE() << "no case " << id;
  return file;
}

TEST_P(SpconvGridsTest, Dense) {
  OPEN_SPCONV_OUTPUT_OR_SKIP(file, "golden_misc");
  const ArrayTree one = CaseOf(file, "dense_3d");
  const ArrayTree input = one.at("input");
  const std::vector<float> cells = ToCells(GetParam(), ReadSites(GetParam(), input),
                                           GridOf(input.at("spatial_shape").AsInts()), input.at("batch_size").AsInt());
  EXPECT_EQ(cells, one.at("expect").at("dense_cl").tensor().values<float>());
  EXPECT_EQ(cells, ChannelsLast(one.at("expect").at("dense_cf").tensor()));
}

TEST_P(SpconvGridsTest, FromDense) {
  OPEN_SPCONV_OUTPUT_OR_SKIP(file, "golden_misc");
  const ArrayTree one = CaseOf(file, "from_dense_3d");
  const std::vector<float> dense = one.at("dense").tensor().values<float>();
  const Sites expected = ReadSites(GetParam(), one.at("expect"));
  const SiteGrid grid = GridOf(one.at("expect").at("spatial_shape").AsInts());
  EXPECT_EQ(ToSites(GetParam(), expected.keys, grid, dense, expected.channels), expected.features);
  // The dense tensor has these sites and no others.
  EXPECT_EQ(ToCells(GetParam(), expected, grid, one.at("expect").at("batch_size").AsInt()), dense);
}

TEST_P(SpconvGridsTest, ScatterNd) {
  OPEN_SPCONV_OUTPUT_OR_SKIP(file, "golden_misc");
  const ArrayTree one = CaseOf(file, "scatter_nd");
  const NpyArray& updates = one.at("updates").tensor();
  const Sites sites{.keys = Keys<int64_t>(GetParam(), one.at("indices").tensor(), SampleColumn::kNone),
                    .features = updates.values<float>(),
                    .channels = updates.shape[1]};
  std::vector<int64_t> shape = one.at("shape").AsInts();
  ASSERT_EQ(shape.back(), sites.channels);
  shape.pop_back();
  EXPECT_EQ(ToCells(GetParam(), sites, GridOf(shape), 1), one.at("expect").at("out").tensor().values<float>());
}

TEST_P(SpconvGridsTest, GeneratedSparseData) {
  OPEN_SPCONV_OUTPUT_OR_SKIP(file, "golden_ext_misc");
  const ArrayTree one = CaseOf(file, "test_utils_gsd");
  const NpyArray& dense = one.at("expect").at("features_dense").tensor();
  const Sites sites = ReadSites(GetParam(), one.at("expect"), SampleColumn::kLast);
  EXPECT_EQ(ToCells(GetParam(), sites, GridOf(one.at("shape").AsInts()), dense.shape[0]), ChannelsLast(dense));
}

}  // namespace
}  // namespace voxserve::kernels::spconv_grids_test
