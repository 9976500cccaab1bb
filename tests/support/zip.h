#pragma once

// Reads the zip containers that NumPy writes (.npz): stored or deflated entries, zip64 sizes and offsets, data
// descriptors (sizes are taken from the central directory). Encryption and split archives are not supported. Format:
// PKWARE APPNOTE.TXT 6.3.
//
// Every offset and size is checked against the file before use, and every entry's CRC-32 after reading. A damaged file
// gives a DataLoss error that names the entry, and never a crash. Opening is not thread-safe; const calls may run in
// parallel.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace voxserve::support {

// Returns the whole file as bytes. NotFound names the path.
absl::StatusOr<std::string> ReadFile(const std::string& path);

class ZipArchive {
 public:
  // Parses an archive, whose bytes the object then owns. A name that occurs twice is an error.
  static absl::StatusOr<ZipArchive> Open(const std::string& path);
  static absl::StatusOr<ZipArchive> Parse(std::string bytes);

  // Returns the names in ascending order.
  std::vector<std::string> names() const;
  bool Has(absl::string_view name) const { return entries_.find(name) != entries_.end(); }

  // Returns the entry's inflated bytes. NotFound lists the existing names.
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
