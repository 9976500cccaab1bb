#pragma once

// RawConnection is a TCP connection to a port of this machine. Tests use it to send bytes that a library of HTTP or
// gRPC would not send.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

namespace voxserve {

// Owns a socket. Each receive and send waits for the server for at most 10 seconds. Not thread-safe.
class RawConnection {
 public:
  RawConnection() : descriptor_(socket(AF_INET, SOCK_STREAM, 0)) {
    const timeval patience = {.tv_sec = 10, .tv_usec = 0};
    setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    setsockopt(descriptor_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  }
  explicit RawConnection(int port) : RawConnection() { EXPECT_TRUE(Connect(port)); }
  ~RawConnection() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  RawConnection(RawConnection&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  RawConnection& operator=(RawConnection&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }

  bool Connect(int port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return connect(descriptor_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }

  // Returns false if the server has closed the connection, or does not take all bytes within 10 seconds.
  bool Send(const std::string& bytes) {
    return send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }

  // Sends the bytes again and again until the server closes the connection or at least max_bytes are sent. Returns the
  // number of bytes that were sent, at most max_bytes. The test fails if the server reads nothing for 10 seconds.
  int64_t SendUntilClosed(const std::string& bytes, int64_t max_bytes) {
    int64_t sent = 0;
    while (sent < max_bytes) {
      const ssize_t size = send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (size <= 0) {
        EXPECT_NE(errno, EAGAIN) << "the server neither reads from the connection nor closes it";
        return sent;
      }
      sent += size;
    }
    return max_bytes;
  }

  // Reads until the server closes the connection or sends nothing for 10 seconds. Returns all bytes that were read.
  std::string ReadAll() {
    std::string text;
    char buffer[65536];
    ssize_t size;
    while ((size = recv(descriptor_, buffer, sizeof(buffer), 0)) > 0) text.append(buffer, size);
    is_closed_ = size == 0 || errno == ECONNRESET;
    return text;
  }
  // Returns whether the server closed the connection during ReadAll.
  bool is_closed() const { return is_closed_; }

 private:
  int descriptor_;
  bool is_closed_ = false;
};

}  // namespace voxserve
