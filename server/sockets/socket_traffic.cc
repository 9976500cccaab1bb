#include "server/sockets/socket_traffic.h"

#include <linux/sockios.h>
#include <linux/tcp.h>  // netinet/tcp.h has an older tcp_info
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>

namespace voxserve {

SocketTraffic TrafficOf(int socket) {
  // The bytes that wait are asked for first. Bytes that arrive between the two questions then count as read a little
  // too early, and never too late.
  int waiting = 0;
  if (ioctl(socket, SIOCINQ, &waiting) != 0) waiting = 0;
  tcp_info info = {};
  socklen_t size = sizeof(info);
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  constexpr size_t kNeeded = offsetof(tcp_info, tcpi_bytes_received) + sizeof(info.tcpi_bytes_received);
  if (size < kNeeded) return {};
  const auto received = static_cast<int64_t>(info.tcpi_bytes_received);
  return {.received = received,
          .read = std::max<int64_t>(0, received - waiting),
          .sent = static_cast<int64_t>(info.tcpi_bytes_acked)};
}

}  // namespace voxserve
