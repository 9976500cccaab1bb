#include "autoware_objects.h"

#include <array>
#include <cctype>
#include <cmath>
#include <string>
#include <utility>

#include "conversion.h"

namespace voxserve_ros {
namespace {

using autoware_perception_msgs::msg::DetectedObject;
using autoware_perception_msgs::msg::DetectedObjectKinematics;
using autoware_perception_msgs::msg::ObjectClassification;
using autoware_perception_msgs::msg::Shape;

struct NamedLabel {
  std::string_view name;
  uint8_t label;
};

constexpr std::array<NamedLabel, 26> kLabels = {{
    {"car", ObjectClassification::CAR},
    {"vehicle", ObjectClassification::CAR},
    {"regularvehicle", ObjectClassification::CAR},
    {"van", ObjectClassification::CAR},
    {"pickuptruck", ObjectClassification::TRUCK},
    {"truck", ObjectClassification::TRUCK},
    {"boxtruck", ObjectClassification::TRUCK},
    {"largevehicle", ObjectClassification::TRUCK},
    {"constructionvehicle", ObjectClassification::TRUCK},
    {"bus", ObjectClassification::BUS},
    {"schoolbus", ObjectClassification::BUS},
    {"articulatedbus", ObjectClassification::BUS},
    {"trailer", ObjectClassification::TRAILER},
    {"vehiculartrailer", ObjectClassification::TRAILER},
    {"motorcycle", ObjectClassification::MOTORCYCLE},
    {"motorcyclist", ObjectClassification::MOTORCYCLE},
    {"bicycle", ObjectClassification::BICYCLE},
    {"bicyclist", ObjectClassification::BICYCLE},
    {"cyclist", ObjectClassification::BICYCLE},
    {"pedestrian", ObjectClassification::PEDESTRIAN},
    {"person", ObjectClassification::PEDESTRIAN},
    {"personsitting", ObjectClassification::PEDESTRIAN},
    {"wheelchair", ObjectClassification::PEDESTRIAN},
    {"animal", ObjectClassification::ANIMAL},
    {"animalsother", ObjectClassification::ANIMAL},
    {"dog", ObjectClassification::ANIMAL},
}};

}  // namespace

uint8_t AutowareLabel(std::string_view class_name) {
  std::string key;
  for (const char letter : class_name) {
    const auto byte = static_cast<unsigned char>(letter);
    if (std::isalnum(byte) != 0) key += static_cast<char>(std::tolower(byte));
  }
  for (const NamedLabel& named : kLabels) {
    if (named.name == key) return named.label;
  }
  return ObjectClassification::UNKNOWN;
}

autoware_perception_msgs::msg::DetectedObjects ToObjects(const std_msgs::msg::Header& header,
                                                         const voxserve::Detections& answer, bool has_velocities) {
  autoware_perception_msgs::msg::DetectedObjects objects;
  objects.header = header;
  for (size_t i = 0; i < answer.boxes().size(); ++i) {
    const voxserve::Box& box = answer.boxes()[i];
    DetectedObject object;
    object.existence_probability = box.score;
    ObjectClassification classification;
    classification.label = AutowareLabel(answer.class_name(i));
    classification.probability = box.score;
    object.classification.push_back(classification);
    auto& pose = object.kinematics.pose_with_covariance.pose;
    pose.position.x = box.x;
    pose.position.y = box.y;
    pose.position.z = box.z;
    pose.orientation = ToQuaternion(box.yaw);
    object.kinematics.orientation_availability = DetectedObjectKinematics::AVAILABLE;
    object.kinematics.has_twist = has_velocities;
    if (has_velocities) {
      auto& linear = object.kinematics.twist_with_covariance.twist.linear;
      const double cosine = std::cos(box.yaw), sine = std::sin(box.yaw);
      linear.x = cosine * box.velocity_x + sine * box.velocity_y;
      linear.y = -sine * box.velocity_x + cosine * box.velocity_y;
    }
    object.shape.type = Shape::BOUNDING_BOX;
    object.shape.dimensions.x = box.length;
    object.shape.dimensions.y = box.width;
    object.shape.dimensions.z = box.height;
    objects.objects.push_back(std::move(object));
  }
  return objects;
}

}  // namespace voxserve_ros
