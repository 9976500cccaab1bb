#include "tests/bench/varied_scans.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <numbers>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/tensor/float16.h"
#include "tests/bench/or_die.h"
#include "tests/support/paths.h"

namespace voxserve::bench {
namespace {

constexpr std::array<const char*, 3> kAxes = {"x", "y", "z"};
using Position = std::array<float, 3>;

// Returns a number spread evenly over [0, 1). The standard library's distributions differ between implementations; its
// engines do not.
double Uniform(std::mt19937& engine) { return engine() * 0x1p-32; }

// Returns the fields x, y and z.
std::array<PointField, 3> AxesOf(const PointCloud& cloud) {
  std::array<PointField, 3> axes;
  for (size_t axis = 0; axis < axes.size(); ++axis) {
    const PointField* const field = cloud.FindField(kAxes[axis]);
    if (field == nullptr || field->scale != 1 || field->shift != 0 ||
        (field->type != PointFieldType::kFloat32 && field->type != PointFieldType::kFloat16)) {
      std::cerr << "the cloud has no " << kAxes[axis] << " in float32 or float16 metres" << std::endl;
      std::exit(1);
    }
    axes[axis] = *field;
  }
  return axes;
}

std::vector<Position> PositionsOf(const PointCloud& cloud) {
  std::vector<Position> positions(cloud.num_points());
  const std::array<PointField, 3> axes = AxesOf(cloud);
  for (size_t axis = 0; axis < axes.size() && !positions.empty(); ++axis) {
    cloud.ReadField(*cloud.FindField(kAxes[axis]), 0, cloud.num_points(), positions.data()->data() + axis,
                    /*out_step=*/kAxes.size());
  }
  return positions;
}

// Writes the position into the axes' fields of one point, whose bytes begin at `point`.
void Write(const Position& position, const std::array<PointField, 3>& axes, char* point) {
  for (size_t axis = 0; axis < axes.size(); ++axis) {
    if (axes[axis].type == PointFieldType::kFloat16) {
      const uint16_t half = FloatToFloat16(position[axis]);
      std::memcpy(point + axes[axis].offset, &half, sizeof(half));
    } else {
      std::memcpy(point + axes[axis].offset, &position[axis], sizeof(float));
    }
  }
}

PointCloud WithPoints(const PointCloud& like, std::string bytes) {
  PointCloudLayout layout = like.layout();
  layout.num_points = bytes.size() / layout.point_step;
  return OrDie(PointCloud::Create(std::move(layout), std::move(bytes)));
}

// Returns the points for which `move` returns true, at the positions to which it moves them.
PointCloud Moved(const PointCloud& cloud, const std::function<bool(Position&)>& move) {
  std::vector<Position> positions = PositionsOf(cloud);
  const std::array<PointField, 3> axes = AxesOf(cloud);
  const size_t step = cloud.layout().point_step;
  std::string bytes;
  bytes.reserve(cloud.bytes().size());
  for (size_t i = 0; i < positions.size(); ++i) {
    if (!move(positions[i])) continue;
    bytes += cloud.bytes().substr(i * step, step);
    Write(positions[i], axes, bytes.data() + bytes.size() - step);
  }
  return WithPoints(cloud, std::move(bytes));
}

}  // namespace

PointCloud VariedScan(const PointCloud& scan, uint32_t seed) {
  std::mt19937 engine(seed);
  const double angle = 2 * std::numbers::pi * Uniform(engine);
  const double kept_share = 0.8 + 0.2 * Uniform(engine);
  std::array<double, 3> shift_m = {2, 2, 0.1};
  for (double& shift : shift_m) shift *= 2 * Uniform(engine) - 1;
  const double cosine = std::cos(angle), sine = std::sin(angle);
  return Moved(scan, [&](Position& position) {
    const auto [x, y, z] = position;
    position = {static_cast<float>(cosine * x - sine * y + shift_m[0]),
                static_cast<float>(sine * x + cosine * y + shift_m[1]), static_cast<float>(z + shift_m[2])};
    return Uniform(engine) < kept_share;
  });
}

std::vector<PointCloud> VariedScans(const std::vector<PointCloud>& frames, int count, uint32_t seed) {
  std::vector<PointCloud> scans;
  for (int i = 0; i < count; ++i) {
    scans.push_back(VariedScan(frames[static_cast<size_t>(i) % frames.size()], seed + static_cast<uint32_t>(i)));
  }
  return scans;
}

PointCloud Sector(const PointCloud& scan, double share) {
  std::vector<float> angles;
  for (const Position& position : PositionsOf(scan)) angles.push_back(std::atan2(position[1], position[0]));
  const auto num_kept = std::min(angles.size(), static_cast<size_t>(share * static_cast<double>(angles.size())));
  if (num_kept == angles.size()) return scan;
  std::vector<float> sorted = angles;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(num_kept), sorted.end());
  const float end = sorted[num_kept];
  return Moved(scan, [end](const Position& position) { return std::atan2(position[1], position[0]) < end; });
}

PointCloud SideBySide(const std::vector<PointCloud>& clouds, float spacing_m) {
  const auto columns = static_cast<size_t>(std::ceil(std::sqrt(static_cast<double>(clouds.size()))));
  std::string bytes;
  for (size_t i = 0; i < clouds.size(); ++i) {
    bytes += Moved(clouds[i], [&](Position& position) {
               position[0] += spacing_m * static_cast<float>(i % columns);
               position[1] += spacing_m * static_cast<float>(i / columns);
               return true;
             }).bytes();
  }
  return WithPoints(clouds.front(), std::move(bytes));
}

PointCloud WithTime(const PointCloud& cloud) {
  std::vector<std::string> names;
  for (const PointField& field : cloud.layout().fields) names.push_back(field.name);
  names.emplace_back("t");
  const auto num_fields = static_cast<int64_t>(names.size());
  std::vector<float> values(cloud.num_points() * names.size());
  for (size_t f = 0; f + 1 < names.size(); ++f) {
    cloud.ReadField(cloud.layout().fields[f], 0, cloud.num_points(), values.data() + f, num_fields);
  }
  for (size_t i = 0; i < cloud.num_points(); ++i) {
    values[(i + 1) * names.size() - 1] = 0.1f * static_cast<float>(i % 3) - 0.05f;
  }
  return OrDie(PointCloud::FromFloats(names, values.data(), cloud.num_points()));
}

std::vector<PointCloud> DriveOf(const support::RealScan& scan) {
  std::vector<PointCloud> frames = {OrDie(support::ReadScan(scan.format, scan.path()))};
  for (const std::string& file : support::LaterFramesOf(scan)) {
    const std::string path = absl::StrCat(support::SharedData(), "/", file);
    if (std::filesystem::exists(path)) frames.push_back(OrDie(support::ReadScan(scan.format, path)));
  }
  return frames;
}

absl::Status WriteFloats(const PointCloud& cloud, const std::vector<std::string>& fields, const std::string& path) {
  std::vector<float> values(cloud.num_points() * fields.size());
  for (size_t f = 0; f < fields.size(); ++f) {
    const PointField* const field = cloud.FindField(fields[f]);
    if (field == nullptr) return absl::InvalidArgumentError(absl::StrCat("the cloud has no field ", fields[f]));
    cloud.ReadField(*field, 0, cloud.num_points(), values.data() + f, static_cast<int64_t>(fields.size()));
  }
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(float)));
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

}  // namespace voxserve::bench
