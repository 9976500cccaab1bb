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
  // host:port, unix:path, or several servers: dns:///name:port with all addresses of the name, or
  // ipv4:10.0.0.1:8500,10.0.0.2:8500. Calls are then balanced, by load where gRPC can (weighted_round_robin).
  std::string address = "localhost:8500";
  // The address of AdminService (loads, unloads, searches of plans). If empty: the host of `address`, one port above,
  // unless it may name several servers.
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
  // How often gRPC makes a call that changes nothing (Infer and the like, ListModels, GetModel) while servers are
  // UNAVAILABLE, within its timeout. 1: no retries; at most 5.
  int max_attempts = 3;
  // Time without a byte from the server after which a connection with open calls is tested, and given up unless the
  // server answers within as long. At least 2 s, since servers end connections that are tested more than once a second;
  // infinite: never.
  absl::Duration keepalive = absl::Seconds(10);

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
