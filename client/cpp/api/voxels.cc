#include "client/cpp/api/voxels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace voxserve::client {
namespace {

constexpr int kMaxAxes = 4;
constexpr std::array<const char*, kMaxAxes> kAxes = {"x", "y", "z", "t"};
constexpr int kKeyBits = 54;                  // of a server's key, divided equally among the axes, at most 32 bits each
constexpr int kMaxFields = 256;               // the server's limit for a cloud
constexpr int64_t kMargin = 128;              // cells that the server keeps free at both ends
constexpr int64_t kExact = int64_t{1} << 24;  // limit of exact integers in float32, which the server computes with

void AddField(const std::string& name, PointFieldType type, PointCloud* cloud) {
  PointField& field = *cloud->add_fields();
  field.set_name(name);
  field.set_offset(cloud->point_step());
  field.set_type(type);
  cloud->set_point_step(cloud->point_step() + static_cast<uint32_t>(SizeOf(type)));
}

}  // namespace

absl::StatusOr<PointCloud> PointCloudFromVoxels(absl::Span<const int32_t> coordinates, int num_axes,
                                                absl::Span<const float> features, int channels) {
  if (num_axes < 1 || num_axes > kMaxAxes) {
    return absl::InvalidArgumentError(absl::StrCat("num_axes is ", num_axes, ", must be 1 to ", kMaxAxes));
  }
  if (channels < 0) return absl::InvalidArgumentError(absl::StrCat("channels is ", channels, ", must be 0 or more"));
  if (channels > kMaxFields - num_axes) {
    return absl::InvalidArgumentError(
        absl::StrCat(num_axes, " axes and ", channels, " channels; a cloud has ", kMaxFields, " fields at most"));
  }
  const auto axes = static_cast<size_t>(num_axes), columns = static_cast<size_t>(channels);
  const size_t num_voxels = coordinates.size() / axes;
  if (coordinates.size() % axes != 0 || features.size() != num_voxels * columns) {
    return absl::InvalidArgumentError(absl::StrCat(coordinates.size(), " coordinates and ", features.size(),
                                                   " features are no voxels of ", axes, " axes and ", columns,
                                                   " channels"));
  }
  const int64_t half = int64_t{1} << (std::min(32, kKeyBits / num_axes) - 1);
  const int64_t lowest = std::max(-half + kMargin, -kExact), highest = std::min(half - 1 - kMargin, kExact);
  for (const int32_t coordinate : coordinates) {
    if (coordinate < lowest || coordinate > highest) {
      return absl::InvalidArgumentError(
          absl::StrCat("coordinate ", coordinate, " is not within ", lowest, " to ", highest));
    }
  }
  if (!std::all_of(features.begin(), features.end(), [](float value) { return std::isfinite(value); })) {
    return absl::InvalidArgumentError("features are not all finite");
  }
  absl::flat_hash_set<std::array<int32_t, kMaxAxes>> sites;
  PointCloud cloud;
  for (size_t axis = 0; axis < axes; ++axis) AddField(kAxes[axis], v1::POINT_FIELD_TYPE_INT32, &cloud);
  for (size_t i = 0; i < columns; ++i) AddField(absl::StrCat("f", i), v1::POINT_FIELD_TYPE_FLOAT32, &cloud);
  cloud.set_num_points(num_voxels);
  std::string& data = *cloud.mutable_data();
  data.resize(num_voxels * cloud.point_step());
  char* out = data.data();
  for (size_t i = 0; i < num_voxels; ++i, out += cloud.point_step()) {
    std::array<int32_t, kMaxAxes> site = {};
    std::copy_n(coordinates.begin() + static_cast<std::ptrdiff_t>(i * axes), axes, site.begin());
    if (!sites.insert(site).second) {
      return absl::InvalidArgumentError(absl::StrCat("the site of voxel ", i, " appears twice"));
    }
    std::memcpy(out, site.data(), axes * sizeof(int32_t));
    if (columns > 0) std::memcpy(out + axes * sizeof(int32_t), &features[i * columns], columns * sizeof(float));
  }
  return cloud;
}

}  // namespace voxserve::client
