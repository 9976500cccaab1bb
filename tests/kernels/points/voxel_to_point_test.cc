// Tests the kernel that copies a row (labels or scores) of each point's voxel to the point, on every device.

#include "kernels/points/voxel_to_point.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/kernels/core/feature_testing.h"

namespace voxserve::kernels::voxel_to_point_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

void RunVoxelToPoint(Device device, const VoxelToPointParams& params) {
  if (device == Device::kCpu) {
    ThreadPool pool(2);
    cpu::VoxelToPoint(params, pool);
    return;
  }
  if constexpr (kHasCuda) ExpectCudaSuccess(cuda::VoxelToPoint(params, TestStream()));
}

class VoxelToPointTest : public testing::TestWithParam<Device> {};

TEST_P(VoxelToPointTest, PointsWithoutAVoxelGetTheLabelOrScoresOfZero) {
  SKIP_WITHOUT(GetParam());
  const DeviceArray<int32_t> rows(GetParam(), {1, -1, 0, 1, -3});
  const DeviceArray<float> scores(GetParam(), {1, 2, 9, 3, 4, 9});  // two rows of two, a pitch of three
  const DeviceArray<float> point_scores(GetParam(), 10);
  VoxelToPointParams params{.point_to_voxel = rows.data()};
  params.rows = ConstRows::Packed(scores.data(), DType::kFloat32, 2, 3).Columns(0, 2);
  params.points = Rows::Packed(point_scores.data(), DType::kFloat32, 5, 2);
  RunVoxelToPoint(GetParam(), params);
  EXPECT_THAT(point_scores.ToHost(), testing::ElementsAre(3, 4, 0, 0, 1, 2, 3, 4, 0, 0));

  const DeviceArray<uint8_t> bytes(GetParam(), {7, 0, 0, 0, 8, 0, 0, 0}), point_bytes(GetParam(), 5);
  params.rows = ConstRows::Packed(bytes.data(), DType::kUint8, 2, 4).Columns(0, 1);
  params.fill_label = 255;
  params.points = Rows::Packed(point_bytes.data(), DType::kUint8, 5, 1);
  RunVoxelToPoint(GetParam(), params);
  EXPECT_THAT(point_bytes.ToHost(), testing::ElementsAre(8, 255, 7, 8, 255));

  const DeviceArray<uint16_t> words(GetParam(), {700, 800}), point_words(GetParam(), 5);
  params.rows = ConstRows::Packed(words.data(), DType::kUint16, 2, 1);
  params.fill_label = 65535;
  params.points = Rows::Packed(point_words.data(), DType::kUint16, 5, 1);
  RunVoxelToPoint(GetParam(), params);
  EXPECT_THAT(point_words.ToHost(), testing::ElementsAre(800, 65535, 700, 800, 65535));
}

// Only the GPU knows how many points there are: the rows behind them stay as they are, and count nothing.
TEST(VoxelToPointCudaTest, AnswersThePointsThatThereAre) {
  SKIP_WITHOUT(Device::kCuda);
  for (const int64_t num_points : {0, 1, 4, 5, 6}) {
    SCOPED_TRACE(num_points);
    const DeviceArray<int64_t> point_begin(Device::kCuda, {0, std::min<int64_t>(num_points, 2), num_points});
    const DeviceArray<int32_t> voxels(Device::kCuda, {1, -1, 0, 1, 1, 0, 1, 1});
    const DeviceArray<uint8_t> labels(Device::kCuda, {7, 255}), answers(Device::kCuda, std::vector<uint8_t>(8, 99));
    const DeviceArray<uint32_t> num_filled(Device::kCuda, {0, 0});
    VoxelToPointParams params{.point_to_voxel = voxels.data(),
                              .rows = ConstRows::Packed(labels.data(), DType::kUint8, 2, 1),
                              .fill_label = 255,
                              .points = Rows::Packed(answers.data(), DType::kUint8, 8, 1),
                              .num_filled = num_filled.data(),
                              .point_begin = point_begin.data(),
                              .num_samples = 2};
    params.points.num_rows = point_begin.data() + 2;
    RunVoxelToPoint(Device::kCuda, params);
    std::vector<uint8_t> expected = {255, 255, 7, 255, 255, 7, 255, 255};
    std::fill(expected.begin() + num_points, expected.end(), uint8_t{99});
    EXPECT_EQ(answers.ToHost(), expected);
    const uint32_t of_second = num_points >= 5 ? 2 : num_points == 4 ? 1 : 0;  // points 3 and 4
    EXPECT_THAT(num_filled.ToHost(), testing::ElementsAre(num_points > 0 ? 1u : 0u, of_second));

    const DeviceArray<float> scores(Device::kCuda, {1, 2}), point_scores(Device::kCuda, std::vector<float>(8, 99));
    params.rows = ConstRows::Packed(scores.data(), DType::kFloat32, 2, 1);
    params.points = Rows::Packed(point_scores.data(), DType::kFloat32, 8, 1);
    params.points.num_rows = point_begin.data() + 2;
    RunVoxelToPoint(Device::kCuda, params);
    std::vector<float> expected_scores = {2, 0, 1, 2, 2, 1, 2, 2};
    std::fill(expected_scores.begin() + num_points, expected_scores.end(), 99.0F);
    EXPECT_EQ(point_scores.ToHost(), expected_scores);
  }
}

