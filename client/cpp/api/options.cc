#include "client/cpp/api/options.h"

#include <arpa/inet.h>

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/api/service_config.h"
#include "engine/base/numbers.h"

namespace voxserve::client {
namespace {

constexpr int kMaxPort = 65535;
constexpr absl::Duration kMinKeepalive = absl::Seconds(2);
constexpr absl::Duration kMaxKeepalive = absl::Hours(24);

}  // namespace

bool IsHeaderValue(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](unsigned char c) { return absl::ascii_isgraph(c); });
}

bool IsThisMachine(absl::string_view address) {
  for (const absl::string_view prefix : {"localhost:", "[::1]:", "unix:"}) {
    if (absl::StartsWith(address, prefix)) return true;
  }
  // The host must be a numeric address: a name such as 127.example.com may be another machine's.
  const std::string host(address.substr(0, address.rfind(':')));
  in_addr number = {};
  return absl::StartsWith(host, "127.") && inet_pton(AF_INET, host.c_str(), &number) == 1;
}

std::string Options::AdminAddress() const {
  if (!admin_address.empty()) return admin_address;
  const size_t colon = address.rfind(':');
  int port = 0;
  if (absl::StartsWith(address, "unix:") || NamesServers(address) || colon == std::string::npos ||
      !ParseInteger(address.substr(colon + 1), &port) || port < 1 || port >= kMaxPort) {
    return "";
  }
  return absl::StrCat(address.substr(0, colon + 1), port + 1);
}

absl::Status Options::Validate() const {
  if (address.empty()) return absl::InvalidArgumentError("address is empty; write host:port, e.g. localhost:8500");
  if (num_channels < 1 || num_channels > 256) {
    return absl::InvalidArgumentError(absl::StrCat("num_channels is ", num_channels, ", must be 1 to 256"));
  }
  if (max_message_bytes < 1 << 16 || max_message_bytes > INT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_message_bytes is ", max_message_bytes, ", must be 65536 to ", INT32_MAX));
  }
  if (default_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("default_timeout is ", absl::FormatDuration(default_timeout), ", must be positive"));
  }
  if (max_attempts < 1 || max_attempts > kMaxAttempts) {
    return absl::InvalidArgumentError(absl::StrCat("max_attempts is ", max_attempts, ", must be 1 to ", kMaxAttempts));
  }
  if (keepalive < kMinKeepalive || (keepalive > kMaxKeepalive && keepalive != absl::InfiniteDuration())) {
    return absl::InvalidArgumentError(absl::StrCat("keepalive is ", absl::FormatDuration(keepalive), ", must be ",
                                                   absl::FormatDuration(kMinKeepalive), " to ",
                                                   absl::FormatDuration(kMaxKeepalive), ", or infinite"));
  }
  if (tls_certificate.empty() != tls_key.empty()) {
    return absl::InvalidArgumentError("tls_certificate and tls_key need each other");
  }
  if (!tls_certificate.empty() && tls_ca.empty()) {
    return absl::InvalidArgumentError("tls_certificate needs tls_ca: without it there is no TLS");
  }
  if (!IsHeaderValue(token)) {
    return absl::InvalidArgumentError("token has a character that no header can carry; it must be one line of ASCII");
  }
  if (!token.empty() && tls_ca.empty() &&
      !(IsThisMachine(address) && (admin_address.empty() || IsThisMachine(admin_address)))) {
    return absl::InvalidArgumentError(
        absl::StrCat("token needs tls_ca: on the way to ", address, " everybody could read it without TLS"));
  }
  return absl::OkStatus();
}

}  // namespace voxserve::client
