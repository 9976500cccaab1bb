#pragma once

// Stands in for ROS' generated header of the same name, with the same members in the same order.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace builtin_interfaces::msg {

struct Time {
  using SharedPtr = std::shared_ptr<Time>;
  using ConstSharedPtr = std::shared_ptr<const Time>;
  int32_t sec{};
  uint32_t nanosec{};
  // For the tests' reader and writer of CDR.
  template <typename Visit>
  void ForEach(Visit visit) {
    visit(sec);
    visit(nanosec);
  }
};

}  // namespace builtin_interfaces::msg

namespace std_msgs::msg {

struct Header {
  using SharedPtr = std::shared_ptr<Header>;
  using ConstSharedPtr = std::shared_ptr<const Header>;
  builtin_interfaces::msg::Time stamp{};
  std::string frame_id{};
  // For the tests' reader and writer of CDR.
  template <typename Visit>
  void ForEach(Visit visit) {
    visit(stamp);
    visit(frame_id);
  }
};

}  // namespace std_msgs::msg
