#pragma once

// Helpers for the tests of detection kernels. They copy the outputs of a detection head to a device, and convert boxes
// between rows of a test and the layout of the kernels (kernels/boxes/box_rows.h).

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <numbers>
#include <string>
#include <vector>

#include "kernels/boxes/box_candidates.h"
#include "kernels/boxes/box_rows.h"
#include "tests/kernels/core/feature_testing.h"
#include "tests/support/npz.h"
#include "tests/support/paths.h"
#include "tests/support/test_device.h"

namespace voxserve::kernels {

using BoxRow = std::vector<float>;  // the kBoxColumns values of one box

inline bool IsBox(const BoxRow& row) { return row[kBoxScore] != kNoBox; }

// Splits values [boxes, kBoxPitch] into boxes and drops the padding.
inline std::vector<BoxRow> BoxRowsOf(const std::vector<float>& values) {
  std::vector<BoxRow> rows;
  for (size_t i = 0; i < values.size(); i += kBoxPitch) {
    rows.emplace_back(values.begin() + static_cast<int64_t>(i), values.begin() + static_cast<int64_t>(i) + kBoxColumns);
  }
  return rows;
}

// Returns values [boxes, kBoxPitch]. The padding is NaN, since kernels must not read it.
inline std::vector<float> ValuesOf(const std::vector<BoxRow>& rows) {
  std::vector<float> values;
  for (const BoxRow& row : rows) {
    values.insert(values.end(), row.begin(), row.end());
    values.resize(values.size() + kBoxPitch - kBoxColumns, NAN);
  }
  return values;
}

// Returns the row that kernels write where there is no box.
inline BoxRow NoBoxRow() {
  BoxRow row(kBoxColumns, 0.0f);
  row[kBoxScore] = kNoBox;
  return row;
}

// Splits a stored array [..., columns] into boxes. The columns that it lacks are 0.
inline std::vector<BoxRow> BoxRowsOf(const support::NpyArray& array) {
  const float* const values = array.data<float>();
  std::vector<BoxRow> rows;
  for (int64_t i = 0; i < array.num_elements(); i += array.shape.back()) {
    rows.emplace_back(values + i, values + i + array.shape.back());
    rows.back().resize(kBoxColumns);
  }
  return rows;
}

// Expects equal boxes up to rounding. Two yaws also count as equal if they differ by a full turn.
inline void ExpectNearBoxes(const std::vector<BoxRow>& boxes, const std::vector<BoxRow>& expected) {
  ASSERT_EQ(boxes.size(), expected.size());
  for (size_t i = 0; i < boxes.size(); ++i) {
    for (size_t column = 0; column < kBoxColumns; ++column) {
      double difference = double{boxes[i][column]} - expected[i][column];
      if (column == kBoxYaw) difference = std::remainder(difference, 2 * std::numbers::pi);
      ASSERT_LE(std::abs(difference), 2e-5 + 2e-6 * std::abs(expected[i][column]))
          << "row " << i << " column " << column << ": " << boxes[i][column] << ", not " << expected[i][column];
    }
  }
}

// Returns the arrays of tests/golden/detection_heads.npz. If the file cannot be read, the test fails.
inline const std::map<std::string, support::NpyArray>& GoldenHeads() {
  static const auto* const golden = [] {
    auto arrays = support::ReadNpz(support::SourceDir() + "/tests/golden/detection_heads.npz");
    if (!arrays.ok()) ADD_FAILURE() << arrays.status().message();
    return new std::map<std::string, support::NpyArray>(arrays.ok() ? *std::move(arrays)
                                                                    : std::map<std::string, support::NpyArray>());
  }();
  return *golden;
}

// Owns the outputs of one detection head on a device: matrices with one row per cell of the image. Each has margins of
// other values before and after its columns, which kernels must not read.
class DeviceImages {
 public:
  DeviceImages(Device device, DType dtype) : device_(device), dtype_(dtype) {}

  // Adds an output. values: [cells of all samples, channels].
  ImageChannels Add(const std::vector<float>& values, int64_t channels) {
    Matrix matrix(static_cast<int64_t>(values.size()) / channels, channels, {.before = 2, .after = 3}, nullptr);
    for (int64_t i = 0; i < static_cast<int64_t>(values.size()); ++i) {
      matrix.at(i / channels, i % channels) = values[static_cast<size_t>(i)];
    }
    matrices_.push_back(std::make_unique<DeviceMatrix>(device_, dtype_, matrix));
    return {.data = matrices_.back()->data(), .pitch = matrices_.back()->pitch()};
  }
  ImageChannels Add(const support::NpyArray& array) { return Add(array.values<float>(), array.shape.back()); }

 private:
  Device device_;
  DType dtype_;
  std::vector<std::unique_ptr<DeviceMatrix>> matrices_;
};

}  // namespace voxserve::kernels
