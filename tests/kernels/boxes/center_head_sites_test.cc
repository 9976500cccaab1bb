// Compares the boxes that are decoded from CenterPoint heads whose outputs are rows of sites (VoxelNeXt) with those
// that are decoded from dense images, on every device.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "kernels/boxes/center_head.h"
#include "tests/kernels/boxes/detection_testing.h"

namespace voxserve::kernels::center_head_sites_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class CenterHeadSitesTest : public testing::TestWithParam<Ground> {
 protected:
  void SetUp() override { SKIP_WITHOUT(device()); }
  Device device() const { return GetParam().device; }
  DType dtype() const { return GetParam().dtype; }

  // Decodes all heads and returns [samples * max_boxes] boxes for each. site_of is the table from cells to rows, on the
  // device. If site_of is null, the heads' outputs are images.
  std::vector<std::vector<BoxRow>> Decode(int32_t num_samples, const std::vector<CenterHead>& heads,
                                          const int32_t* site_of) {
    const DeviceArray<uint32_t> num_not_finite(device(), std::vector<uint32_t>(static_cast<size_t>(num_samples), 0));
    CenterHeadParams params{.num_samples = num_samples,
                            .dtype = dtype(),
                            .num_heads = static_cast<int32_t>(heads.size()),
                            .site_of = site_of,
                            .num_not_finite = num_not_finite.data()};
    std::vector<std::unique_ptr<DeviceArray<float>>> boxes;
    for (size_t i = 0; i < heads.size(); ++i) {
      const auto values = static_cast<size_t>(num_samples * heads[i].max_boxes) * kBoxPitch;
      boxes.push_back(std::make_unique<DeviceArray<float>>(device(), values));
      params.heads[i] = heads[i];
      params.heads[i].boxes = boxes.back()->data();
    }
    if (device() == Device::kCpu) {
      ThreadPool pool(3);
      cpu::DecodeCenterHeads(params, pool);
    } else if constexpr (kHasCuda) {
      const DeviceArray<char> workspace(device(), cuda::CenterHeadWorkspaceBytes(params));
      params.workspace = workspace.data();
      ExpectCudaSuccess(cuda::DecodeCenterHeads(params, TestStream()));
      support::Synchronize();
    }
    std::vector<std::vector<BoxRow>> rows;
    for (const auto& of_head : boxes) rows.push_back(BoxRowsOf(of_head->ToHost()));
    num_not_finite_ = num_not_finite.ToHost();
    return rows;
  }

  std::vector<uint32_t> num_not_finite_;  // of the last decoding, by sample
};
INSTANTIATE_TEST_SUITE_P(Grounds, CenterHeadSitesTest, AllGrounds(), GroundName);

// Rows of sites, in any order, must give the same boxes, bit by bit, as images in which every cell without a site has a
// logit of -infinity.
TEST_P(CenterHeadSitesTest, AreImagesWithoutTheOtherCells) {
  constexpr int32_t kSamples = 3, kRows = 20, kColumns = 70, kClasses = 2;
  constexpr int64_t kCells = int64_t{kSamples} * kRows * kColumns;
  Random random(11);
  const std::vector<int64_t> channels = {kClasses, 2, 1, 3, 2, 2};
  for (const double occupancy : {0.0, 0.02, 0.5, 1.0}) {
    std::vector<int64_t> cells;  // the cell of each row's site
    for (int64_t cell = 0; cell < kCells; ++cell) {
      if (cell / (kRows * kColumns) != 1 && random.Chance(occupancy)) cells.push_back(cell);  // sample 1 has none
    }
    std::shuffle(cells.begin(), cells.end(), random.engine());
    std::vector<int32_t> site_of(static_cast<size_t>(kCells), -1);
    for (size_t row = 0; row < cells.size(); ++row)
      site_of[static_cast<size_t>(cells[row])] = static_cast<int32_t>(row);
    DeviceImages memory(device(), dtype());
    std::vector<ImageChannels> images, rows;
    for (size_t i = 0; i < channels.size(); ++i) {
      const auto width = static_cast<size_t>(channels[i]);
      std::vector<float> of_sites = random.Floats(static_cast<int64_t>(cells.size()) * channels[i], dtype());
      if (i == 0 && !of_sites.empty()) of_sites[0] = kNan;
      std::vector<float> of_cells(static_cast<size_t>(kCells) * width, i == 0 ? -kInfinity : 0.0f);
      for (size_t row = 0; row < cells.size(); ++row) {
        std::copy_n(&of_sites[row * width], width, &of_cells[static_cast<size_t>(cells[row]) * width]);
      }
      images.push_back(memory.Add(of_cells, channels[i]));
      rows.push_back(memory.Add(of_sites, channels[i]));
    }
    const DeviceArray<int32_t> table(device(), site_of);
    for (const auto convention : {CenterHeadConvention::kOpenPcdet, CenterHeadConvention::kDet3d}) {
      const auto head_of = [&](const std::vector<ImageChannels>& read) {
        return CenterHead{.convention = convention,
                          .num_rows = kRows,
                          .num_columns = kColumns,
                          .num_classes = kClasses,
                          .class_ids = {4, 1},
                          .heatmap = read[0],
                          .center = read[1],
                          .height = read[2],
                          .dim = read[3],
                          .rot = read[4],
                          .vel = read[5],
                          .stride = 8,
                          .voxel_size = {0.1f, 0.2f},
                          .range_min = {-10, 5},
                          .score_threshold = 0.4f,
                          .center_min = {-100, -100, -0.9f},
                          .center_max = {100, 100, 0.9f},
                          .max_boxes = 60};
      };
      const auto expected = Decode(kSamples, {head_of(images)}, nullptr);
      const auto boxes = Decode(kSamples, {head_of(rows), head_of(rows)}, table.data());
      EXPECT_EQ(boxes[0], expected[0]);
      EXPECT_EQ(boxes[1], expected[0]);
      EXPECT_EQ(std::count_if(boxes[0].begin(), boxes[0].end(), IsBox) > 20, occupancy > 0);
      // Both heads count the one NaN. Cells without a site are not counted.
      const uint32_t num_broken = cells.empty() ? 0 : 2;
      EXPECT_EQ(std::accumulate(num_not_finite_.begin(), num_not_finite_.end(), 0u), num_broken);
    }
  }
}

}  // namespace
}  // namespace voxserve::kernels::center_head_sites_test
