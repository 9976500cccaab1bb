#pragma once

// Knows the open HTTP connections, and which one to close when there are too many. The table has a fixed size: nothing
// is allocated after construction. It does not own the descriptors. For a single thread.

#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <vector>

namespace voxserve {

class HttpConnections {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Connection {
    int descriptor = -1;  // -1: the entry is free
    Time since;
    uint64_t client = 0;      // the network (/64) of an IPv6 address, or an IPv4 address below a prefix of its own
    bool is_closing = false;  // it was told to close
  };

  explicit HttpConnections(int max_connections) : places_(max_connections) {}

  // Returns null if the table is full. The pointer is valid until Remove.
  Connection* Add(int descriptor, const sockaddr* address, Time now);
  void Remove(Connection* connection) { connection->descriptor = -1; }

  bool full() const;
  // Returns null if every connection is closing already.
  Connection* Oldest();
  // Returns the oldest connection of the client with the most connections, so a client that opens many loses its own
  // first.
  Connection* OldestOfTheLargestClient();

 private:
  std::vector<Connection> places_;
};

}  // namespace voxserve
