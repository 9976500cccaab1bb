#include "voxserve_node.h"

#include <chrono>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "conversion.h"
#include "rclcpp_components/register_node_macro.hpp"
#ifdef VOXSERVE_WITH_AUTOWARE
#include "autoware_objects.h"
#endif

namespace voxserve_ros {
namespace {

constexpr double kMaxSeconds = 1e6;

// Returns a parameter as a time. Throws std::invalid_argument, with its name, if it is no number of seconds.
std::chrono::nanoseconds Seconds(const char* name, double seconds) {
  if (!(seconds >= 0 && seconds <= kMaxSeconds)) {
    throw std::invalid_argument(std::string(name) + " is " + std::to_string(seconds) + ", must be 0 to " +
                                std::to_string(static_cast<int>(kMaxSeconds)) + " seconds");
  }
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

}  // namespace

VoxserveNode::VoxserveNode(const rclcpp::NodeOptions& options) : rclcpp::Node("voxserve", options) {
  voxserve::ClientOptions client_options(declare_parameter<std::string>("address", "localhost:8500"));
  client_options.set_tls(declare_parameter<std::string>("tls_ca", ""),
                         declare_parameter<std::string>("tls_certificate", ""),
                         declare_parameter<std::string>("tls_key", ""));
  client_options.set_token(declare_parameter<std::string>("token", ""));
  const double timeout_s = declare_parameter<double>("timeout_s", 2.0);
  if (timeout_s == 0) throw std::invalid_argument("timeout_s is 0, must be more");
  client_options.set_timeout(Seconds("timeout_s", timeout_s));
  voxserve::Result<voxserve::Client> client = voxserve::Client::Create(client_options);
  if (!client.ok()) throw std::invalid_argument(client.status().ToString());
  client_.emplace(*std::move(client));

  const std::string labels_model = declare_parameter<std::string>("labels_model", "");
  const std::string boxes_model = declare_parameter<std::string>("boxes_model", "");
  if (labels_model.empty() && boxes_model.empty()) {
    throw std::invalid_argument("labels_model and boxes_model are empty: name a model of the server in one of them");
  }
  publishes_colors_ = declare_parameter<bool>("publish_colors", true);
  const StreamSettings settings = ReadSettings(labels_model);
  const rclcpp::QoS newest = rclcpp::QoS(rclcpp::KeepLast(1));
  if (!labels_model.empty()) {
    labels_ = create_publisher<PointCloud2>("~/output/labels", newest);
    labels_stream_ = std::make_unique<ModelStream<voxserve::Segmentation>>(
        &*client_, settings,
        [this](const PointCloud2& message, const voxserve::Segmentation& answer, const voxserve::Model& model) {
          voxserve::Result<PointCloud2> labelled = WithLabels(message, answer, publishes_colors_ ? &model : nullptr);
          if (labelled.ok()) {
            labels_->publish(*std::move(labelled));
          } else {
            RCLCPP_ERROR(get_logger(), "%s", labelled.status().ToString().c_str());
          }
        });
  }
  if (!boxes_model.empty()) {
    detections_ = create_publisher<vision_msgs::msg::Detection3DArray>("~/output/detections", newest);
#ifdef VOXSERVE_WITH_AUTOWARE
    objects_ = create_publisher<autoware_perception_msgs::msg::DetectedObjects>("~/output/objects", newest);
#endif
    StreamSettings of_boxes = settings;
    of_boxes.model = boxes_model;
    boxes_stream_ = std::make_unique<ModelStream<voxserve::Detections>>(
        &*client_, of_boxes,
        [this](const PointCloud2& message, const voxserve::Detections& answer,
               [[maybe_unused]] const voxserve::Model& model) {
          detections_->publish(ToDetections(message.header, answer));
#ifdef VOXSERVE_WITH_AUTOWARE
          objects_->publish(ToObjects(message.header, answer, model.has_velocities()));
#endif
        });
  }
  diagnostics_ = create_publisher<diagnostic_msgs::msg::DiagnosticArray>("/diagnostics", rclcpp::QoS(10));
  OpenStreams();
  // In a group of its own: it may wait for a server, and clouds and diagnostics go on meanwhile.
  opening_ = create_callback_group(rclcpp::CallbackGroupType::MutuallyExclusive);
  open_timer_ = create_wall_timer(
      std::chrono::seconds(1), [this] { OpenStreams(); }, opening_);
  diagnostics_timer_ = create_wall_timer(std::chrono::seconds(1), [this] { PublishDiagnostics(); });
  // Best effort and one message deep: an old cloud is worth nothing.
  clouds_ = create_subscription<PointCloud2>("~/input/points", rclcpp::SensorDataQoS().keep_last(1),
                                             [this](PointCloud2::ConstSharedPtr message) {
                                               if (labels_stream_ != nullptr) labels_stream_->Send(message);
                                               if (boxes_stream_ != nullptr) boxes_stream_->Send(message);
                                             });
}

StreamSettings VoxserveNode::ReadSettings(const std::string& model) {
  StreamSettings settings{.model = model};
  for (const std::string& text :
       declare_parameter<std::vector<std::string>>("rename_fields", std::vector<std::string>())) {
    if (text.empty()) continue;  // a launch file cannot write an empty list
    voxserve::Result<std::pair<std::string, std::string>> rename = ParseRename(text);
    if (!rename.ok()) throw std::invalid_argument("rename_fields: " + rename.status().ToString());
    settings.cloud.renamed_fields.push_back(*std::move(rename));
  }
  const double scale = declare_parameter<double>("intensity_scale", 0.0);
  if (!(scale >= 0 && std::isfinite(scale))) {
    throw std::invalid_argument("intensity_scale is " + std::to_string(scale) + ", must be 0 or more");
  }
  if (scale > 0) settings.cloud.intensity_scale = scale;
  const auto frame_timeout = Seconds("frame_timeout_s", declare_parameter<double>("frame_timeout_s", 0.0));
  if (frame_timeout.count() > 0) settings.frame_timeout = frame_timeout;
  settings.reopen_for = Seconds("reopen_for_s", declare_parameter<double>("reopen_for_s", 10.0));
  return settings;
}

void VoxserveNode::OpenStreams() {
  const auto open = [this](auto& stream) {
    if (stream == nullptr) return;
    if (const voxserve::Status status = stream->OpenIfClosed(); !status.ok()) {
      RCLCPP_WARN(get_logger(), "%s: %s", stream->model().c_str(), status.ToString().c_str());
    }
  };
  open(labels_stream_);
  open(boxes_stream_);
}

void VoxserveNode::PublishDiagnostics() {
  diagnostic_msgs::msg::DiagnosticArray array;
  array.header.stamp = now();
  const auto report = [&](auto& stream) {
    if (stream == nullptr) return;
    array.status.push_back(stream->counts().Report(std::string(get_name()) + ": " + stream->model()));
  };
  report(labels_stream_);
  report(boxes_stream_);
  diagnostics_->publish(array);
}

}  // namespace voxserve_ros

RCLCPP_COMPONENTS_REGISTER_NODE(voxserve_ros::VoxserveNode)
