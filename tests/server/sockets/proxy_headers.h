#pragma once

// Makes binary headers of the PROXY protocol, version 2 (proxy-protocol.txt of HAProxy, section 2.2).

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace voxserve {

// Returns a header followed by `addresses`, whose size is written into the header. `addresses` may be invalid.
inline std::string BinaryProxyHeader(uint8_t version_and_command, uint8_t family_and_protocol,
                                     std::string_view addresses) {
  std::string header("\r\n\r\n\0\r\nQUIT\n", 12);
  header += static_cast<char>(version_and_command);
  header += static_cast<char>(family_and_protocol);
  header += static_cast<char>(addresses.size() >> 8);
  header += static_cast<char>(addresses.size() & 0xFF);
  return header.append(addresses);
}

// Returns the addresses of a TCP connection over IPv4 from this source to 0.0.0.0:0.
inline std::string Ipv4Pair(const std::array<uint8_t, 4>& source, uint16_t source_port) {
  std::string addresses(12, '\0');
  for (size_t i = 0; i < source.size(); ++i) addresses[i] = static_cast<char>(source[i]);
  addresses[8] = static_cast<char>(source_port >> 8);
  addresses[9] = static_cast<char>(source_port & 0xFF);
  return addresses;
}

}  // namespace voxserve
