#pragma once

// WeightsFile reads a file weights.safetensors in two steps: first its header, and, once that has been checked against
// the network, the data. So a file that does not belong to its network costs no memory, however large it is.
//
// - It reads the file and does not map it: if somebody cuts the file short meanwhile, a read returns fewer bytes, while
//   access to a map would raise a signal.
// - All reads are of the file that was opened, even if another file takes its name.
// - Problems are those of a model's owner, as in text_file.h.
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
  // nullopt, and a problem, where it is no regular file, cannot be read, or has no room for a header of the size that
  // it says.
  static std::optional<WeightsFile> Open(const std::filesystem::path& path, Problems* problems);
  WeightsFile(WeightsFile&& other) noexcept;
  WeightsFile& operator=(WeightsFile&&) = delete;
  ~WeightsFile();

  int64_t header_bytes() const { return header_bytes_; }
  int64_t file_bytes() const { return file_bytes_; }  // when it was opened

  // Returns the tensors without their data. Adds what is wrong to `problems`.
  StoredTensors ReadHeader(Problems* problems);

  // Reads the rest, and gives the tensors of ReadHeader their data, which lives as long as this object stays where it
  // is. False, and a problem, where the file has become shorter or cannot be read.
  bool ReadData(StoredTensors* tensors, Problems* problems);

  // Returns the part of the file that was read so far, from its beginning.
  std::string_view content() const { return content_; }

 private:
  WeightsFile(int descriptor, std::string name, int64_t file_bytes);

  // Reads until the content has this many bytes. False, and a problem, where it cannot.
  bool ReadUntil(int64_t end, Problems* problems);

  int descriptor_;
  const std::string name_;
  const int64_t file_bytes_;
  int64_t header_bytes_ = 0;  // without the 8 of its size
  std::string content_;
};

}  // namespace voxserve
