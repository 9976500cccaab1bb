#pragma once

// Reads the zip containers that NumPy writes (.npz): entries stored or deflated, zip64 sizes and
// offsets, data descriptors (sizes are taken from the central directory). No encryption, no split archives.
// Format: PKWARE APPNOTE.TXT 6.3.
//
// Every offset and size is checked against the file before it is used and every entry's CRC-32 after it is read, so a
// damaged file gives a DataLoss error that names the entry, never a crash. Not thread-safe while being opened; const
// calls may run in parallel.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace voxserve::support {

// The whole file as bytes. NotFound names the path.
absl::StatusOr<std::string> ReadFile(const std::string& path);

class ZipArchive {
 public:
  // Owns the file's bytes. A name that occurs twice is an error.
  static absl::StatusOr<ZipArchive> Open(const std::string& path);
  static absl::StatusOr<ZipArchive> Parse(std::string bytes);

  // In the order of names.
  std::vector<std::string> names() const;
  bool Has(absl::string_view name) const { return entries_.find(name) != entries_.end(); }

  // The entry's bytes, inflated. NotFound lists the names that are there.
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
