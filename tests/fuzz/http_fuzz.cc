// The fuzzer's input is what one connection sends to the HTTP port.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>

#include "server/http/http_server.h"
#include "tests/fuzz/fuzz.h"

namespace {

// Returns a new connection to the port. Tries again if a signal (libFuzzer has a timer) interrupts it, or while other
// programs of this machine hold all ports.
int Connect(int port) {
  constexpr int kMaxAttempts = 1000;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (int i = 0; i < kMaxAttempts; ++i) {
    const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    FUZZ_CHECK(connection >= 0);
    // Closing with a reset leaves no port in the state TIME_WAIT, of which many runs would run out.
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    setsockopt(connection, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    if (connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return connection;
    if (errno != EINTR && errno != EADDRNOTAVAIL) perror("connect");
    FUZZ_CHECK(errno == EINTR || errno == EADDRNOTAVAIL);
    close(connection);
    usleep(10'000);
  }
  FUZZ_CHECK(false);
  return -1;
}

// Sends `bytes` over a new connection, shuts down its sending side and returns all that the server sent back.
std::string Answer(int port, std::string_view bytes) {
  const int connection = Connect(port);
  while (!bytes.empty()) {
    const ssize_t sent = send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) break;  // The server may close the connection early.
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  shutdown(connection, SHUT_WR);
  std::string answer;
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t received = recv(connection, buffer.data(), buffer.size(), 0);
    if (received <= 0) break;
    answer.append(buffer.data(), static_cast<size_t>(received));
  }
  close(connection);
  return answer;
}

// The server waits so long for the rest of a request. Most inputs are none, so a longer time would leave few runs.
constexpr absl::Duration kConnectionTime = absl::Milliseconds(20);
constexpr int kMaxAsked = 100;  // A busy machine can take longer than that for a whole request.

bool IsHealthy(int port) {
  for (int i = 0; i < kMaxAsked; ++i) {
    if (Answer(port, "GET /healthz HTTP/1.0\r\n\r\n").find("200 OK") != std::string::npos) return true;
  }
  return false;
}

}  // namespace

FUZZER(http) {
  using voxserve::HttpServer;
  static const std::unique_ptr<HttpServer> server = [] {
    auto started = HttpServer::Start({.port = 0, .connection_time = kConnectionTime},
                                     {.metrics = [] { return std::string("metric 1\n"); },
                                      .readiness = [] { return absl::OkStatus(); },
                                      .status_page = [] { return std::string("<html></html>"); }});
    FUZZ_CHECK(started.ok());
    return std::move(*started);
  }();
  const std::string answer = Answer(server->port(), voxserve::fuzz::Text(data, size));
  FUZZ_CHECK(answer.empty() || answer.starts_with("HTTP/1."));
  // Whatever the first connection sent, the server still answers the next one.
  FUZZ_CHECK(IsHealthy(server->port()));
  return 0;
}
