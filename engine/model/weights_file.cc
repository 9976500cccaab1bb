#include "engine/model/weights_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace voxserve {

std::optional<WeightsFile> WeightsFile::Open(const std::filesystem::path& path, Problems* problems) {
  const std::string name = path.filename().string();
  const auto refuse = [&](const std::string& why) {
    problems->push_back(absl::StrCat(name, ": cannot be read (", why, ")"));
    return std::nullopt;
  };
  // Without O_NONBLOCK, open would wait at a pipe until another process opens it for writing.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return refuse(std::system_category().message(errno));
  struct stat status = {};
  const int failed = fstat(descriptor, &status);
  WeightsFile file(descriptor, name, static_cast<int64_t>(status.st_size));
  if (failed != 0) return refuse(std::system_category().message(errno));
  if (!S_ISREG(status.st_mode)) return refuse("no regular file");
  if (!file.ReadUntil(std::min<int64_t>(kSafetensorsSizeBytes, file.file_bytes_), problems)) return std::nullopt;
  const auto header_bytes = HeaderBytesOf(file.content_, static_cast<uint64_t>(file.file_bytes_), problems);
  if (!header_bytes.has_value()) return std::nullopt;
  file.header_bytes_ = static_cast<int64_t>(*header_bytes);
  return file;
}

WeightsFile::WeightsFile(int descriptor, std::string name, int64_t file_bytes)
    : descriptor_(descriptor), name_(std::move(name)), file_bytes_(file_bytes) {}

WeightsFile::WeightsFile(WeightsFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      name_(other.name_),
      file_bytes_(other.file_bytes_),
      header_bytes_(other.header_bytes_),
      content_(std::move(other.content_)) {}

WeightsFile::~WeightsFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

StoredTensors WeightsFile::ReadHeader(Problems* problems) {
  constexpr int64_t kBegin = kSafetensorsSizeBytes;
  if (!ReadUntil(kBegin + header_bytes_, problems)) return {};
  return ParseSafetensorsHeader(content().substr(kBegin), static_cast<uint64_t>(file_bytes_ - kBegin - header_bytes_),
                                problems);
}

bool WeightsFile::ReadData(StoredTensors* tensors, Problems* problems) {
  const size_t begin = content_.size();
  if (!ReadUntil(file_bytes_, problems)) return false;
  SetData(content().substr(begin), tensors);
  return true;
}

bool WeightsFile::ReadUntil(int64_t end, Problems* problems) {
  auto read = static_cast<int64_t>(content_.size());
  content_.resize(static_cast<size_t>(end));
  while (read < end) {
    const ssize_t got = pread(descriptor_, content_.data() + read, static_cast<size_t>(end - read), read);
    if (got > 0) {
      read += got;
    } else if (got == 0 || errno != EINTR) {
      const std::string why =
          got == 0 ? absl::StrCat("only ", read, " of ", file_bytes_, " bytes") : std::system_category().message(errno);
      problems->push_back(absl::StrCat(name_, ": cannot be read (", why, ")"));
      return false;
    }
  }
  return true;
}

}  // namespace voxserve
