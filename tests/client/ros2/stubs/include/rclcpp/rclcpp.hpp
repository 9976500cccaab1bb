#pragma once

// Stands in for rclcpp: the few functions that the node calls, with their signatures. Parameters come from NodeOptions;
// what is published goes to the functions of Bus; a test itself runs the callbacks of timers and subscriptions.

#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <std_msgs/msg/header.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace rclcpp {

using ParameterValue = std::variant<bool, double, std::string, std::vector<std::string>>;

struct NodeOptions {
  std::map<std::string, ParameterValue> parameters = {};
};

struct KeepLast {
  explicit KeepLast(size_t of_depth) : depth(of_depth) {}
  size_t depth;
};

class QoS {
 public:
  explicit QoS(size_t depth) : depth_(depth) {}
  explicit QoS(KeepLast history) : depth_(history.depth) {}
  QoS& keep_last(size_t depth) {
    depth_ = depth;
    return *this;
  }
  size_t depth() const { return depth_; }

 private:
  size_t depth_;
};

class SensorDataQoS : public QoS {
 public:
  SensorDataQoS() : QoS(5) {}
};

template <typename Message>
class Publisher {
 public:
  using SharedPtr = std::shared_ptr<Publisher>;
  explicit Publisher(std::string topic) : topic_(std::move(topic)) {}
  void publish(Message message) {
    const std::lock_guard<std::mutex> lock(mutex_);
    published_.push_back(std::move(message));
  }
  // For tests.
  std::vector<Message> published() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return published_;
  }
  const std::string& topic() const { return topic_; }

 private:
  const std::string topic_;
  mutable std::mutex mutex_;
  std::vector<Message> published_;
};

template <typename Message>
class Subscription {
 public:
  using SharedPtr = std::shared_ptr<Subscription>;
  explicit Subscription(std::function<void(std::shared_ptr<const Message>)> callback)
      : callback_(std::move(callback)) {}
  void Receive(std::shared_ptr<const Message> message) { callback_(std::move(message)); }  // for tests

 private:
  const std::function<void(std::shared_ptr<const Message>)> callback_;
};

class TimerBase {
 public:
  using SharedPtr = std::shared_ptr<TimerBase>;
  explicit TimerBase(std::function<void()> callback) : callback_(std::move(callback)) {}
  void Fire() { callback_(); }  // for tests

 private:
  const std::function<void()> callback_;
};

enum class CallbackGroupType { MutuallyExclusive, Reentrant };

struct CallbackGroup {
  using SharedPtr = std::shared_ptr<CallbackGroup>;
};

struct Logger {};

class Node {
 public:
  Node(std::string name, const NodeOptions& options) : name_(std::move(name)), options_(options) {}
  virtual ~Node() = default;

  const char* get_name() const { return name_.c_str(); }
  Logger get_logger() const { return {}; }
  builtin_interfaces::msg::Time now() const {
    builtin_interfaces::msg::Time time;
    time.sec = 1;
    return time;
  }

  template <typename T>
  T declare_parameter(const std::string& name, const T& value) {
    const auto found = options_.parameters.find(name);
    return found == options_.parameters.end() ? value : std::get<T>(found->second);
  }

  template <typename Message>
  typename Publisher<Message>::SharedPtr create_publisher(const std::string& topic, const QoS&) {
    auto publisher = std::make_shared<Publisher<Message>>(topic);
    publishers_[topic] = publisher;
    return publisher;
  }
  template <typename Message, typename Callback>
  typename Subscription<Message>::SharedPtr create_subscription(const std::string& topic, const QoS&,
                                                                Callback callback) {
    auto subscription = std::make_shared<Subscription<Message>>(callback);
    subscriptions_[topic] = subscription;
    return subscription;
  }
  CallbackGroup::SharedPtr create_callback_group(CallbackGroupType) { return std::make_shared<CallbackGroup>(); }
  template <typename Rep, typename Period, typename Callback>
  TimerBase::SharedPtr create_wall_timer(std::chrono::duration<Rep, Period>, Callback callback,
                                         CallbackGroup::SharedPtr = nullptr) {
    timers_.push_back(std::make_shared<TimerBase>(callback));
    return timers_.back();
  }

  // For tests. Null if the node has no such topic.
  template <typename Message>
  std::shared_ptr<Publisher<Message>> FindPublisher(const std::string& topic) {
    return std::static_pointer_cast<Publisher<Message>>(publishers_[topic]);
  }
  template <typename Message>
  std::shared_ptr<Subscription<Message>> FindSubscription(const std::string& topic) {
    return std::static_pointer_cast<Subscription<Message>>(subscriptions_[topic]);
  }
  void FireTimers() {
    for (const TimerBase::SharedPtr& timer : timers_) timer->Fire();
  }

 private:
  const std::string name_;
  const NodeOptions options_;
  std::map<std::string, std::shared_ptr<void>> publishers_;
  std::map<std::string, std::shared_ptr<void>> subscriptions_;
  std::vector<TimerBase::SharedPtr> timers_;
};

}  // namespace rclcpp

#define RCLCPP_WARN(logger, ...) ((void)(logger), std::fprintf(stderr, __VA_ARGS__), std::fputc('\n', stderr))
#define RCLCPP_ERROR(logger, ...) RCLCPP_WARN(logger, __VA_ARGS__)
