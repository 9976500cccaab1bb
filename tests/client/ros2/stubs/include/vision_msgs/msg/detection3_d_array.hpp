#pragma once

// Stands in for ROS' generated header of the same name, with the same members in the same order.

#include <array>
#include <cstdint>
#include <geometry_msgs/msg/geometry.hpp>
#include <memory>
#include <std_msgs/msg/header.hpp>
#include <string>
#include <vector>

namespace vision_msgs::msg {

struct BoundingBox3D {
  using SharedPtr = std::shared_ptr<BoundingBox3D>;
  using ConstSharedPtr = std::shared_ptr<const BoundingBox3D>;
  geometry_msgs::msg::Pose center{};
  geometry_msgs::msg::Vector3 size{};
  // For the tests' reader and writer of CDR.
  template <typename Visit>
  void ForEach(Visit visit) {
    visit(center);
    visit(size);
  }
};

}  // namespace vision_msgs::msg

namespace vision_msgs::msg {

struct ObjectHypothesis {
  using SharedPtr = std::shared_ptr<ObjectHypothesis>;
  using ConstSharedPtr = std::shared_ptr<const ObjectHypothesis>;
  std::string class_id{};
  double score{};
  // For the tests' reader and writer of CDR.
  template <typename Visit>
  void ForEach(Visit visit) {
    visit(class_id);
    visit(score);
  }
};

}  // namespace vision_msgs::msg

namespace vision_msgs::msg {

struct ObjectHypothesisWithPose {
  using SharedPtr = std::shared_ptr<ObjectHypothesisWithPose>;
  using ConstSharedPtr = std::shared_ptr<const ObjectHypothesisWithPose>;
  ObjectHypothesis hypothesis{};
  geometry_msgs::msg::PoseWithCovariance pose{};
  // For the tests' reader and writer of CDR.
  template <typename Visit>
  void ForEach(Visit visit) {
    visit(hypothesis);
    visit(pose);
  }
};

}  // namespace vision_msgs::msg

namespace vision_msgs::msg {

struct Detection3D {
  using SharedPtr = std::shared_ptr<Detection3D>;
  using ConstSharedPtr = std::shared_ptr<const Detection3D>;
  std_msgs::msg::Header header{};
  std::vector<ObjectHypothesisWithPose> results{};
  BoundingBox3D bbox{};
  std::string id{};
  // For the tests' reader and writer of CDR.
  template <typename Visit>
  void ForEach(Visit visit) {
    visit(header);
    visit(results);
    visit(bbox);
    visit(id);
  }
};

}  // namespace vision_msgs::msg

namespace vision_msgs::msg {

struct Detection3DArray {
  using SharedPtr = std::shared_ptr<Detection3DArray>;
  using ConstSharedPtr = std::shared_ptr<const Detection3DArray>;
  std_msgs::msg::Header header{};
  std::vector<Detection3D> detections{};
  // For the tests' reader and writer of CDR.
  template <typename Visit>
  void ForEach(Visit visit) {
    visit(header);
    visit(detections);
  }
};

}  // namespace vision_msgs::msg
