#pragma once

// Stands in for ROS' generated header of the same name, with the same members in the same order.

#include <array>
#include <cstdint>
#include <memory>
#include <std_msgs/msg/header.hpp>
#include <string>
#include <vector>

namespace sensor_msgs::msg {

struct PointField {
  using SharedPtr = std::shared_ptr<PointField>;
  using ConstSharedPtr = std::shared_ptr<const PointField>;
  static constexpr uint8_t INT8 = 1;
  static constexpr uint8_t UINT8 = 2;
  static constexpr uint8_t INT16 = 3;
  static constexpr uint8_t UINT16 = 4;
  static constexpr uint8_t INT32 = 5;
  static constexpr uint8_t UINT32 = 6;
  static constexpr uint8_t FLOAT32 = 7;
  static constexpr uint8_t FLOAT64 = 8;
  std::string name{};
  uint32_t offset{};
  uint8_t datatype{};
  uint32_t count{};
  // For the tests' reader and writer of CDR.
  template <typename Visit>
  void ForEach(Visit visit) {
    visit(name);
    visit(offset);
    visit(datatype);
    visit(count);
  }
};

}  // namespace sensor_msgs::msg

namespace sensor_msgs::msg {

struct PointCloud2 {
  using SharedPtr = std::shared_ptr<PointCloud2>;
  using ConstSharedPtr = std::shared_ptr<const PointCloud2>;
  std_msgs::msg::Header header{};
  uint32_t height{};
  uint32_t width{};
  std::vector<PointField> fields{};
  bool is_bigendian{};
  uint32_t point_step{};
  uint32_t row_step{};
  std::vector<uint8_t> data{};
  bool is_dense{};
  // For the tests' reader and writer of CDR.
  template <typename Visit>
  void ForEach(Visit visit) {
    visit(header);
    visit(height);
    visit(width);
    visit(fields);
    visit(is_bigendian);
    visit(point_step);
    visit(row_step);
    visit(data);
    visit(is_dense);
  }
};

}  // namespace sensor_msgs::msg
