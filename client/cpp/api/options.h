#pragma once

// Where a client's server is and what its messages may be.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace voxserve::client {

struct Options {
  std::string address = "localhost:8500";  // host:port, or unix:path
  // Connections to the server; calls take turns. One carries about 1.3 GB/s, so more help where several threads send
  // large clouds at once.
  int num_channels = 1;
  int64_t max_message_bytes = int64_t{64} << 20;       // of a request and of an answer; the server's default too
  absl::Duration default_timeout = absl::Seconds(30);  // of calls that name none; infinite: no deadline

  // INVALID_ARGUMENT naming the option.
  absl::Status Validate() const;
};

}  // namespace voxserve::client
