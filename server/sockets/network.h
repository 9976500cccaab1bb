#pragma once

// Network is a range of addresses, as an operator writes it: "10.0.0.0/8", "2001:db8::/32", or one address, "10.1.2.3".

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace voxserve {

class Network {
 public:
  // INVALID_ARGUMENT with the text and what is wrong with it: it is no address, the number of bits is too large, or
  // bits of the address behind them are set.
  static absl::StatusOr<Network> Parse(std::string_view text);

  // Returns true if the address lies in the network. An IPv4 address inside an IPv6 one (::ffff:10.0.0.1) counts as
  // IPv4.
  bool Contains(const sockaddr_storage& address) const;

 private:
  using Bytes = std::array<uint8_t, 16>;  // of an IPv6 address; an IPv4 address is mapped to ::ffff:0:0/96

  Bytes address_ = {};
  int num_bits_ = 0;  // the first bits, which all addresses of the network share
  bool is_ipv4_ = false;
};

// Returns the networks of a list with commas; none for "". INVALID_ARGUMENT as Parse.
absl::StatusOr<std::vector<Network>> ParseNetworks(std::string_view list);

}  // namespace voxserve
