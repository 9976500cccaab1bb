#include "tests/integration/raw_tcp.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace voxserve {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// Moves what is there; false at the end of the stream.
bool MoveBytes(int from, int to) {
  char buffer[65536];
  const ssize_t size = read(from, buffer, sizeof(buffer));
  if (size <= 0) return false;
  for (ssize_t sent = 0; sent < size;) {
    const ssize_t written = send(to, buffer + sent, size - sent, MSG_NOSIGNAL);
    if (written <= 0) return false;
    sent += written;
  }
  return true;
}

int ConnectTo(int port) {
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
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

TcpProxy::TcpProxy(int target_port) : target_port_(target_port), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
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

void TcpProxy::Forward() {
  constexpr int kPollMs = 5;
  pollfd waiting = {.fd = listener_, .events = POLLIN, .revents = 0};
  while (!cut_ && poll(&waiting, 1, kPollMs) == 0) {
  }
  if (cut_) return;
  const int client = accept(listener_, nullptr, nullptr);
  const int server = ConnectTo(target_port_);
  bool open = server >= 0;
  while (open && !cut_) {
    pollfd ends[2] = {{.fd = client, .events = POLLIN, .revents = 0}, {.fd = server, .events = POLLIN, .revents = 0}};
    poll(ends, 2, kPollMs);
    if (ends[0].revents != 0) open = MoveBytes(client, server);
    if (open && ends[1].revents != 0) open = MoveBytes(server, client);
  }
  close(client);
  close(server);
}

}  // namespace voxserve
