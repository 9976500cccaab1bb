#pragma once

// Stands in for ROS' generated header of the same name, with the same members in the same order.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace geometry_msgs::msg {

struct Point {
  using SharedPtr = std::shared_ptr<Point>;
  using ConstSharedPtr = std::shared_ptr<const Point>;
  double x{};
  double y{};
  double z{};
  // For the tests' reader and writer of CDR.
  template <typename Visit>
  void ForEach(Visit visit) {
    visit(x);
    visit(y);
    visit(z);
  }
};

}  // namespace geometry_msgs::msg

namespace geometry_msgs::msg {

struct Point32 {
  using SharedPtr = std::shared_ptr<Point32>;
  using ConstSharedPtr = std::shared_ptr<const Point32>;
  float x{};
  float y{};
  float z{};
  // For the tests' reader and writer of CDR.
  template <typename Visit>
  void ForEach(Visit visit) {
    visit(x);
    visit(y);
    visit(z);
  }
};

}  // namespace geometry_msgs::msg

namespace geometry_msgs::msg {

struct Vector3 {
  using SharedPtr = std::shared_ptr<Vector3>;
  using ConstSharedPtr = std::shared_ptr<const Vector3>;
  double x{};
  double y{};
  double z{};
  // For the tests' reader and writer of CDR.
  template <typename Visit>
  void ForEach(Visit visit) {
    visit(x);
    visit(y);
    visit(z);
  }
};

}  // namespace geometry_msgs::msg

namespace geometry_msgs::msg {

struct Quaternion {
  using SharedPtr = std::shared_ptr<Quaternion>;
  using ConstSharedPtr = std::shared_ptr<const Quaternion>;
  double x{};
  double y{};
  double z{};
  double w{};
  // For the tests' reader and writer of CDR.
  template <typename Visit>
  void ForEach(Visit visit) {
    visit(x);
    visit(y);
    visit(z);
    visit(w);
  }
};

}  // namespace geometry_msgs::msg

namespace geometry_msgs::msg {

struct Pose {
  using SharedPtr = std::shared_ptr<Pose>;
  using ConstSharedPtr = std::shared_ptr<const Pose>;
  Point position{};
  Quaternion orientation{};
  // For the tests' reader and writer of CDR.
  template <typename Visit>
  void ForEach(Visit visit) {
    visit(position);
    visit(orientation);
  }
};

}  // namespace geometry_msgs::msg

namespace geometry_msgs::msg {

struct PoseWithCovariance {
  using SharedPtr = std::shared_ptr<PoseWithCovariance>;
  using ConstSharedPtr = std::shared_ptr<const PoseWithCovariance>;
  Pose pose{};
  std::array<double, 36> covariance{};
  // For the tests' reader and writer of CDR.
  template <typename Visit>
  void ForEach(Visit visit) {
    visit(pose);
    visit(covariance);
  }
};

}  // namespace geometry_msgs::msg

namespace geometry_msgs::msg {

struct Twist {
  using SharedPtr = std::shared_ptr<Twist>;
  using ConstSharedPtr = std::shared_ptr<const Twist>;
  Vector3 linear{};
  Vector3 angular{};
  // For the tests' reader and writer of CDR.
  template <typename Visit>
  void ForEach(Visit visit) {
    visit(linear);
    visit(angular);
  }
};

}  // namespace geometry_msgs::msg

namespace geometry_msgs::msg {

struct TwistWithCovariance {
  using SharedPtr = std::shared_ptr<TwistWithCovariance>;
  using ConstSharedPtr = std::shared_ptr<const TwistWithCovariance>;
  Twist twist{};
  std::array<double, 36> covariance{};
  // For the tests' reader and writer of CDR.
  template <typename Visit>
  void ForEach(Visit visit) {
    visit(twist);
    visit(covariance);
  }
};

}  // namespace geometry_msgs::msg

namespace geometry_msgs::msg {

struct Polygon {
  using SharedPtr = std::shared_ptr<Polygon>;
  using ConstSharedPtr = std::shared_ptr<const Polygon>;
  std::vector<Point32> points{};
  // For the tests' reader and writer of CDR.
  template <typename Visit>
  void ForEach(Visit visit) {
    visit(points);
  }
};

}  // namespace geometry_msgs::msg
