#pragma once

// ReceivedBytes tells how many bytes a TCP connection has received.

#include <cstdint>

namespace voxserve {

// Returns the number of bytes that the system has received over the connection since it began, whether they have been
// read or not. Returns 0 if the system does not tell; Linux tells since 4.1 (TCP_INFO).
int64_t ReceivedBytes(int socket);

}  // namespace voxserve
