#pragma once

// Counts is what the node tells in /diagnostics about one model's stream. Thread-safe.

#include <voxserve/status.h>

#include <cstdint>
#include <diagnostic_msgs/msg/diagnostic_status.hpp>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace voxserve_ros {

class Counts {
 public:
  void AddFrame();                                      // a message came
  void AddAnswer(double latency_ms);                    // from the message's arrival to its answer
  void AddFailure(const voxserve::Status& status);      // SUPERSEDED is counted apart: it is no error
  void SetWarnings(std::vector<std::string> warnings);  // of the newest answer
  void SetConnected(bool is_connected, const std::string& why = {});

  // Returns ERROR without a stream; WARN if an answer had warnings, or a frame failed since the last Report; else OK.
  // Values are totals since the start, but for the latency: the mean since the last Report.
  diagnostic_msgs::msg::DiagnosticStatus Report(const std::string& name);

 private:
  std::mutex mutex_;
  uint64_t num_frames_ = 0, num_answers_ = 0, num_superseded_ = 0, num_failures_ = 0;
  uint64_t new_answers_ = 0, new_failures_ = 0;  // since the last report
  double latency_sum_ms_ = 0;                    // of new_answers_
  std::map<std::string, uint64_t> reasons_;      // of failures
  std::string last_failure_;
  std::vector<std::string> warnings_;
  bool is_connected_ = false;
  std::string why_ = "no connection yet";
};

}  // namespace voxserve_ros
