#pragma once

// Conversions between ROS 2 messages and the client's classes. Pure functions, which know no node: tests run them
// without ROS.

#include <voxserve/client.h>

#include <optional>
#include <sensor_msgs/msg/point_cloud2.hpp>
#include <std_msgs/msg/header.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include <vision_msgs/msg/detection3_d_array.hpp>

namespace voxserve_ros {

struct CloudOptions {
  // Names in the message and in the model, such as ("i", "intensity"). A name that the message lacks changes nothing.
  std::vector<std::pair<std::string, std::string>> renamed_fields = {};
  // The model reads intensity times this. Absent: by the field's type, so that the largest integer of uint8 or uint16
  // becomes 1, and other types stay as they are.
  std::optional<double> intensity_scale = {};
};

// Reads "i=intensity" as ("i", "intensity"). INVALID_ARGUMENT unless both names are there.
voxserve::Result<std::pair<std::string, std::string>> ParseRename(std::string_view text);

// Returns the message as a cloud to send; the points are copied once, with their layout. INVALID_ARGUMENT if the data
// are shorter than width, height and steps say, or two fields get the same name.
voxserve::Result<voxserve::PointCloud> ToPointCloud(const sensor_msgs::msg::PointCloud2& message,
                                                    const CloudOptions& options);

// Returns the message's points with two more fields: `label` (uint8, or uint16 if a label needs it) and `rgb` (the
// class's colour, as RViz and Foxglove read it; black without one). Fields of these names in the message are replaced;
// padding between rows is dropped. INVALID_ARGUMENT if the answer has another number of points. model: for the colours;
// may be null, and then there is no `rgb`.
voxserve::Result<sensor_msgs::msg::PointCloud2> WithLabels(const sensor_msgs::msg::PointCloud2& message,
                                                           const voxserve::Segmentation& answer,
                                                           const voxserve::Model* model);

// Returns a detection per box: its class's name (its number, if the model names none) and score, and the box.
// Velocities have no place in these messages.
vision_msgs::msg::Detection3DArray ToDetections(const std_msgs::msg::Header& header,
                                                const voxserve::Detections& answer);

// Returns the orientation of a box that is turned by yaw (radians) about z.
geometry_msgs::msg::Quaternion ToQuaternion(float yaw);

}  // namespace voxserve_ros
