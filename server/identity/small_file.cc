#include "server/identity/small_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/sockets/descriptor.h"

namespace voxserve {
namespace {

constexpr size_t kMaxBytes = 1 << 20;

absl::Status CannotRead(const std::string& flag, const std::string& path, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", path, " cannot be read: ", why));
}

}  // namespace

absl::StatusOr<std::string> ReadSmallFile(const std::string& flag, const std::string& path) {
  // Without O_NONBLOCK, opening a pipe that has no writer would block the server's start.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return CannotRead(flag, path, std::strerror(errno));
  struct stat status = {};
  if (fstat(file.get(), &status) != 0) return CannotRead(flag, path, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) return CannotRead(flag, path, "it is no regular file");
  std::string text;
  char buffer[16 << 10];
  while (text.size() <= kMaxBytes) {
    const ssize_t size = read(file.get(), buffer, sizeof(buffer));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return CannotRead(flag, path, std::strerror(errno));
    if (size == 0) return text;
    text.append(buffer, static_cast<size_t>(size));
  }
  return CannotRead(flag, path, "it has more than 1 MiB");
}

}  // namespace voxserve
