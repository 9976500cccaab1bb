#pragma once

// Helpers for tests and benchmarks of farthest point sampling. They make clouds, put them on a device, and select
// points with the serial algorithm, with whose results tests compare. Compile targets that include this header with
// -ffp-contract=off: a fused multiply-add would round distances in another way than the kernels do.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "kernels/points/farthest/farthest_point_sample.h"
#include "tests/support/test_device.h"

namespace voxserve::kernels::fixtures {

using support::Device;
using support::DeviceArray;

// A batch of B clouds with N points in all, on the host. A row is a point; its first three values are x, y and z.
struct PointClouds {
  int32_t pitch = 3;
  std::vector<float> rows;  // [N, pitch]
  std::vector<int64_t> point_begin = {0};
  std::vector<int64_t> selected_begin = {0};
  std::vector<int64_t> starts;    // [B] or empty
  std::vector<uint8_t> is_valid;  // [N] or empty

  // Adds a cloud, from which num_selected points are to be selected. values: [n, pitch].
  void Add(const std::vector<float>& values, int64_t num_selected) {
    rows.insert(rows.end(), values.begin(), values.end());
    point_begin.push_back(static_cast<int64_t>(rows.size()) / pitch);
    selected_begin.push_back(selected_begin.back() + num_selected);
  }

  int32_t num_samples() const { return static_cast<int32_t>(point_begin.size()) - 1; }
  int64_t NumPoints(int32_t sample) const {
    return point_begin[static_cast<size_t>(sample) + 1] - point_begin[static_cast<size_t>(sample)];
  }
  int64_t NumSelected(int32_t sample) const {
    return selected_begin[static_cast<size_t>(sample) + 1] - selected_begin[static_cast<size_t>(sample)];
  }
  int64_t MaxSamplePoints() const {
    int64_t most = 0;
    for (int32_t sample = 0; sample < num_samples(); ++sample) most = std::max(most, NumPoints(sample));
    return most;
  }
};

// The outputs of FarthestPointSample (kernels/points/farthest/farthest_point_sample.h).
struct Selection {
  std::vector<int64_t> num_valid;
  std::vector<int32_t> selected;
  std::vector<float> distances;
};

// Selects the points of one cloud by the definition in kernels/points/farthest/farthest_point_sample.h.
inline void SelectSample(const PointClouds& clouds, int32_t sample, Selection& selection) {
  const auto begin = static_cast<size_t>(clouds.point_begin[static_cast<size_t>(sample)]);
  const auto num_points = static_cast<size_t>(clouds.NumPoints(sample));
  const auto first = static_cast<size_t>(clouds.selected_begin[static_cast<size_t>(sample)]);
  const auto num_selected = static_cast<size_t>(clouds.NumSelected(sample));
  const int64_t start = clouds.starts.empty() ? 0 : clouds.starts[static_cast<size_t>(sample)];
  const auto point = [&](size_t i) { return clouds.rows.data() + (begin + i) * static_cast<size_t>(clouds.pitch); };

  std::vector<size_t> valid;
  for (size_t i = 0; i < num_points; ++i) {
    if (!clouds.is_valid.empty() && clouds.is_valid[begin + i] == 0) continue;
    if (std::isfinite(point(i)[0]) && std::isfinite(point(i)[1]) && std::isfinite(point(i)[2])) valid.push_back(i);
  }
  selection.num_valid[static_cast<size_t>(sample)] = static_cast<int64_t>(valid.size());
  if (num_selected == 0) return;
  if (num_selected > valid.size() || start < 0 || start >= static_cast<int64_t>(num_points)) {
    std::fill_n(selection.selected.begin() + static_cast<int64_t>(first), num_selected, kNothingSelected);
    std::fill_n(selection.distances.begin() + static_cast<int64_t>(first), num_selected, -1.0F);
    return;
  }
  std::vector<float> x, y, z;
  for (const size_t i : valid) x.push_back(point(i)[0]), y.push_back(point(i)[1]), z.push_back(point(i)[2]);
  std::vector<float> distance(valid.size(), std::numeric_limits<float>::infinity());
  auto next =
      static_cast<size_t>(std::lower_bound(valid.begin(), valid.end(), static_cast<size_t>(start)) - valid.begin());
  if (next == valid.size()) next = 0;
  for (size_t s = 0;; ++s) {
    selection.selected[first + s] = static_cast<int32_t>(valid[next]);
    selection.distances[first + s] = distance[next];
    if (s + 1 == num_selected) return;
    const float from_x = x[next], from_y = y[next], from_z = z[next];
    next = 0;
    float furthest = -1;
    for (size_t i = 0; i < valid.size(); ++i) {
      const float dx = x[i] - from_x, dy = y[i] - from_y, dz = z[i] - from_z;
      distance[i] = std::min(distance[i], (dx * dx + dy * dy) + dz * dz);
      if (distance[i] > furthest) {
        furthest = distance[i];
        next = i;
      }
    }
  }
}

inline Selection SelectSerially(const PointClouds& clouds) {
  Selection selection{.num_valid = std::vector<int64_t>(static_cast<size_t>(clouds.num_samples())),
                      .selected = std::vector<int32_t>(static_cast<size_t>(clouds.selected_begin.back())),
                      .distances = std::vector<float>(static_cast<size_t>(clouds.selected_begin.back()))};
  for (int32_t sample = 0; sample < clouds.num_samples(); ++sample) SelectSample(clouds, sample, selection);
  return selection;
}

// Owns a batch and the outputs of FarthestPointSample on a device.
class DeviceClouds {
 public:
  // Copies the clouds to the device. Later changes of `clouds` have no effect.
  DeviceClouds(Device device, const PointClouds& clouds)
      : device_(device),
        rows_(device, clouds.rows),
        point_begin_(device, clouds.point_begin),
        selected_begin_(device, clouds.selected_begin),
        starts_(device, clouds.starts),
        is_valid_(device, clouds.is_valid),
        num_valid_(device, static_cast<size_t>(clouds.num_samples())),
        selected_(device, static_cast<size_t>(clouds.selected_begin.back())),
        distances_(device, static_cast<size_t>(clouds.selected_begin.back())),
        params_{.num_points = clouds.point_begin.back(),
                .max_sample_points = clouds.MaxSamplePoints(),
                .num_samples = clouds.num_samples(),
                .point_begin = point_begin_.data(),
                .points = ConstRows::Packed(rows_.data(), DType::kFloat32, clouds.point_begin.back(), clouds.pitch),
                .is_valid = clouds.is_valid.empty() ? nullptr : is_valid_.data(),
                .selected_begin = selected_begin_.data(),
                .starts = clouds.starts.empty() ? nullptr : starts_.data(),
                .num_valid = num_valid_.data(),
                .selected = selected_.data(),
                .distances = distances_.data()},
        workspace_(device, WorkspaceBytes()) {
    params_.workspace = workspace_.data();
  }

