#pragma once

// BenchOptions holds the command line of `voxserve-client bench`.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/cpp/api/stream.h"
#include "client/cpp/cli/command.h"

namespace voxserve::client {

enum class LoadMode {
  kClosedLoop,  // callers, each of which sends its next request when its last one has ended
  kOpenLoop,    // requests at given times, whether or not earlier requests have been answered
  kStreams,     // vehicles, each with a stream of frames at a fixed rate
};

struct BenchOptions {
  Connection connection;
  std::string model;
  int64_t version = 0;
  int64_t priority = 0;
  bool compact = false;            // sends 16-bit values (client/cpp/io/compacting.h)
  std::string fields;              // a field spec (client/cpp/io/field_spec.h); "": by the extension
  std::vector<std::string> paths;  // scans and folders of scans; requests use all of them in turn

  int64_t concurrency = 0;  // number of callers; 0: 1

  double rate = 0;  // requests per second; 0: no open loop
  std::string arrivals = "constant";
  int64_t seed = -1;  // seed of Poisson arrivals; -1: 1

  int64_t num_streams = 0;  // 0: no streams
  double frame_rate = 10;   // frames per second and stream
  int64_t num_parts = 1;    // of a frame; 1: whole frames
  std::string policy = "latest";
  int64_t num_sweeps = 0;  // 0: the server does not accumulate sweeps
  std::string age_feature;
  std::string poses;  // file name

  absl::Duration warm_up = absl::Seconds(2);
  absl::Duration duration = absl::Seconds(10);
  absl::Duration window = absl::Seconds(1);
  double stable_percent = 0;  // 0: runs for the whole duration
  int64_t max_requests = 0;   // limit of measured requests; 0: none
  int64_t num_channels = 0;   // 0: one per caller or stream, at most 8
  std::string json;           // file name

  std::vector<Flag> Flags();
  // Returns INVALID_ARGUMENT, which names the flag that is missing, out of range, or of another mode.
  absl::Status Validate() const;

  LoadMode mode() const;
  int64_t num_callers() const { return concurrency > 0 ? concurrency : 1; }
  int channels() const;
  uint64_t poisson_seed() const { return seed < 0 ? 1 : static_cast<uint64_t>(seed); }
  bool is_poisson() const { return arrivals == "poisson"; }
  StreamOptions stream_options() const;
};

}  // namespace voxserve::client
