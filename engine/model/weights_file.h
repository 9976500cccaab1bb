#pragma once

// WeightsFile reads a file weights.safetensors in two steps: first the header, and then the data. In between, the model
// loader checks the header against the network. So a file that does not belong to the network costs no memory for its
// data, however large it is.
//
// - It reads as RegularFile does (engine/base/regular_file.h): into memory, and the file that was opened.
// - Errors: each function adds what is wrong with the file to `problems` (problems.h).
// - Threads: one at a time.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>

#include "engine/base/regular_file.h"
#include "engine/model/problems.h"
#include "engine/model/safetensors.h"

namespace voxserve {

class WeightsFile {
 public:
  // Opens the file and reads the size of its header. Returns nullopt and adds a problem if the path is no regular file,
  // if the file cannot be read, or if it is shorter than the header size that it states. stop: ends later reads early,
  // with a problem.
  static std::optional<WeightsFile> Open(const std::filesystem::path& path, Problems* problems,
                                         std::stop_token stop = {});

  int64_t header_bytes() const { return header_bytes_; }
  int64_t file_bytes() const { return file_.num_bytes(); }  // the file's size when it was opened

  // Returns the tensors without their data. Adds all errors to `problems`.
  StoredTensors ReadHeader(Problems* problems);

  // Reads the rest of the file, and gives the tensors of ReadHeader their data. The data belongs to this object and is
  // valid until this object is moved or destroyed. Returns false and adds a problem if the file has become shorter or
  // cannot be read.
  bool ReadData(StoredTensors* tensors, Problems* problems);

  // Returns the part of the file that was read so far, from its beginning.
  std::string_view content() const { return content_; }

 private:
  WeightsFile(RegularFile file, std::string name, std::stop_token stop)
      : file_(std::move(file)), name_(std::move(name)), stop_(std::move(stop)) {}

  // Reads until content_ has this many bytes. Returns false and adds a problem if that fails.
  bool ReadUntil(int64_t end, Problems* problems);

  RegularFile file_;
  const std::string name_;
  const std::stop_token stop_;
  int64_t header_bytes_ = 0;  // without the 8 bytes that hold this size
  std::string content_;
};

}  // namespace voxserve
