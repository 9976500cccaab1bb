#pragma once

// Counts the bytes received over a TCP connection.

#include <cstdint>

namespace voxserve {

// Returns the bytes that the other end sent and the system has received, read or not, since the connection began. 0 if
// the system does not tell (Linux tells since 4.1).
int64_t ReceivedBytes(int socket);

}  // namespace voxserve