TEST_P(VoxelToPointTest, PointsKeepTheirOwnRows) {
  SKIP_WITHOUT(GetParam());
  const DeviceArray<int32_t> voxels(GetParam(), {9, -1, 0, -3});
  const DeviceArray<float> scores(GetParam(), {1, 2, 9, 3, 4, 9, 5, 6, 9, 7, 8, 9});  // a pitch of three
  const DeviceArray<float> answered(GetParam(), 8);
  RunVoxelToPoint(GetParam(), {.point_to_voxel = voxels.data(),
                               .rows_are_points = true,
                               .rows = ConstRows::Packed(scores.data(), DType::kFloat32, 4, 3).Columns(0, 2),
                               .points = Rows::Packed(answered.data(), DType::kFloat32, 4, 2)});
  EXPECT_THAT(answered.ToHost(), testing::ElementsAre(1, 2, 0, 0, 5, 6, 0, 0));
}

// Labels may begin anywhere, since answers of several samples stand behind each other.
template <typename Label>
void ExpectLabelsAtAnyAddress(Device device, DType dtype) {
  constexpr Label kBefore = 77, kFill = 200;
  const DeviceArray<Label> rows(device, {3, 4, 5});
  for (const size_t num_points : {1, 3, 4, 5, 8, 1027}) {
    std::vector<int32_t> voxels;
    std::vector<Label> expected;
    for (size_t i = 0; i < num_points; ++i) {
      voxels.push_back(static_cast<int32_t>(i * 7 % 4) - 1);
      expected.push_back(voxels.back() < 0 ? kFill : static_cast<Label>(3 + voxels.back()));
    }
    const DeviceArray<int32_t> device_voxels(device, voxels);
    for (size_t begin = 0; begin < 5; ++begin) {
      const DeviceArray<Label> points(device, std::vector<Label>(begin + num_points + 4, kBefore));
      RunVoxelToPoint(device,
                      {.point_to_voxel = device_voxels.data(),
                       .rows = ConstRows::Packed(rows.data(), dtype, 3, 1),
                       .fill_label = kFill,
                       .points = Rows::Packed(points.data() + begin, dtype, static_cast<int64_t>(num_points), 1)});
      std::vector<Label> all(begin, kBefore);
      all.insert(all.end(), expected.begin(), expected.end());
      all.insert(all.end(), 4, kBefore);
      ASSERT_EQ(points.ToHost(), all) << num_points << " points from " << begin;
    }
  }
}

TEST_P(VoxelToPointTest, LabelsAtAnyAddress) {
  SKIP_WITHOUT(GetParam());
  ExpectLabelsAtAnyAddress<uint8_t>(GetParam(), DType::kUint8);
  ExpectLabelsAtAnyAddress<uint16_t>(GetParam(), DType::kUint16);
}

// If a point reads a voxel whose label equals the fill label, the point is counted for its sample.
void ExpectCountsOfNone(Device device, const std::vector<int64_t>& point_begin, double share_of_none) {
  Random random(6);
  const int64_t first_point = 2, num_points = point_begin.back() - first_point;
  std::vector<uint32_t> counts_before;  // the kernel adds its counts to these
  for (size_t sample = 1; sample < point_begin.size(); ++sample) {
    counts_before.push_back(static_cast<uint32_t>(10 * sample));
  }
  for (const bool rows_are_points : {false, true}) {
    const int64_t num_rows = rows_are_points ? num_points : 40;
    std::vector<uint16_t> labels(static_cast<size_t>(num_rows));
    for (uint16_t& label : labels) label = random.Chance(share_of_none) ? 300 : 4;
    std::vector<int32_t> voxels(static_cast<size_t>(num_points));
    std::vector<uint16_t> expected;
    std::vector<uint32_t> expected_counts = counts_before;
    for (int64_t i = 0; i < num_points; ++i) {
      int32_t& voxel = voxels[static_cast<size_t>(i)];
      voxel = std::uniform_int_distribution<int32_t>(-3, 39)(random.engine());
      const auto row = static_cast<size_t>(rows_are_points ? i : std::max(voxel, 0));
      expected.push_back(voxel < 0 ? 300 : labels[row]);
      const auto sample = std::upper_bound(point_begin.begin(), point_begin.end(), first_point + i) - 1;
      if (voxel >= 0 && labels[row] == 300) ++expected_counts[static_cast<size_t>(sample - point_begin.begin())];
    }
    const DeviceArray<int32_t> device_voxels(device, voxels);
    const DeviceArray<uint16_t> device_labels(device, labels), points(device, expected.size());
    const DeviceArray<int64_t> device_begin(device, point_begin);
    const DeviceArray<uint32_t> counts(device, counts_before);
    VoxelToPointParams params{.point_to_voxel = device_voxels.data(),
                              .rows_are_points = rows_are_points,
                              .rows = ConstRows::Packed(device_labels.data(), DType::kUint16, num_rows, 1),
                              .fill_label = 300,
                              .points = Rows::Packed(points.data(), DType::kUint16, num_points, 1),
                              .num_filled = counts.data(),
                              .point_begin = device_begin.data(),
                              .num_samples = static_cast<int32_t>(point_begin.size()) - 1,
                              .first_point = first_point};
    RunVoxelToPoint(device, params);
    EXPECT_EQ(points.ToHost(), expected);
    EXPECT_EQ(counts.ToHost(), expected_counts);
    params.num_filled = nullptr;
    RunVoxelToPoint(device, params);
    EXPECT_EQ(points.ToHost(), expected);
    EXPECT_EQ(counts.ToHost(), expected_counts);
  }
}

