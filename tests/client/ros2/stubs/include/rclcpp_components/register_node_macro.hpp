#pragma once

// Stands in for rclcpp_components: a component can be made without knowing its class.

#include <memory>
#include <rclcpp/rclcpp.hpp>

#define RCLCPP_COMPONENTS_REGISTER_NODE(NodeClass) \
  extern "C" rclcpp::Node* MakeComponent(const rclcpp::NodeOptions* options) { return new NodeClass(*options); }
