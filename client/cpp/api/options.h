#pragma once

// Where a client's server is, how the two know each other, and what their messages may be.

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace voxserve::client {

struct Options {
  std::string address = "localhost:8500";  // host:port, or unix:path
  // The address of AdminService (loads, unloads, searches of plans). If empty: the host of `address`, one port above.
  std::string admin_address = {};
  // TLS, for both addresses. Files in PEM form, read by Client::Create.
  std::string tls_ca = {};           // roots that the server's certificate must come from; empty: no TLS
  std::string tls_certificate = {};  // the client's own certificate, for a server that asks for one; with its key
  std::string tls_key = {};
  // A bearer token that is sent with every call; "": none. Over an address that is not this machine's it needs TLS.
  std::string token = {};
  // Returns the W3C traceparent of the current trace, which the server's log then names; "": none. Called for every
  // call, and for a stream when it is opened, on the thread that makes it. A text that no header can carry is not sent.
  std::function<std::string()> traceparent = {};
  // Connections to the server; calls take turns. One carries about 1.3 GB/s, so more help where several threads send
  // large clouds at once.
  int num_channels = 1;
  int64_t max_message_bytes = int64_t{64} << 20;       // limit of a request and of an answer; also the server's default
  absl::Duration default_timeout = absl::Seconds(30);  // for calls without a timeout; infinite: no deadline

  // Returns INVALID_ARGUMENT, naming the option.
  absl::Status Validate() const;

  // Returns admin_address. If it is empty, returns `address` with the next port, or "" if `address` has no port.
  std::string AdminAddress() const;
};

// Whether a header can carry the text as its value: one line of ASCII without spaces.
bool IsHeaderValue(absl::string_view text);

// Whether host:port is certainly this machine.
bool IsThisMachine(absl::string_view address);

}  // namespace voxserve::client
