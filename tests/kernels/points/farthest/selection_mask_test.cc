// Tests SelectionMask, which marks the points that a network reads: samples have some, all or none of their points
// selected, or more were asked for than exist.

#include "kernels/points/farthest/selection_mask.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "kernels/points/farthest/farthest_point_sample.h"
#include "tests/support/test_device.h"

namespace voxserve::kernels::selection_mask_test {
namespace {

using support::Device;
using support::DeviceArray;
using ::testing::ElementsAreArray;

class SelectionMaskTest : public ::testing::TestWithParam<Device> {
 protected:
  struct Batch {
    std::vector<int64_t> point_begin;
    std::vector<uint8_t> is_valid;
    std::vector<int64_t> selected_begin;
    std::vector<int32_t> selected;
    std::vector<int64_t> is_restricted;
  };

  std::vector<uint8_t> MaskOf(const Batch& batch) {
    const DeviceArray<int64_t> point_begin(GetParam(), batch.point_begin);
    const DeviceArray<uint8_t> is_valid(GetParam(), batch.is_valid);
    const DeviceArray<int64_t> selected_begin(GetParam(), batch.selected_begin);
    const DeviceArray<int32_t> selected(GetParam(), batch.selected);
    const DeviceArray<int64_t> is_restricted(GetParam(), batch.is_restricted);
    const DeviceArray<uint8_t> mask(GetParam(), batch.is_valid.size());
    const SelectionMaskParams params{.num_points = batch.point_begin.back(),
                                     .num_samples = static_cast<int32_t>(batch.is_restricted.size()),
                                     .point_begin = point_begin.data(),
                                     .is_valid = is_valid.data(),
                                     .num_selected = batch.selected_begin.back(),
                                     .selected_begin = selected_begin.data(),
                                     .selected = selected.data(),
                                     .is_restricted = is_restricted.data(),
                                     .mask = mask.data()};
    if (GetParam() == Device::kCpu) {
      ThreadPool pool(2);
      cpu::SelectionMask(params, pool);
    } else if constexpr (kHasCuda) {
      support::ExpectCudaSuccess(cuda::SelectionMask(params, support::TestStream()));
      support::Synchronize();
    }
    return mask.ToHost();
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, SelectionMaskTest, support::AllDevices(), support::DeviceName);

TEST_P(SelectionMaskTest, SamplesOfEveryKindInOneBatch) {
  SKIP_WITHOUT(GetParam());
  const std::vector<uint8_t> mask =
      MaskOf({.point_begin = {0, 4, 4, 8, 11, 13},
              .is_valid = {1, 0, 1, 1, /**/ 1, 0, 1, 1, /**/ 1, 0, 1, /**/ 0, 1},
              // Sample 0 is restricted to two points. Sample 1 has no points. Sample 2 is not restricted, so its
              // selection does not count. For sample 3 more points were asked for than exist, and for sample 4 none, so
              // the network reads all their valid points.
              .selected_begin = {0, 2, 2, 5, 8, 8},
              .selected = {3, 0, /**/ 0, 2, 3, /**/ kNothingSelected, kNothingSelected, kNothingSelected},
              .is_restricted = {1, 1, 0, 1, 1}});
  EXPECT_THAT(mask, ElementsAreArray({1, 0, 0, 1, /**/ 1, 0, 1, 1, /**/ 1, 0, 1, /**/ 0, 1}));
}

TEST_P(SelectionMaskTest, PointsSelectedTwice) {
  SKIP_WITHOUT(GetParam());
  const std::vector<uint8_t> mask = MaskOf({.point_begin = {0, 3},
                                            .is_valid = {1, 1, 1},
                                            .selected_begin = {0, 3},
                                            .selected = {2, 0, 0},
                                            .is_restricted = {1}});
  EXPECT_THAT(mask, ElementsAreArray({1, 0, 1}));
}

TEST_P(SelectionMaskTest, ManyPoints) {
  SKIP_WITHOUT(GetParam());
  constexpr int64_t kPoints = 3000;
  Batch batch{.point_begin = {0, kPoints, 2 * kPoints},
              .is_valid = std::vector<uint8_t>(2 * kPoints, 1),
              .selected_begin = {0, kPoints / 2, kPoints},
              .is_restricted = {1, 1}};
  for (int sample = 0; sample < 2; ++sample) {
    for (int32_t i = 0; i < kPoints / 2; ++i) batch.selected.push_back(2 * i + sample);
  }
  const std::vector<uint8_t> mask = MaskOf(batch);
  for (size_t i = 0; i < mask.size(); ++i) EXPECT_EQ(mask[i], i % 2 == (i < kPoints ? 0u : 1u)) << i;
}

}  // namespace
}  // namespace voxserve::kernels::selection_mask_test
