#include "counts.h"

#include <cstdio>
#include <utility>

namespace voxserve_ros {
namespace {

using diagnostic_msgs::msg::DiagnosticStatus;

std::string ReasonOf(const voxserve::Status& status) {
  return std::string(status.reason().empty() ? ToString(status.code()) : status.reason());
}

void AddValue(const std::string& key, std::string value, DiagnosticStatus* status) {
  diagnostic_msgs::msg::KeyValue pair;
  pair.key = key;
  pair.value = std::move(value);
  status->values.push_back(std::move(pair));
}

}  // namespace

void Counts::AddFrame() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++num_frames_;
}

void Counts::AddAnswer(double latency_ms) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++num_answers_;
  ++new_answers_;
  latency_sum_ms_ += latency_ms;
}

void Counts::AddFailure(const voxserve::Status& status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (status.reason() == "SUPERSEDED") {
    ++num_superseded_;
    return;
  }
  ++num_failures_;
  ++new_failures_;
  // A server's text may be of any number of kinds; this map may not.
  std::string reason = ReasonOf(status);
  if (reasons_.size() >= 32 && reasons_.count(reason) == 0) reason = "other";
  ++reasons_[reason];
  last_failure_ = status.ToString();
}

void Counts::SetWarnings(std::vector<std::string> warnings) {
  const std::lock_guard<std::mutex> lock(mutex_);
  warnings_ = std::move(warnings);
}

void Counts::SetConnected(bool is_connected, const std::string& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_connected_ = is_connected;
  why_ = why;
}

DiagnosticStatus Counts::Report(const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  DiagnosticStatus status;
  status.name = name;
  status.hardware_id = "voxserve";
  if (!is_connected_) {
    status.level = DiagnosticStatus::ERROR;
    status.message = why_;
  } else if (new_failures_ > 0) {
    status.level = DiagnosticStatus::WARN;
    status.message = last_failure_;
  } else if (!warnings_.empty()) {
    status.level = DiagnosticStatus::WARN;
    status.message = warnings_.front();
  } else {
    status.level = DiagnosticStatus::OK;
    status.message = "answers";
  }
  AddValue("frames", std::to_string(num_frames_), &status);
  AddValue("answers", std::to_string(num_answers_), &status);
  AddValue("superseded", std::to_string(num_superseded_), &status);
  AddValue("failures", std::to_string(num_failures_), &status);
  for (const auto& [reason, number] : reasons_) AddValue("failures: " + reason, std::to_string(number), &status);
  if (new_answers_ > 0) {
    char text[32];
    std::snprintf(text, sizeof text, "%.2f", latency_sum_ms_ / static_cast<double>(new_answers_));
    AddValue("latency_ms", text, &status);
  }
  new_answers_ = new_failures_ = 0;
  latency_sum_ms_ = 0;
  return status;
}

}  // namespace voxserve_ros
