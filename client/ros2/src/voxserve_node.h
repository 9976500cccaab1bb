#pragma once

// VoxserveNode is an rclcpp component: clouds in; labelled clouds, detections and Autoware's objects out. README.md
// lists its topics and parameters. The work is done on the threads of the client's library; the executor's threads only
// copy clouds into it, and open streams.

#include <voxserve/client.h>

#include <diagnostic_msgs/msg/diagnostic_array.hpp>
#include <memory>
#include <optional>
#include <rclcpp/rclcpp.hpp>
#include <sensor_msgs/msg/point_cloud2.hpp>
#include <string>
#include <vision_msgs/msg/detection3_d_array.hpp>

#include "model_stream.h"
#ifdef VOXSERVE_WITH_AUTOWARE
#include <autoware_perception_msgs/msg/detected_objects.hpp>
#endif

namespace voxserve_ros {

class VoxserveNode : public rclcpp::Node {
 public:
  // Throws std::invalid_argument, with the parameter's name, if a parameter is bad: so a component reports it.
  explicit VoxserveNode(const rclcpp::NodeOptions& options);

 private:
  using PointCloud2 = sensor_msgs::msg::PointCloud2;

  StreamSettings ReadSettings(const std::string& model);
  void OpenStreams();
  void PublishDiagnostics();

  // The client is destroyed last, after the streams.
  std::optional<voxserve::Client> client_;
  bool publishes_colors_ = true;
  rclcpp::Publisher<PointCloud2>::SharedPtr labels_;
  rclcpp::Publisher<vision_msgs::msg::Detection3DArray>::SharedPtr detections_;
#ifdef VOXSERVE_WITH_AUTOWARE
  rclcpp::Publisher<autoware_perception_msgs::msg::DetectedObjects>::SharedPtr objects_;
#endif
  rclcpp::Publisher<diagnostic_msgs::msg::DiagnosticArray>::SharedPtr diagnostics_;
  std::unique_ptr<ModelStream<voxserve::Segmentation>> labels_stream_;  // null: no such model is wanted
  std::unique_ptr<ModelStream<voxserve::Detections>> boxes_stream_;
  rclcpp::Subscription<PointCloud2>::SharedPtr clouds_;
  rclcpp::CallbackGroup::SharedPtr opening_;
  rclcpp::TimerBase::SharedPtr open_timer_;
  rclcpp::TimerBase::SharedPtr diagnostics_timer_;
};

}  // namespace voxserve_ros
