#include "server/sockets/listen.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "server/sockets/listen_error.h"

namespace voxserve {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<Addresses> Resolve(const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* addresses = nullptr;
  if (const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &addresses); error != 0) {
    return absl::UnavailableError(gai_strerror(error));
  }
  return Addresses(addresses, &freeaddrinfo);
}

// Returns a socket that listens on the address, or an empty descriptor and sets errno. port: used in place of the
// address's port, unless it is 0.
Descriptor ListenOnAddress(const addrinfo& address, int port) {
  sockaddr_storage storage = {};
  std::memcpy(&storage, address.ai_addr, address.ai_addrlen);
  if (port != 0 && storage.ss_family == AF_INET) reinterpret_cast<sockaddr_in&>(storage).sin_port = htons(port);
  if (port != 0 && storage.ss_family == AF_INET6) reinterpret_cast<sockaddr_in6&>(storage).sin6_port = htons(port);

  Descriptor socket(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol));
  if (!socket) return socket;
  const int yes = 1;
  const int no = 0;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (address.ai_family == AF_INET6) setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&storage), address.ai_addrlen) != 0 ||
      listen(socket.get(), SOMAXCONN) != 0) {
    const int error = errno;
    socket.Reset();
    errno = error;
  }
  return socket;
}

bool MachineLacksAddress(int error) {
  return error == EADDRNOTAVAIL || error == EAFNOSUPPORT || error == EPROTONOSUPPORT;
}

absl::StatusOr<std::vector<Descriptor>> ListenOnEach(const std::string& host, int port) {
  const absl::StatusOr<Addresses> addresses = Resolve(host, port);
  if (!addresses.ok()) return addresses.status();
  std::vector<Descriptor> sockets;
  std::string reason = "the name has no address";
  for (const addrinfo* address = addresses->get(); address != nullptr; address = address->ai_next) {
    Descriptor socket = ListenOnAddress(*address, sockets.empty() ? 0 : PortOf(sockets.front()));
    if (socket) {
      sockets.push_back(std::move(socket));
      continue;
    }
    const int error = errno;
    reason = std::strerror(error);
    if (!MachineLacksAddress(error)) return absl::UnavailableError(reason);
  }
  if (sockets.empty()) return absl::UnavailableError(reason);
  return sockets;
}

}  // namespace

absl::StatusOr<std::vector<Descriptor>> ListenOn(const std::string& host, int port) {
  const std::string bare = WithoutBrackets(host);
  const bool is_any_address = bare == "0.0.0.0" || bare == "::";
  if (!is_any_address) return ListenOnEach(bare, port);
  absl::StatusOr<std::vector<Descriptor>> both = ListenOnEach("::", port);
  // The machine may have no IPv6. An attempt with only IPv4 shows whether that was the reason.
  return both.ok() ? std::move(both) : ListenOnEach("0.0.0.0", port);
}

int PortOf(const Descriptor& socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return 0;
}

}  // namespace voxserve
