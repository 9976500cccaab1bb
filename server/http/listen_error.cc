#include "server/http/listen_error.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace voxserve {
namespace {

std::string Reason(const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* addresses = nullptr;
  if (const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &addresses); error != 0) {
    return gai_strerror(error);
  }
  std::string reason = "unknown reason";
  for (const addrinfo* address = addresses; address != nullptr; address = address->ai_next) {
    const int descriptor = socket(address->ai_family, address->ai_socktype, address->ai_protocol);
    const int yes = 1;
    if (descriptor >= 0) setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    const bool fails =
        descriptor < 0 || bind(descriptor, address->ai_addr, address->ai_addrlen) != 0 || listen(descriptor, 1) != 0;
    if (fails) reason = std::strerror(errno);
    if (descriptor >= 0) close(descriptor);
    if (fails) break;
  }
  freeaddrinfo(addresses);
  return reason;
}

}  // namespace

absl::Status ListenError(const std::string& what, const std::string& host, int port, const std::string& flag) {
  return absl::UnavailableError(absl::StrCat("cannot listen for ", what, " on ", WithBrackets(host), ":", port, ": ",
                                             Reason(WithoutBrackets(host), port), " (--", flag,
                                             " chooses another port, --host another address)"));
}

std::string WithBrackets(const std::string& host) {
  const bool is_bare_v6 = host.find(':') != std::string::npos && host.front() != '[';
  return is_bare_v6 ? absl::StrCat("[", host, "]") : host;
}

std::string WithoutBrackets(const std::string& host) {
  const bool has_brackets = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  return has_brackets ? host.substr(1, host.size() - 2) : host;
}

}  // namespace voxserve
