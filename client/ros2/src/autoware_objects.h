#pragma once

// Conversion to Autoware's DetectedObjects. Compiled where autoware_perception_msgs is installed.

#include <voxserve/client.h>

#include <autoware_perception_msgs/msg/detected_objects.hpp>
#include <cstdint>
#include <std_msgs/msg/header.hpp>
#include <string_view>

namespace voxserve_ros {

// Returns Autoware's number of a class of nuScenes, Waymo, KITTI, Argoverse 2 or PandaSet, by its name; case, spaces
// and underscores do not matter. UNKNOWN (0) for all others.
uint8_t AutowareLabel(std::string_view class_name);

// Returns an object per box. has_velocities: the model's, without which objects have no twist. A twist is in the
// object's own axes, as Autoware's trackers expect.
autoware_perception_msgs::msg::DetectedObjects ToObjects(const std_msgs::msg::Header& header,
                                                         const voxserve::Detections& answer, bool has_velocities);

}  // namespace voxserve_ros
