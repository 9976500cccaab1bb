#pragma once

// TCP below gRPC, for tests that break it.

#include <atomic>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>

namespace voxserve {

// Connects to the local port, sends the bytes as they are, waits until the other end hangs up or says nothing for 200
// ms, and hangs up.
void SendRaw(int port, const std::string& bytes);

// Forwards one TCP connection to a local port until told to cut it, or one end is gone, so that a test can pull the
// cable in the middle of a call.
class TcpProxy {
 public:
  // Forwards at most max_upload_bytes of what the client sends, and drops the others. The server sees the client at
  // 127.0.0.`source`.
  explicit TcpProxy(int target_port, int64_t max_upload_bytes = std::numeric_limits<int64_t>::max(), int source = 1);
  ~TcpProxy();

  int port() const { return port_; }
  void Cut();
  // Blocks until all that may be forwarded of what the client sends has been; false after ten seconds.
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
