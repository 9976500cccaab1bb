#pragma once

// Network is a range of IP addresses, as an operator writes it: "10.0.0.0/8", "2001:db8::/32", or one address,
// "10.1.2.3".

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace voxserve {

class Network {
 public:
  // Returns INVALID_ARGUMENT, with the text and the reason, if the text is no address, if the number after the slash is
  // too large, or if the address has set bits beyond the prefix of this length.
  static absl::StatusOr<Network> Parse(std::string_view text);

  // Returns true if the address lies in the network. An IPv4 address inside an IPv6 one (::ffff:10.0.0.1) counts as
  // IPv4.
  bool Contains(const sockaddr_storage& address) const;

 private:
  using Bytes = std::array<uint8_t, 16>;  // an IPv6 address; an IPv4 address is mapped to ::ffff:0:0/96

  Bytes address_ = {};
  int num_bits_ = 0;  // length of the prefix that all addresses of the network share
  bool is_ipv4_ = false;
};

// Returns the networks of a list that is separated by commas; none for "". Returns the errors of Network::Parse.
absl::StatusOr<std::vector<Network>> ParseNetworks(std::string_view list);

}  // namespace voxserve
