#include "conversion.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace voxserve_ros {
namespace {

using sensor_msgs::msg::PointCloud2;
using sensor_msgs::msg::PointField;
using voxserve::Status;
using voxserve::StatusCode;

constexpr const char* kLabel = "label";
constexpr const char* kRgb = "rgb";

const std::string& NameOf(const PointField& field, const CloudOptions& options) {
  for (const auto& [from, to] : options.renamed_fields) {
    if (field.name == from) return to;
  }
  return field.name;
}

// The server finds the model's intensity by its name in any case.
bool IsIntensity(const std::string& name) {
  constexpr std::string_view kIntensity = "intensity";
  return std::equal(name.begin(), name.end(), kIntensity.begin(), kIntensity.end(),
                    [](unsigned char a, unsigned char b) { return std::tolower(a) == b; });
}

std::optional<double> IntensityScale(const PointField& field, const CloudOptions& options) {
  if (options.intensity_scale) return options.intensity_scale;
  if (field.datatype == PointField::UINT8) return 1.0 / 255;
  if (field.datatype == PointField::UINT16) return 1.0 / 65535;
  return std::nullopt;
}

// The server checks rows and fields by itself; this protects the code that reads the message here.
Status CheckSize(const PointCloud2& message) {
  const uint64_t row = static_cast<uint64_t>(message.width) * message.point_step;
  const bool has_points = row > 0 && message.height > 0;
  const uint64_t needed = has_points ? (message.height - 1) * static_cast<uint64_t>(message.row_step) + row : 0;
  if (message.width > 0 && message.height > 0 && message.point_step == 0) {
    return Status(StatusCode::kInvalidArgument, "point_step is 0");
  }
  if (message.height > 1 && message.row_step < row) {
    return Status(StatusCode::kInvalidArgument, "row_step is " + std::to_string(message.row_step) + ", less than " +
                                                    std::to_string(message.width) + " points of " +
                                                    std::to_string(message.point_step) + " bytes");
  }
  if (message.data.size() >= needed) return {};
  return Status(StatusCode::kInvalidArgument, "the message has " + std::to_string(message.data.size()) +
                                                  " bytes of points, and width, height and steps ask for " +
                                                  std::to_string(needed));
}

PointField Field(const char* name, uint32_t offset, uint8_t datatype) {
  PointField field;
  field.name = name;
  field.offset = offset;
  field.datatype = datatype;
  field.count = 1;
  return field;
}

// Writes the value's bytes in the byte order of the message.
template <typename T>
void Write(T value, bool is_bigendian, uint8_t* out) {
  std::memcpy(out, &value, sizeof value);
  if (is_bigendian != (std::endian::native == std::endian::big)) std::reverse(out, out + sizeof value);
}

}  // namespace

voxserve::Result<std::pair<std::string, std::string>> ParseRename(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0 || equals + 1 == text.size()) {
    return Status(StatusCode::kInvalidArgument, "\"" + std::string(text) + "\" is no FIELD=NAME, such as i=intensity");
  }
  return std::pair(std::string(text.substr(0, equals)), std::string(text.substr(equals + 1)));
}

voxserve::Result<voxserve::PointCloud> ToPointCloud(const PointCloud2& message, const CloudOptions& options) {
  if (const Status status = CheckSize(message); !status.ok()) return status;
  voxserve::PointCloud cloud;
  std::vector<std::string> names;
  for (const PointField& field : message.fields) {
    const std::string& name = NameOf(field, options);
    if (std::find(names.begin(), names.end(), name) != names.end()) {
      return Status(StatusCode::kInvalidArgument, "two fields have the name \"" + name + "\"");
    }
    names.push_back(name);
    cloud.AddField(name, voxserve::FieldTypeOfRos(field.datatype), field.offset, field.count);
    if (!IsIntensity(name)) continue;
    if (const std::optional<double> scale = IntensityScale(field, options)) {
      if (const Status status = cloud.SetScale(name, *scale); !status.ok()) return status;
    }
  }
  cloud.SetPoints(std::as_bytes(std::span(message.data)), static_cast<uint64_t>(message.width) * message.height,
                  message.point_step);
  if (message.height > 1) cloud.SetRows(message.height, message.row_step);
  cloud.SetBigEndian(message.is_bigendian);
  const auto& stamp = message.header.stamp;
  // Time zero means unknown, as in ROS.
  if (stamp.sec != 0 || stamp.nanosec != 0) {
    cloud.SetStamp(std::chrono::seconds(stamp.sec) + std::chrono::nanoseconds(stamp.nanosec));
  }
  cloud.SetFrameId(message.header.frame_id);
  return cloud;
}

