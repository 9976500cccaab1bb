#pragma once

// Forwards one TCP connection to a local port until told to cut it, so that a test can pull the cable in the middle of
// a call.

#include <atomic>
#include <thread>

namespace voxserve {

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
