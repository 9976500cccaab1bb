#pragma once

// Options of a Client: its server's address, TLS and token, connections, timeouts, retries and limits of messages.

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace voxserve::client {

struct Options {
  // host:port, unix:path, or several servers: dns:///name:port (all addresses of the name) or
  // ipv4:10.0.0.1:8500,10.0.0.2:8500. gRPC balances calls among several servers: by their load if this version of gRPC
  // has weighted_round_robin (1.51 does not), otherwise in turns.
  std::string address = "localhost:8500";
  // The address of AdminService (loads, unloads, searches of plans). If empty, AdminAddress() derives it from
  // `address`.
  std::string admin_address = {};
  // TLS, for both addresses. These are paths of PEM files, which Client::Create reads.
  std::string tls_ca = {};           // roots that the server's certificate must come from; empty: no TLS
  std::string tls_certificate = {};  // the client's own certificate, if the server asks for one; needs tls_key
  std::string tls_key = {};
  // A bearer token that is sent with every call; "": none. A token requires TLS unless both addresses are of this
  // machine.
  std::string token = {};
  // Returns the traceparent (W3C Trace Context) of the current trace, which the server's log then names; "": none. It
  // is called for every call on the thread that makes the call, and for a stream each time it is opened. A text that no
  // header can carry is not sent.
  std::function<std::string()> traceparent = {};
  // Number of connections to the server, which calls use in turns. One connection carries about 1.3 GB/s, so more
  // connections help if several threads send large clouds at once.
  int num_channels = 1;
  int64_t max_message_bytes = int64_t{64} << 20;       // limit of a request and of an answer; also the server's default
  absl::Duration default_timeout = absl::Seconds(30);  // for calls without a timeout; infinite: no deadline
  // How many times gRPC makes a call while servers are UNAVAILABLE, within the call's timeout; 1 to 5, and 1 means no
  // retries. This holds only for calls that change nothing on the server: Infer, Detect, InferTensors, ListModels and
  // GetModel.
  int max_attempts = 3;
  // If no byte has come from the server for this time, gRPC pings a connection that has open calls. If the server does
  // not answer within the same time again, gRPC gives the connection up. At least 2 s, since a server ends connections
  // with more than one ping a second; infinite: no pings.
  absl::Duration keepalive = absl::Seconds(10);

  // Returns INVALID_ARGUMENT, which names the option, if an option is bad.
  absl::Status Validate() const;

  // Returns admin_address. If it is empty, returns `address` with the next port, or "" if that is not possible:
  // `address` has no port or the last one (65,535), is a unix: path, or has a scheme that may name several servers.
  std::string AdminAddress() const;
};

// Returns whether an HTTP/2 header can carry the text as its value: visible ASCII characters, no spaces.
bool IsHeaderValue(absl::string_view text);

// Returns true if the text of the address (host:port or unix:path) shows that it belongs to this machine.
bool IsThisMachine(absl::string_view address);

}  // namespace voxserve::client