voxserve::Result<PointCloud2> WithLabels(const PointCloud2& message, const voxserve::Segmentation& answer,
                                         const voxserve::Model* model) {
  if (const Status status = CheckSize(message); !status.ok()) return status;
  const std::span<const uint16_t> labels = answer.labels();
  const size_t num_points = static_cast<size_t>(message.width) * message.height;
  if (labels.size() != num_points) {
    return Status(StatusCode::kInvalidArgument, "the answer has " + std::to_string(labels.size()) + " labels for " +
                                                    std::to_string(num_points) + " points");
  }
  PointCloud2 out;
  out.header = message.header;
  out.height = message.height;
  out.width = message.width;
  out.is_bigendian = message.is_bigendian;
  out.is_dense = message.is_dense;
  for (const PointField& field : message.fields) {
    if (field.name != kLabel && (model == nullptr || field.name != kRgb)) out.fields.push_back(field);
  }
  // The new fields begin at a multiple of 4, which PCL's types need.
  const uint32_t rgb_offset = (message.point_step + 3) / 4 * 4;
  const uint32_t label_offset = model == nullptr ? rgb_offset : rgb_offset + 4;
  const bool is_wide = answer.ignore_label() > 255 || answer.num_classes() > 256;
  if (model != nullptr) out.fields.push_back(Field(kRgb, rgb_offset, PointField::FLOAT32));
  out.fields.push_back(Field(kLabel, label_offset, is_wide ? PointField::UINT16 : PointField::UINT8));
  out.point_step = label_offset + 4;
  out.row_step = out.width * out.point_step;
  out.data.resize(num_points * out.point_step);

  std::vector<uint32_t> colors;  // by label
  if (model != nullptr) {
    for (const uint32_t id : model->class_ids()) {
      if (id > UINT16_MAX) continue;
      if (colors.size() <= id) colors.resize(id + 1);
      colors[id] = model->class_color(id).value_or(0);
    }
  }
  size_t i = 0;
  for (uint32_t row = 0; row < message.height; ++row) {
    const uint8_t* in = message.data.data() + static_cast<size_t>(row) * message.row_step;
    for (uint32_t column = 0; column < message.width; ++column, ++i, in += message.point_step) {
      uint8_t* point = out.data.data() + i * out.point_step;
      std::memcpy(point, in, message.point_step);
      if (model != nullptr) {
        Write(labels[i] < colors.size() ? colors[labels[i]] : 0u, out.is_bigendian, point + rgb_offset);
      }
      if (is_wide) {
        Write(labels[i], out.is_bigendian, point + label_offset);
      } else {
        point[label_offset] = static_cast<uint8_t>(labels[i]);
      }
    }
  }
  return out;
}

geometry_msgs::msg::Quaternion ToQuaternion(float yaw) {
  geometry_msgs::msg::Quaternion quaternion;
  quaternion.x = 0;
  quaternion.y = 0;
  quaternion.z = std::sin(yaw / 2.0);
  quaternion.w = std::cos(yaw / 2.0);
  return quaternion;
}

vision_msgs::msg::Detection3DArray ToDetections(const std_msgs::msg::Header& header,
                                                const voxserve::Detections& answer) {
  vision_msgs::msg::Detection3DArray array;
  array.header = header;
  for (size_t i = 0; i < answer.boxes().size(); ++i) {
    const voxserve::Box& box = answer.boxes()[i];
    vision_msgs::msg::Detection3D detection;
    detection.header = header;
    detection.bbox.center.position.x = box.x;
    detection.bbox.center.position.y = box.y;
    detection.bbox.center.position.z = box.z;
    detection.bbox.center.orientation = ToQuaternion(box.yaw);
    detection.bbox.size.x = box.length;
    detection.bbox.size.y = box.width;
    detection.bbox.size.z = box.height;
    vision_msgs::msg::ObjectHypothesisWithPose hypothesis;
    const std::string_view name = answer.class_name(i);
    hypothesis.hypothesis.class_id = name.empty() ? std::to_string(box.class_id) : std::string(name);
    hypothesis.hypothesis.score = box.score;
    hypothesis.pose.pose = detection.bbox.center;
    detection.results.push_back(std::move(hypothesis));
    array.detections.push_back(std::move(detection));
  }
  return array;
}

}  // namespace voxserve_ros
