#pragma once

// HttpConnections is HttpServer's table of its open connections; it says which one to close when there are too many.
// The table has a fixed size: it allocates nothing after construction. It does not own the descriptors. Not
// thread-safe.

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
    // The number of the client: an IPv4 address, or the /64 network of an IPv6 address. No two clients share a number.
    uint64_t client = 0;
    bool is_closing = false;  // its socket is shut down
  };

  explicit HttpConnections(int max_connections) : places_(max_connections) {}

  // Adds a connection. Returns null if the table is full. The pointer is valid until Remove.
  Connection* Add(int descriptor, const sockaddr* address, Time now);
  void Remove(Connection* connection) { connection->descriptor = -1; }

  bool full() const;
  // Returns the oldest connection that is not closing; null if there is none.
  Connection* Oldest();
  // Returns the oldest connection of the client with the most connections that are not closing, so a client that opens
  // many loses its own first. Returns null if every connection is closing.
  Connection* OldestOfTheLargestClient();

 private:
  std::vector<Connection> places_;
};

}  // namespace voxserve
