#include "tests/server/acceptor/raw_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "absl/time/clock.h"
#include "server/sockets/peer.h"

namespace voxserve {
namespace {

sockaddr_in Ipv4(const std::string& address, int port) {
  sockaddr_in ipv4 = {};
  ipv4.sin_family = AF_INET;
  ipv4.sin_port = htons(static_cast<uint16_t>(port));
  EXPECT_EQ(inet_pton(AF_INET, address.c_str(), &ipv4.sin_addr), 1);
  return ipv4;
}

}  // namespace

RawClient::RawClient(const std::string& from) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const sockaddr_in address = Ipv4(from, 0);
  EXPECT_EQ(bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0) << from;
}

RawClient RawClient::To(int port, const std::string& from) {
  RawClient client(from);
  EXPECT_TRUE(client.Connect(port));
  return client;
}

bool RawClient::Connect(int port) {
  const sockaddr_in address = Ipv4("127.0.0.1", port);
  return connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

void RawClient::Send(std::string_view bytes) { send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); }

void RawClient::EndSending() { shutdown(socket_.get(), SHUT_WR); }

std::string RawClient::Receive(size_t size, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  std::string received;
  while (received.size() < size) {
    pollfd poll_in = {.fd = socket_.get(), .events = POLLIN, .revents = 0};
    const auto left_ms = static_cast<int>(std::max<int64_t>(absl::ToInt64Milliseconds(deadline - absl::Now()), 0));
    if (poll(&poll_in, 1, left_ms) <= 0) break;
    char bytes[4096];
    const ssize_t count = recv(socket_.get(), bytes, std::min(sizeof(bytes), size - received.size()), MSG_DONTWAIT);
    if (count <= 0) break;
    received.append(bytes, static_cast<size_t>(count));
  }
  return received;
}

bool RawClient::IsEndedWithin(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (absl::Now() < deadline) {
    pollfd poll_in = {.fd = socket_.get(), .events = POLLIN, .revents = 0};
    if (poll(&poll_in, 1, 20) <= 0) continue;
    char bytes[4096];
    if (recv(socket_.get(), bytes, sizeof(bytes), MSG_DONTWAIT) <= 0) return true;
  }
  return false;
}

std::string RawClient::peer() const {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  EXPECT_EQ(getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return PeerOf(address);
}

void RawClient::Reset() {
  const linger now = {.l_onoff = 1, .l_linger = 0};
  setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  Close();
}

Acceptor::Options Watcher::Watching(Acceptor::Options options) {
  options.on_closed = [this](std::string_view reason) {
    absl::MutexLock lock(&mutex_);
    ++closed_[std::string(reason)];
  };
  options.on_unused = [this](std::string_view reason) {
    absl::MutexLock lock(&mutex_);
    ++unused_[std::string(reason)];
  };
  options.on_open_connections = [this](int64_t open) {
    absl::MutexLock lock(&mutex_);
    open_ = open;
  };
  return options;
}

bool Watcher::AwaitOpen(int64_t open, absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto is_reached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return open_ == open; };
  return mutex_.AwaitWithTimeout(absl::Condition(&is_reached), timeout);
}

bool Watcher::AwaitClosed(std::string_view reason, int64_t count, absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto is_reached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = closed_.find(reason);
    return found != closed_.end() && found->second >= count;
  };
  return mutex_.AwaitWithTimeout(absl::Condition(&is_reached), timeout);
}

bool Watcher::AwaitUnused(std::string_view reason, int64_t count, absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto is_reached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = unused_.find(reason);
    return found != unused_.end() && found->second == count;
  };
  return mutex_.AwaitWithTimeout(absl::Condition(&is_reached), timeout);
}

int64_t Watcher::unused() const {
  absl::MutexLock lock(&mutex_);
  int64_t sum = 0;
  for (const auto& [reason, count] : unused_) sum += count;
  return sum;
}

int64_t Watcher::closed(std::string_view reason) const {
  absl::MutexLock lock(&mutex_);
  const auto found = closed_.find(reason);
  return found == closed_.end() ? 0 : found->second;
}

int64_t Watcher::closed() const {
  absl::MutexLock lock(&mutex_);
  int64_t sum = 0;
  for (const auto& [reason, count] : closed_) sum += count;
  return sum;
}

int64_t NumOpenDescriptors() {
  const std::filesystem::directory_iterator descriptors("/proc/self/fd");
  return std::distance(begin(descriptors), end(descriptors)) - 1;  // the iterator has one descriptor itself
}

LoweredDescriptorLimit::LoweredDescriptorLimit(rlim_t limit) {
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
  const rlimit lowered = {.rlim_cur = limit, .rlim_max = before_.rlim_max};
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &lowered), 0);
}

LoweredDescriptorLimit::~LoweredDescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }

}  // namespace voxserve
