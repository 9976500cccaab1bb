#pragma once

// Stands in for ROS' generated header of the same name, with the same members in the same order.

#include <array>
#include <cstdint>
#include <geometry_msgs/msg/geometry.hpp>
#include <memory>
#include <std_msgs/msg/header.hpp>
#include <string>
#include <vector>

namespace autoware_perception_msgs::msg {

struct ObjectClassification {
  using SharedPtr = std::shared_ptr<ObjectClassification>;
  using ConstSharedPtr = std::shared_ptr<const ObjectClassification>;
  static constexpr uint8_t UNKNOWN = 0;
  static constexpr uint8_t CAR = 1;
  static constexpr uint8_t TRUCK = 2;
  static constexpr uint8_t BUS = 3;
  static constexpr uint8_t TRAILER = 4;
  static constexpr uint8_t MOTORCYCLE = 5;
  static constexpr uint8_t BICYCLE = 6;
  static constexpr uint8_t PEDESTRIAN = 7;
  static constexpr uint8_t ANIMAL = 8;
  uint8_t label{};
  float probability{};
  // For the tests' reader and writer of CDR.
  template <typename Visit>
  void ForEach(Visit visit) {
    visit(label);
    visit(probability);
  }
};

}  // namespace autoware_perception_msgs::msg

namespace autoware_perception_msgs::msg {

struct DetectedObjectKinematics {
  using SharedPtr = std::shared_ptr<DetectedObjectKinematics>;
  using ConstSharedPtr = std::shared_ptr<const DetectedObjectKinematics>;
  static constexpr uint8_t UNAVAILABLE = 0;
  static constexpr uint8_t SIGN_UNKNOWN = 1;
  static constexpr uint8_t AVAILABLE = 2;
  geometry_msgs::msg::PoseWithCovariance pose_with_covariance{};
  bool has_position_covariance{};
  uint8_t orientation_availability{};
  geometry_msgs::msg::TwistWithCovariance twist_with_covariance{};
  bool has_twist{};
  bool has_twist_covariance{};
  // For the tests' reader and writer of CDR.
  template <typename Visit>
  void ForEach(Visit visit) {
    visit(pose_with_covariance);
    visit(has_position_covariance);
    visit(orientation_availability);
    visit(twist_with_covariance);
    visit(has_twist);
    visit(has_twist_covariance);
  }
};

}  // namespace autoware_perception_msgs::msg

namespace autoware_perception_msgs::msg {

struct Shape {
  using SharedPtr = std::shared_ptr<Shape>;
  using ConstSharedPtr = std::shared_ptr<const Shape>;
  static constexpr uint8_t BOUNDING_BOX = 0;
  static constexpr uint8_t CYLINDER = 1;
  static constexpr uint8_t POLYGON = 2;
  uint8_t type{};
  geometry_msgs::msg::Polygon footprint{};
  geometry_msgs::msg::Vector3 dimensions{};
  // For the tests' reader and writer of CDR.
  template <typename Visit>
  void ForEach(Visit visit) {
    visit(type);
    visit(footprint);
    visit(dimensions);
  }
};

}  // namespace autoware_perception_msgs::msg

namespace autoware_perception_msgs::msg {

struct DetectedObject {
  using SharedPtr = std::shared_ptr<DetectedObject>;
  using ConstSharedPtr = std::shared_ptr<const DetectedObject>;
  float existence_probability{};
  std::vector<ObjectClassification> classification{};
  DetectedObjectKinematics kinematics{};
  Shape shape{};
  // For the tests' reader and writer of CDR.
  template <typename Visit>
  void ForEach(Visit visit) {
    visit(existence_probability);
    visit(classification);
    visit(kinematics);
    visit(shape);
  }
};

}  // namespace autoware_perception_msgs::msg

namespace autoware_perception_msgs::msg {

struct DetectedObjects {
  using SharedPtr = std::shared_ptr<DetectedObjects>;
  using ConstSharedPtr = std::shared_ptr<const DetectedObjects>;
  std_msgs::msg::Header header{};
  std::vector<DetectedObject> objects{};
  // For the tests' reader and writer of CDR.
  template <typename Visit>
  void ForEach(Visit visit) {
    visit(header);
    visit(objects);
  }
};

}  // namespace autoware_perception_msgs::msg
