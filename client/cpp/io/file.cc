#include "client/cpp/io/file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace voxserve::client {

namespace {
constexpr uint64_t kMaxFileBytes = uint64_t{2} << 30;
}  // namespace

absl::Status CheckFile(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  }
  if (!std::filesystem::is_regular_file(status)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a file"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  if (absl::Status status = CheckFile(path); !status.ok()) return status;
  std::error_code error;
  const uint64_t size = std::filesystem::file_size(path, error);
  if (!error && size > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", size, " bytes, more than the ", kMaxFileBytes, " that a message can carry"));
  }
  std::ifstream file(path, std::ios::binary);
  if (error || !file) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot be opened"));
  std::string contents(size, '\0');
  file.read(contents.data(), static_cast<std::streamsize>(size));
  if (static_cast<uint64_t>(file.gcount()) != size) {
    return absl::InternalError(absl::StrCat(path, ": read ", file.gcount(), " of ", size, " bytes"));
  }
  return contents;
}

absl::Status WriteFile(const std::string& path, absl::string_view contents) {
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".part");
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  if (!file) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot be written"));
  file.write(contents.data(), static_cast<std::streamsize>(contents.size()));
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
    absl::Status status = absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot be written"));
    std::remove(temporary.c_str());
    return status;
  }
  return absl::OkStatus();
}

}  // namespace voxserve::client
