#pragma once

// Stands in for ROS' generated header of the same name, with the same members in the same order.

#include <array>
#include <cstdint>
#include <diagnostic_msgs/msg/diagnostic_status.hpp>
#include <memory>
#include <std_msgs/msg/header.hpp>
#include <string>
#include <vector>

namespace diagnostic_msgs::msg {

struct DiagnosticArray {
  using SharedPtr = std::shared_ptr<DiagnosticArray>;
  using ConstSharedPtr = std::shared_ptr<const DiagnosticArray>;
  std_msgs::msg::Header header{};
  std::vector<DiagnosticStatus> status{};
  // For the tests' reader and writer of CDR.
  template <typename Visit>
  void ForEach(Visit visit) {
    visit(header);
    visit(status);
  }
};

}  // namespace diagnostic_msgs::msg