  FarthestPointSampleParams& params() { return params_; }
  void RunOnCpu(ThreadPool& pool) { cpu::FarthestPointSample(params_, pool); }
  cudaError_t Launch([[maybe_unused]] const cuda::FarthestPointLayout& layout) {
    if constexpr (kHasCuda) return cuda::FarthestPointSample(params_, support::TestStream(), layout);
    return cudaError_t{};
  }
  Selection ToHost() const { return {num_valid_.ToHost(), selected_.ToHost(), distances_.ToHost()}; }

 private:
  size_t WorkspaceBytes() const {
    if (device_ == Device::kCpu) return cpu::FarthestPointSampleWorkspaceBytes(params_);
    if constexpr (kHasCuda) return cuda::FarthestPointSampleWorkspaceBytes(params_);
    return 0;
  }

  Device device_;
  DeviceArray<float> rows_;
  DeviceArray<int64_t> point_begin_, selected_begin_, starts_;
  DeviceArray<uint8_t> is_valid_;
  DeviceArray<int64_t> num_valid_;
  DeviceArray<int32_t> selected_;
  DeviceArray<float> distances_;
  FarthestPointSampleParams params_;
  DeviceArray<char> workspace_;
};

// Returns x, y, z and intensity of every point, or an empty vector if the file does not exist.
inline std::vector<float> ReadKittiScan(const std::string& path) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  if (error) return {};
  std::vector<float> values(bytes / sizeof(float) / 4 * 4);
  std::ifstream(path, std::ios::binary)
      .read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(float)));
  return values;
}

// Returns num_points evenly chosen rows (of 4 values) of a scan, beginning with row `first`.
inline std::vector<float> Thinned(const std::vector<float>& scan, int64_t num_points, int64_t first = 0) {
  const auto num_rows = static_cast<int64_t>(scan.size() / 4);
  std::vector<float> values;
  for (int64_t i = 0; i < num_points; ++i) {
    const auto row = scan.begin() + (i * num_rows / num_points + first) % num_rows * 4;
    values.insert(values.end(), row, row + 4);
  }
  return values;
}

// Returns every point with integer coordinates from 0 to size - 1, so that many distances are equal. [size^3, pitch]
inline std::vector<float> Lattice(int size, int64_t pitch) {
  std::vector<float> values;
  for (int i = 0; i < size * size * size; ++i) {
    for (const int coordinate : {i % size, i / size % size, i / size / size}) {
      values.push_back(static_cast<float>(coordinate));
    }
    values.resize(values.size() + static_cast<size_t>(pitch - 3), std::numeric_limits<float>::quiet_NaN());
  }
  return values;
}

}  // namespace voxserve::kernels::fixtures
