#pragma once

// Which HTTP connections are open, and which of them has to go when there are too many. A table of a fixed size:
// nothing is allocated after the constructor. The descriptors belong to whoever serves the connections. For one thread.

#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <vector>

namespace voxserve {

class HttpConnections {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Connection {
    int descriptor = -1;  // -1: the place is free
    Time since;
    uint64_t client = 0;      // the network (/64) of an IPv6 address, or an IPv4 address below a prefix of its own
    bool is_closing = false;  // It has been told to go.
  };

  explicit HttpConnections(int max_connections) : places_(max_connections) {}

  // Null where every place is taken. Valid until Remove.
  Connection* Add(int descriptor, const sockaddr* address, Time now);
  void Remove(Connection* connection) { connection->descriptor = -1; }

  bool full() const;
  // Null where there is none that is not closing yet.
  Connection* Oldest();
  // The oldest of the client that has the most connections: a client that opens many loses its own first.
  Connection* OldestOfTheLargestClient();

 private:
  std::vector<Connection> places_;
};

}  // namespace voxserve
