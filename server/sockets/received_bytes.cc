#include "server/sockets/received_bytes.h"

#include <linux/tcp.h>  // netinet/tcp.h has an older tcp_info
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>

namespace voxserve {

int64_t ReceivedBytes(int socket) {
  tcp_info info = {};
  socklen_t size = sizeof(info);
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  constexpr size_t kNeeded = offsetof(tcp_info, tcpi_bytes_received) + sizeof(info.tcpi_bytes_received);
  return size < kNeeded ? 0 : static_cast<int64_t>(info.tcpi_bytes_received);
}

}  // namespace voxserve
