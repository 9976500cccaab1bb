#pragma once

// RegularFile reads a file of an operator, such as a file of a model folder, that nobody has checked.
//
// - It is a regular file when it is opened. A pipe could block the reader for ever, and a device might never end.
// - It is opened without waiting (O_NONBLOCK): not for the writer of a pipe, and not for a process that holds a lease.
// - It is read into memory and not mapped with mmap: if another process shortens the file meanwhile, a read returns
//   fewer bytes, while an access to a mapping would raise SIGBUS.
// - All reads are of the file that was opened, even if another file takes its name.
// - Errors are FAILED_PRECONDITION with the reason alone ("no regular file"); the caller names the file.
// - Threads: one at a time.

#include <cstdint>
#include <filesystem>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace voxserve {

class RegularFile {
 public:
  static absl::StatusOr<RegularFile> Open(const std::filesystem::path& path);
  RegularFile(RegularFile&& other) noexcept;
  RegularFile& operator=(RegularFile&&) = delete;
  ~RegularFile();

  int64_t num_bytes() const { return num_bytes_; }  // the file's size when it was opened

  // Appends the file's bytes from content->size() to `end` to `content`. Returns an error if the file has become
  // shorter, cannot be read, or if `stop` was requested.
  absl::Status ReadUntil(int64_t end, std::string* content, const std::stop_token& stop = {}) const;

 private:
  RegularFile(int descriptor, int64_t num_bytes) : descriptor_(descriptor), num_bytes_(num_bytes) {}

  int descriptor_;
  int64_t num_bytes_;
};

// Returns the whole file. Returns an error before it reads anything if the file has more than max_bytes.
absl::StatusOr<std::string> ReadRegularFile(const std::filesystem::path& path, int64_t max_bytes);

}  // namespace voxserve
