#pragma once

// What `voxserve-client bench` is asked to do.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/cpp/api/stream.h"
#include "client/cpp/cli/command.h"

namespace voxserve::client {

enum class LoadMode {
  kClosedLoop,  // callers that send their next request when the last one is answered
  kOpenLoop,    // requests that come when they come, answered or not
  kStreams,     // vehicles with a frame rate
};

struct BenchOptions {
  Connection connection;
  std::string model;
  int64_t version = 0;
  int64_t priority = 0;
  std::string fields;              // of the scans, as infer's
  std::vector<std::string> paths;  // scans and folders of scans; requests go through all of them, over and over

  int64_t concurrency = 0;  // callers; 0: 1

  double rate = 0;  // requests a second; 0: no open loop
  std::string arrivals = "constant";
  int64_t seed = -1;  // of Poisson arrivals; -1: 1

  int64_t num_streams = 0;  // 0: no streams
  double frame_rate = 10;   // frames a second and stream
  std::string policy = "latest";
  int64_t num_sweeps = 0;  // 0: none accumulate
  std::string age_feature;
  std::string poses;  // file

  absl::Duration warm_up = absl::Seconds(2);
  absl::Duration duration = absl::Seconds(10);
  absl::Duration window = absl::Seconds(1);
  double stable_percent = 0;  // 0: runs for the whole duration
  int64_t max_requests = 0;   // that are measured; 0: as many as the duration holds
  int64_t num_channels = 0;   // 0: one a caller or stream, at most 8
  std::string json;           // file

  std::vector<Flag> Flags();
  // INVALID_ARGUMENT naming the flag: what is missing, or belongs to another mode.
  absl::Status Validate() const;

  LoadMode mode() const;
  int64_t num_callers() const { return concurrency > 0 ? concurrency : 1; }
  int channels() const;
  uint64_t poisson_seed() const { return seed < 0 ? 1 : static_cast<uint64_t>(seed); }
  bool is_poisson() const { return arrivals == "poisson"; }
  StreamOptions stream_options() const;
};

}  // namespace voxserve::client
