#include "server/http/http_connections.h"

#include <netinet/in.h>

#include <algorithm>

namespace voxserve {
namespace {

bool IsOpen(const HttpConnections::Connection& connection) {
  return connection.descriptor >= 0 && !connection.is_closing;
}

// The upper bits of the numbers that stand for IPv4 clients. No IPv6 client has this prefix, since it is one of a
// multicast network.
constexpr uint64_t kIpv4Prefix = uint64_t{0xFFFF} << 48;

uint64_t BigEndian(const uint8_t* bytes, int num_bytes) {
  uint64_t value = 0;
  for (int i = 0; i < num_bytes; ++i) value = value << 8 | bytes[i];
  return value;
}

uint64_t NetworkOf(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return kIpv4Prefix | ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr);
  }
  if (address->sa_family != AF_INET6) return 0;
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return IN6_IS_ADDR_V4MAPPED(&v6) ? kIpv4Prefix | BigEndian(v6.s6_addr + 12, 4) : BigEndian(v6.s6_addr, 8);
}

}  // namespace

HttpConnections::Connection* HttpConnections::Add(int descriptor, const sockaddr* address, Time now) {
  const auto place = std::find_if(places_.begin(), places_.end(), [](const auto& each) { return each.descriptor < 0; });
  if (place == places_.end()) return nullptr;
  *place = {.descriptor = descriptor, .since = now, .client = NetworkOf(address), .is_closing = false};
  return &*place;
}

bool HttpConnections::full() const {
  return std::all_of(places_.begin(), places_.end(), [](const auto& each) { return each.descriptor >= 0; });
}

HttpConnections::Connection* HttpConnections::Oldest() {
  Connection* oldest = nullptr;
  for (Connection& each : places_) {
    if (IsOpen(each) && (oldest == nullptr || each.since < oldest->since)) oldest = &each;
  }
  return oldest;
}

HttpConnections::Connection* HttpConnections::OldestOfTheLargestClient() {
  Connection* oldest = nullptr;
  int64_t most = 0;
  for (Connection& each : places_) {
    if (!IsOpen(each)) continue;
    const int64_t count = std::count_if(places_.begin(), places_.end(), [&each](const Connection& other) {
      return IsOpen(other) && other.client == each.client;
    });
    if (count > most || (count == most && each.since < oldest->since)) oldest = &each;
    most = std::max(most, count);
  }
  return oldest;
}

}  // namespace voxserve
