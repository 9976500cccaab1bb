#pragma once

// How much has come over a TCP connection.

#include <cstdint>

namespace voxserve {

// Bytes that the other end has sent and the system has received, read or not, since the connection began. 0 where the
// system does not say (Linux does from 4.1 on).
int64_t ReceivedBytes(int socket);

}  // namespace voxserve
