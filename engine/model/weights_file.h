#pragma once

// WeightsFile reads a file weights.safetensors in two steps: first the header, and then the data. In between, the model
// loader checks the header against the network. So a file that does not belong to the network costs no memory for its
// data, however large it is.
//
// - It reads the file into memory and does not map it with mmap: if another process shortens the file meanwhile, a read
//   returns fewer bytes, while an access to a mapping would raise SIGBUS.
// - All reads are of the file that was opened, even if another file takes its name.
// - Errors: each function adds what is wrong with the file to `problems` (problems.h).
// - Threads: one at a time.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "engine/model/problems.h"
#include "engine/model/safetensors.h"

namespace voxserve {

class WeightsFile {
 public:
  // Opens the file and reads the size of its header. Returns nullopt and adds a problem if the path is no regular file,
  // if the file cannot be read, or if it is shorter than the header size that it states.
  static std::optional<WeightsFile> Open(const std::filesystem::path& path, Problems* problems);
  WeightsFile(WeightsFile&& other) noexcept;
  WeightsFile& operator=(WeightsFile&&) = delete;
  ~WeightsFile();

  int64_t header_bytes() const { return header_bytes_; }
  int64_t file_bytes() const { return file_bytes_; }  // the file's size when it was opened

  // Returns the tensors without their data. Adds all errors to `problems`.
  StoredTensors ReadHeader(Problems* problems);

  // Reads the rest of the file, and gives the tensors of ReadHeader their data. The data belongs to this object and is
  // valid until this object is moved or destroyed. Returns false and adds a problem if the file has become shorter or
  // cannot be read.
  bool ReadData(StoredTensors* tensors, Problems* problems);

  // Returns the part of the file that was read so far, from its beginning.
  std::string_view content() const { return content_; }

 private:
  WeightsFile(int descriptor, std::string name, int64_t file_bytes);

  // Reads until content_ has this many bytes. Returns false and adds a problem if that fails.
  bool ReadUntil(int64_t end, Problems* problems);

  int descriptor_;
  const std::string name_;
  const int64_t file_bytes_;
  int64_t header_bytes_ = 0;  // without the 8 bytes that hold this size
  std::string content_;
};

}  // namespace voxserve
