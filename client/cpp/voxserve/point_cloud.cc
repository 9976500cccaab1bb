#include <voxserve/point_cloud.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/api/point_field_type.h"
#include "client/cpp/io/compacting.h"
#include "client/cpp/io/point_cloud_reader.h"
#include "client/cpp/voxserve/data.h"

namespace voxserve {
inline namespace abi0 {
namespace {

const client::PointCloud& CloudOf(const detail::PointCloudData* data) {
  static const auto* const empty = new client::PointCloud();  // never destroyed: threads may outlive main
  return data == nullptr ? *empty : data->cloud;
}

// Gives a cloud that was moved from its data again.
client::PointCloud& ChangeCloud(std::unique_ptr<detail::PointCloudData>& data) {
  if (data == nullptr) data = std::make_unique<detail::PointCloudData>();
  return data->cloud;
}

}  // namespace

FieldType FieldTypeOfRos(int datatype) noexcept {
  return static_cast<FieldType>(client::PointFieldTypeOfRos(datatype));
}

PointCloud::PointCloud() : data_(std::make_unique<detail::PointCloudData>()) {}
PointCloud::~PointCloud() = default;
PointCloud::PointCloud(const PointCloud& other)
    : data_(std::make_unique<detail::PointCloudData>(detail::PointCloudData{CloudOf(other.data_.get())})) {}
PointCloud& PointCloud::operator=(const PointCloud& other) {
  if (this != &other) *this = PointCloud(other);
  return *this;
}
PointCloud::PointCloud(PointCloud&& other) noexcept = default;
PointCloud& PointCloud::operator=(PointCloud&& other) noexcept = default;

Result<PointCloud> PointCloud::FromFloats(const std::vector<std::string>& names, std::span<const float> values) {
  if (names.empty() || values.size() % names.size() != 0) {
    return Status(StatusCode::kInvalidArgument,
                  absl::StrCat(values.size(), " values are no whole points of ", names.size(), " fields"));
  }
  PointCloud cloud;
  cloud.data_->cloud = client::PointCloudFromFloats(names, values.data(), values.size() / names.size());
  return cloud;
}

Result<PointCloud> PointCloud::Read(const std::string& path, std::string_view fields) {
  absl::StatusOr<client::PointCloud> read = client::ReadPointCloud(path, {.fields = std::string(fields)});
  if (!read.ok()) return detail::ToStatus(read.status());
  PointCloud cloud;
  cloud.data_->cloud = *std::move(read);
  return cloud;
}

void PointCloud::AddField(std::string_view name, FieldType type, uint32_t offset, uint32_t count) {
  client::PointField& field = *ChangeCloud(data_).add_fields();
  field.set_name(std::string(name));
  field.set_type(static_cast<client::PointFieldType>(type));
  field.set_offset(offset);
  field.set_count(count);
}

Status PointCloud::SetScale(std::string_view name, double scale, double shift) {
  for (client::PointField& field : *ChangeCloud(data_).mutable_fields()) {
    if (field.name() != name) continue;
    field.set_scale(scale);
    field.set_shift(shift);
    return {};
  }
  return Status(StatusCode::kNotFound, absl::StrCat("the cloud has no field \"", detail::ToAbsl(name), "\""));
}

void PointCloud::SetPoints(std::span<const std::byte> bytes, uint64_t num_points, uint32_t point_step) {
  SetPoints(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), num_points, point_step);
}

void PointCloud::SetPoints(std::string&& bytes, uint64_t num_points, uint32_t point_step) {
  client::PointCloud& cloud = ChangeCloud(data_);
  cloud.set_data(std::move(bytes));
  cloud.set_num_points(num_points);
  cloud.set_point_step(point_step);
}

void PointCloud::SetRows(uint32_t height, uint32_t row_step) {
  client::PointCloud& cloud = ChangeCloud(data_);
  cloud.set_height(height);
  cloud.set_row_step(row_step);
}

void PointCloud::SetBigEndian(bool is_bigendian) { ChangeCloud(data_).set_is_bigendian(is_bigendian); }

void PointCloud::SetStamp(std::chrono::nanoseconds since_epoch) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since_epoch);
  auto& stamp = *ChangeCloud(data_).mutable_stamp();
  stamp.set_seconds(seconds.count());
  stamp.set_nanos(static_cast<int32_t>((since_epoch - seconds).count()));
}

void PointCloud::SetFrameId(std::string_view frame_id) { ChangeCloud(data_).set_frame_id(std::string(frame_id)); }

Result<std::string> PointCloud::Compact() {
  const absl::StatusOr<client::CompactLoss> loss = client::Compact(&ChangeCloud(data_));
  if (!loss.ok()) return detail::ToStatus(loss.status());
  return loss->reason;
}

uint64_t PointCloud::num_points() const noexcept { return CloudOf(data_.get()).num_points(); }
uint32_t PointCloud::point_step() const noexcept { return CloudOf(data_.get()).point_step(); }

std::span<const std::byte> PointCloud::bytes() const noexcept {
  return std::as_bytes(std::span<const char>(CloudOf(data_.get()).data()));
}

std::vector<std::string> PointCloud::field_names() const {
  std::vector<std::string> names;
  for (const client::PointField& field : CloudOf(data_.get()).fields()) names.push_back(field.name());
  return names;
}

Result<std::vector<float>> PointCloud::Values(std::string_view field) const {
  absl::StatusOr<std::vector<float>> values = client::FieldValues(CloudOf(data_.get()), detail::ToAbsl(field));
  if (!values.ok()) return detail::ToStatus(values.status());
  return *std::move(values);
}

}  // namespace abi0
}  // namespace voxserve
