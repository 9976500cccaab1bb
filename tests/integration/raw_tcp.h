#pragma once

// TCP below gRPC, for tests that break it.

#include <atomic>
#include <string>
#include <thread>

namespace voxserve {

// Connects to the local port, sends the bytes as they are, waits until the other end hangs up or says nothing for 200
// ms, and hangs up.
void SendRaw(int port, const std::string& bytes);

// Forwards one TCP connection to a local port until told to cut it, so that a test can pull the cable in the middle of
// a call.
class TcpProxy {
 public:
  explicit TcpProxy(int target_port);
  ~TcpProxy();

  int port() const { return port_; }
  void Cut();

 private:
  void Forward();

  const int target_port_;
  int port_ = 0;
  int listener_ = -1;
  std::atomic<bool> cut_{false};
  std::thread thread_;
};

}  // namespace voxserve
