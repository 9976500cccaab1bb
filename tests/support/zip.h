#pragma once

// Reads the zip archives that NumPy writes (.npz): stored or deflated entries, zip64 sizes and offsets, and data
// descriptors (sizes are read from the central directory). Encrypted and split archives are not supported. The format
// is that of PKWARE's APPNOTE.TXT 6.3.
//
// The reader checks every offset and size against the file before use, and every entry's CRC-32 after reading. For a
// damaged file it returns DATA_LOSS with the entry's name, and never crashes. Const calls may run in parallel.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace voxserve::support {

// Returns the whole file as bytes. Returns NOT_FOUND with the path if there is no such file.
absl::StatusOr<std::string> ReadFile(const std::string& path);

class ZipArchive {
 public:
  // Parses an archive, whose bytes the object then owns. A name that occurs twice is an error.
  static absl::StatusOr<ZipArchive> Open(const std::string& path);
  static absl::StatusOr<ZipArchive> Parse(std::string bytes);

  // Returns the names in ascending order.
  std::vector<std::string> names() const;
  bool Has(absl::string_view name) const { return entries_.find(name) != entries_.end(); }

  // Returns the entry's inflated bytes. Returns NOT_FOUND with the existing names if there is no such entry.
  absl::StatusOr<std::string> Read(absl::string_view name) const;

 private:
  struct Entry {
    uint16_t method;
    uint32_t crc32;
    uint64_t compressed_bytes;
    uint64_t bytes;
    uint64_t header_offset;
  };

  std::string bytes_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace voxserve::support
