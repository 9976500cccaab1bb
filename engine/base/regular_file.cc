#include "engine/base/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace voxserve {
namespace {

constexpr int64_t kBytesBetweenStops = int64_t{16} << 20;  // a slow disk reads them in less than a second

absl::Status Because(const std::string& why) { return absl::FailedPreconditionError(why); }

absl::Status LastError() { return Because(std::system_category().message(errno)); }

}  // namespace

absl::StatusOr<RegularFile> RegularFile::Open(const std::filesystem::path& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) return LastError();
  struct stat status = {};
  const int failed = fstat(descriptor, &status);
  RegularFile file(descriptor, static_cast<int64_t>(status.st_size));
  if (failed != 0) return LastError();
  if (!S_ISREG(status.st_mode)) return Because("no regular file");
  return file;
}

RegularFile::RegularFile(RegularFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), num_bytes_(other.num_bytes_) {}

RegularFile::~RegularFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::Status RegularFile::ReadUntil(int64_t end, std::string* content, const std::stop_token& stop) const {
  auto read = static_cast<int64_t>(content->size());
  content->reserve(static_cast<size_t>(end));
  while (read < end) {
    if (stop.stop_requested()) return Because("the read was stopped");
    const int64_t most = std::min(end - read, kBytesBetweenStops);
    content->resize(static_cast<size_t>(read + most));
    const ssize_t got = pread(descriptor_, content->data() + read, static_cast<size_t>(most), read);
    if (got > 0) {
      read += got;
      content->resize(static_cast<size_t>(read));
    } else if (got == 0) {
      return Because(absl::StrCat("only ", read, " of ", num_bytes_, " bytes"));
    } else if (errno != EINTR) {
      return LastError();
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadRegularFile(const std::filesystem::path& path, int64_t max_bytes) {
  ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(path));
  if (file.num_bytes() > max_bytes) {
    return Because(absl::StrCat("it has ", file.num_bytes(), " bytes; at most ", max_bytes, " are read"));
  }
  std::string content;
  RETURN_IF_ERROR(file.ReadUntil(file.num_bytes(), &content));
  return content;
}

}  // namespace voxserve
