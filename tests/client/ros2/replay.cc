// Runs the component on clouds that were serialised elsewhere, without ROS: it is linked with the component's library
// and the stand-ins of stubs/. Writes what the node publishes as NAME.INDEX.cdr, one file a message.
//
//   replay FOLDER [--KEY=VALUE...] CLOUD.cdr...
//
// KEY is a parameter; a VALUE with a decimal point is a number, "true" or "false" a flag, "[a,b]" a list, all else
// text.
// --wait=false: do not wait for answers, but give the node a second.
#include <autoware_perception_msgs/msg/detected_objects.hpp>
#include <chrono>
#include <diagnostic_msgs/msg/diagnostic_array.hpp>
#include <exception>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <rclcpp/rclcpp.hpp>
#include <sensor_msgs/msg/point_cloud2.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vision_msgs/msg/detection3_d_array.hpp>

#include "cdr.h"

extern "C" rclcpp::Node* MakeComponent(const rclcpp::NodeOptions* options);

namespace {

using sensor_msgs::msg::PointCloud2;

rclcpp::ParameterValue Parse(const std::string& text) {
  if (text == "true" || text == "false") return text == "true";
  if (!text.empty() && text.front() == '[') {
    std::vector<std::string> items;
    std::istringstream in(text.substr(1, text.size() - 2));
    for (std::string item; std::getline(in, item, ',');) items.push_back(item);
    return items;
  }
  if (text.find_first_not_of("-0123456789.") == std::string::npos && text.find('.') != std::string::npos &&
      text.find(':') == std::string::npos) {
    return std::stod(text);
  }
  return text;
}

PointCloud2 ReadCloud(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path);
  return voxserve_ros::cdr::Reader({std::istreambuf_iterator<char>(in), {}}).Read<PointCloud2>();
}

template <typename Message>
void Save(rclcpp::Node& node, const std::string& topic, const std::string& path) {
  const auto publisher = node.FindPublisher<Message>(topic);
  if (publisher == nullptr) return;
  int index = 0;
  for (const Message& message : publisher->published()) {
    const std::vector<uint8_t> bytes = voxserve_ros::cdr::Writer().Write(message);
    std::ofstream(path + "." + std::to_string(index++) + ".cdr", std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
}

// Waits until each topic that the node has got a message for each cloud, or a minute.
void Await(rclcpp::Node& node, size_t number) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  const auto has = [&](const auto& publisher) {
    return publisher == nullptr || publisher->published().size() >= number;
  };
  while (std::chrono::steady_clock::now() < end) {
    if (has(node.FindPublisher<PointCloud2>("~/output/labels")) &&
        has(node.FindPublisher<autoware_perception_msgs::msg::DetectedObjects>("~/output/objects"))) {
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  throw std::runtime_error("no answer within a minute");
}

int Run(int argc, char** argv) {
  if (argc < 2) throw std::runtime_error("usage: replay FOLDER [--KEY=VALUE...] CLOUD.cdr...");
  const std::string folder = argv[1];
  rclcpp::NodeOptions options;
  std::vector<std::string> clouds;
  bool waits = true;
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t equals = word.find('=');
    if (word == "--wait=false") {
      waits = false;
    } else if (word.rfind("--", 0) == 0 && equals != std::string::npos) {
      options.parameters[word.substr(2, equals - 2)] = Parse(word.substr(equals + 1));
    } else {
      clouds.push_back(word);
    }
  }
  const std::unique_ptr<rclcpp::Node> node(MakeComponent(&options));
  size_t number = 0;
  for (const std::string& path : clouds) {
    node->FindSubscription<PointCloud2>("~/input/points")
        ->Receive(std::make_shared<const PointCloud2>(ReadCloud(path)));
    ++number;
    if (waits) Await(*node, number);
  }
  if (!waits) std::this_thread::sleep_for(std::chrono::seconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // an answer is counted after it was published
  node->FireTimers();
  Save<PointCloud2>(*node, "~/output/labels", folder + "/labels");
  Save<vision_msgs::msg::Detection3DArray>(*node, "~/output/detections", folder + "/detections");
  Save<autoware_perception_msgs::msg::DetectedObjects>(*node, "~/output/objects", folder + "/objects");
  Save<diagnostic_msgs::msg::DiagnosticArray>(*node, "/diagnostics", folder + "/diagnostics");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