TEST_P(VoxelToPointTest, LabelsThatAreNoneAreCountedBySample) {
  SKIP_WITHOUT(GetParam());
  std::vector<int64_t> small_samples = {0};
  for (int64_t sample = 0; sample < 300; ++sample) small_samples.push_back(small_samples.back() + sample % 7);
  small_samples.push_back(20'000);
  for (const double share : {0.0, 0.3, 1.0}) {
    ExpectCountsOfNone(GetParam(), {0, 3, 3, 700, 20'000}, share);
    ExpectCountsOfNone(GetParam(), small_samples, share);
  }
}

TEST_P(VoxelToPointTest, ScoresThatAreNotFiniteAreZero) {
  SKIP_WITHOUT(GetParam());
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const int32_t channels : {1, 3, 4, 20}) {
    const int64_t num_rows = 2 * channels;
    std::vector<float> scores(static_cast<size_t>(num_rows * channels), 0.5f);
    std::vector<float> expected = scores;
    for (int64_t c = 0; c < channels; ++c) {  // value c of row 2 c is not finite
      const auto begin = static_cast<size_t>(2 * c * channels);
      const float broken[] = {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity};
      scores[begin + static_cast<size_t>(c)] = broken[c % 3];
      std::fill_n(expected.begin() + static_cast<int64_t>(begin), channels, 0.0f);
    }
    std::vector<int32_t> voxels;
    for (int32_t row = 0; row < num_rows; ++row) voxels.push_back(row);
    const DeviceArray<int32_t> device_voxels(GetParam(), voxels);
    const DeviceArray<float> device_scores(GetParam(), scores), points(GetParam(), expected.size());
    RunVoxelToPoint(GetParam(), {.point_to_voxel = device_voxels.data(),
                                 .rows = ConstRows::Packed(device_scores.data(), DType::kFloat32, num_rows, channels),
                                 .points = Rows::Packed(points.data(), DType::kFloat32, num_rows, channels)});
    EXPECT_EQ(points.ToHost(), expected) << channels << " channels";
  }
}

TEST_P(VoxelToPointTest, RowsOfAnyWidth) {
  SKIP_WITHOUT(GetParam());
  Random random(5);
  for (const int64_t num_points : {0, 1, 1000}) {
    for (const int32_t channels : {1, 3, 4, 19, 20}) {
      const int64_t num_voxels = 50;
      const int32_t pitch = channels == 4 ? 4 : channels + 1;
      const std::vector<float> voxels = random.Floats(num_voxels * pitch);
      std::vector<int32_t> rows(static_cast<size_t>(num_points));
      std::vector<float> expected;
      for (int32_t& row : rows) {
        row = std::uniform_int_distribution<int32_t>(-1, num_voxels - 1)(random.engine());
        for (int64_t c = 0; c < channels; ++c) {
          expected.push_back(row < 0 ? 0.0f : voxels[static_cast<size_t>(row * pitch + c)]);
        }
      }
      const DeviceArray<int32_t> device_rows(GetParam(), rows);
      const DeviceArray<float> device_voxels(GetParam(), voxels), points(GetParam(), expected.size());
      RunVoxelToPoint(
          GetParam(),
          {.point_to_voxel = device_rows.data(),
           .rows = ConstRows::Packed(device_voxels.data(), DType::kFloat32, num_voxels, pitch).Columns(0, channels),
           .points = Rows::Packed(points.data(), DType::kFloat32, num_points, channels)});
      EXPECT_EQ(points.ToHost(), expected) << num_points << " points, " << channels << " channels";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, VoxelToPointTest, support::AllDevices(), support::DeviceName);

}  // namespace
}  // namespace voxserve::kernels::voxel_to_point_test
