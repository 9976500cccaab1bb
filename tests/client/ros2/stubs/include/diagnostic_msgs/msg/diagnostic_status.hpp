#pragma once

// Stands in for ROS' generated header of the same name, with the same members in the same order.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace diagnostic_msgs::msg {

struct KeyValue {
  using SharedPtr = std::shared_ptr<KeyValue>;
  using ConstSharedPtr = std::shared_ptr<const KeyValue>;
  std::string key{};
  std::string value{};
  // For the tests' reader and writer of CDR.
  template <typename Visit>
  void ForEach(Visit visit) {
    visit(key);
    visit(value);
  }
};

}  // namespace diagnostic_msgs::msg

namespace diagnostic_msgs::msg {

struct DiagnosticStatus {
  using SharedPtr = std::shared_ptr<DiagnosticStatus>;
  using ConstSharedPtr = std::shared_ptr<const DiagnosticStatus>;
  static constexpr uint8_t OK = 0;
  static constexpr uint8_t WARN = 1;
  static constexpr uint8_t ERROR = 2;
  static constexpr uint8_t STALE = 3;
  uint8_t level{};
  std::string name{};
  std::string message{};
  std::string hardware_id{};
  std::vector<KeyValue> values{};
  // For the tests' reader and writer of CDR.
  template <typename Visit>
  void ForEach(Visit visit) {
    visit(level);
    visit(name);
    visit(message);
    visit(hardware_id);
    visit(values);
  }
};

}  // namespace diagnostic_msgs::msg
