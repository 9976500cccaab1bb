#pragma once

// Makes TCP connections without gRPC, for tests that send invalid bytes or break connections.

#include <atomic>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>

namespace voxserve {

// Connects to a local port and sends the bytes as they are. Closes the connection when the other end closes it or sends
// nothing for 200 ms.
void SendRaw(int port, const std::string& bytes);

// Forwards one TCP connection to a local port until Cut() is called or one end closes the connection. With a proxy a
// test can break the network in the middle of a call. The proxy has a thread of its own, which the destructor ends.
class TcpProxy {
 public:
  // Listens on a free port (port()). Forwards at most max_upload_bytes of the bytes that the client sends, and drops
  // the rest. The server sees 127.0.0.`source` as the client's address.
  explicit TcpProxy(int target_port, int64_t max_upload_bytes = std::numeric_limits<int64_t>::max(), int source = 1);
  ~TcpProxy();

  int port() const { return port_; }
  void Cut();
  // Blocks until all bytes that may be forwarded from the client have been forwarded. Returns false after ten seconds.
  bool AwaitUpload() const;

 private:
  void Forward();

  const int target_port_;
  const int source_;
  std::atomic<int64_t> upload_bytes_left_;
  int port_ = 0;
  int listener_ = -1;
  std::atomic<bool> cut_{false};
  std::thread thread_;
};

}  // namespace voxserve
