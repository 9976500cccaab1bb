#include "tests/integration/raw_tcp.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace voxserve {
namespace {

// Returns the address 127.0.0.`host` with a port.
sockaddr_in Loopback(int port, int host = 1) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + static_cast<uint32_t>(host));
  return address;
}

// Forwards bytes that have arrived at `from`, at most max_bytes. Returns how many, or 0 if one of the connections has
// ended.
int64_t MoveBytes(int from, int to, int64_t max_bytes = std::numeric_limits<int64_t>::max()) {
  char buffer[65536];
  const ssize_t size = read(from, buffer, std::min<int64_t>(sizeof(buffer), max_bytes));
  if (size <= 0) return 0;
  for (ssize_t sent = 0; sent < size;) {
    const ssize_t written = send(to, buffer + sent, size - sent, MSG_NOSIGNAL);
    if (written <= 0) return 0;
    sent += written;
  }
  return size;
}

int ConnectTo(int port, int source = 1) {
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in own = Loopback(0, source);
  bind(descriptor, reinterpret_cast<const sockaddr*>(&own), sizeof(own));
  const sockaddr_in address = Loopback(port);
  if (connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return descriptor;
  close(descriptor);
  return -1;
}

}  // namespace

void SendRaw(int port, const std::string& bytes) {
  const int descriptor = ConnectTo(port);
  send(descriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  const timeval patience = {.tv_sec = 0, .tv_usec = 200'000};
  setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  char buffer[4096];
  while (read(descriptor, buffer, sizeof(buffer)) > 0) {
  }
  close(descriptor);
}

TcpProxy::TcpProxy(int target_port, int64_t max_upload_bytes, int source)
    : target_port_(target_port),
      source_(source),
      upload_bytes_left_(max_upload_bytes),
      listener_(socket(AF_INET, SOCK_STREAM, 0)) {
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  bind(listener_, reinterpret_cast<sockaddr*>(&address), size);
  listen(listener_, 1);
  getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { Forward(); });
}

TcpProxy::~TcpProxy() {
  Cut();
  close(listener_);
}

void TcpProxy::Cut() {
  cut_ = true;
  if (thread_.joinable()) thread_.join();
}

bool TcpProxy::AwaitUpload() const {
  for (int i = 0; i < 1000 && upload_bytes_left_ > 0; ++i) absl::SleepFor(absl::Milliseconds(10));
  return upload_bytes_left_ == 0;
}

void TcpProxy::Forward() {
  constexpr int kPollMs = 5;
  pollfd waiting = {.fd = listener_, .events = POLLIN, .revents = 0};
  while (!cut_ && poll(&waiting, 1, kPollMs) == 0) {
  }
  if (cut_) return;
  const int client = accept(listener_, nullptr, nullptr);
  const int server = ConnectTo(target_port_, source_);
  bool open = server >= 0;
  while (open && !cut_) {
    pollfd ends[2] = {{.fd = client, .events = POLLIN, .revents = 0}, {.fd = server, .events = POLLIN, .revents = 0}};
    poll(ends, 2, kPollMs);
    if (ends[0].revents != 0) {
      if (upload_bytes_left_ > 0) {
        const int64_t num_bytes = MoveBytes(client, server, upload_bytes_left_);
        upload_bytes_left_ -= num_bytes;
        open = num_bytes > 0;
      } else {
        // The proxy reads and drops these bytes, because otherwise it would not see that a killed client is gone.
        char dropped[65536];
        open = read(client, dropped, sizeof(dropped)) > 0;
      }
    }
    if (open && ends[1].revents != 0) open = MoveBytes(server, client) > 0;
  }
  close(client);
  close(server);
}

}  // namespace voxserve
