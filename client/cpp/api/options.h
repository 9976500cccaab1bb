#pragma once

// The address of a client's server, and the limits of its messages.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace voxserve::client {

struct Options {
  std::string address = "localhost:8500";  // host:port, or unix:path
  // The number of connections to the server, which calls use in turn. One carries about 1.3 GB/s, so more help if
  // several threads send large clouds at once.
  int num_channels = 1;
  int64_t max_message_bytes = int64_t{64} << 20;       // limit of a request and of an answer; also the server's default
  absl::Duration default_timeout = absl::Seconds(30);  // for calls without a timeout; infinite: no deadline

  // Returns INVALID_ARGUMENT, naming the option.
  absl::Status Validate() const;
};

}  // namespace voxserve::client
