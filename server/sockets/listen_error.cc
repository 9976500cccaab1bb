#include "server/sockets/listen_error.h"

#include "absl/strings/str_cat.h"
#include "server/sockets/listen.h"

namespace voxserve {
namespace {

std::string Reason(const std::string& host, int port) {
  const absl::Status status = ListenOn(host, port).status();
  return status.ok() ? "unknown reason" : std::string(status.message());
}

}  // namespace

absl::Status ListenError(const std::string& what, const std::string& host, int port, const std::string& flag) {
  return ListenError(what, host, port, flag, Reason(host, port));
}

absl::Status ListenError(const std::string& what, const std::string& host, int port, const std::string& flag,
                         std::string_view reason, const std::string& host_flag) {
  return absl::UnavailableError(absl::StrCat("cannot listen for ", what, " on ", WithBrackets(host), ":", port, ": ",
                                             std::string(reason), " (--", flag, " chooses another port, --", host_flag,
                                             " another address)"));
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
