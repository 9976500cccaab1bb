#pragma once

// SocketTraffic tells how many bytes a TCP connection has received and sent.

#include <cstdint>

namespace voxserve {

// Bytes since the connection began. All are 0 if the system does not tell; Linux tells since 4.1 (TCP_INFO).
struct SocketTraffic {
  int64_t received = 0;  // by the system, whether they have been read or not
  int64_t read = 0;      // by this process
  int64_t sent = 0;      // and acknowledged by the other end
};

SocketTraffic TrafficOf(int socket);

}  // namespace voxserve
