#include "tests/support/zip.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace voxserve::support {
namespace {

constexpr uint32_t kLocalHeader = 0x04034b50;
constexpr uint32_t kCentralHeader = 0x02014b50;
constexpr uint32_t kEndOfDirectory = 0x06054b50;
constexpr uint32_t kZip64EndOfDirectory = 0x06064b50;
constexpr uint32_t kZip64Locator = 0x07064b50;
constexpr uint64_t kLocalHeaderBytes = 30;
constexpr uint64_t kCentralHeaderBytes = 46;
constexpr uint64_t kEndOfDirectoryBytes = 22;
constexpr uint64_t kZip64EndOfDirectoryBytes = 56;
constexpr uint64_t kZip64LocatorBytes = 20;
constexpr uint16_t kZip64Extra = 1;
constexpr uint16_t kStored = 0;
constexpr uint16_t kDeflated = 8;
// In a 32-bit field, this value means that the zip64 extra field has the true value.
constexpr uint32_t kIn64 = 0xffffffff;

// Returns the little-endian value at `offset`. The caller has checked that it lies within `bytes`.
template <typename T>
T Load(const std::string& bytes, uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

bool Fits(const std::string& bytes, uint64_t offset, uint64_t size) {
  return offset <= bytes.size() && size <= bytes.size() - offset;
}

struct Directory {
  uint64_t offset;
  uint64_t num_entries;
};

absl::StatusOr<Directory> FindDirectory(const std::string& bytes) {
  if (bytes.size() < kEndOfDirectoryBytes) {
    return absl::DataLossError(absl::StrCat("not a zip file: ", bytes.size(), " bytes"));
  }
  // The end-of-directory record is at the end of the file. Only a comment of at most 65,535 bytes may follow it.
  const uint64_t last = bytes.size() - kEndOfDirectoryBytes;
  const uint64_t first = last - std::min<uint64_t>(last, std::numeric_limits<uint16_t>::max());
  for (uint64_t end = last + 1; end-- > first;) {
    if (Load<uint32_t>(bytes, end) != kEndOfDirectory) continue;
    const uint64_t locator = end - kZip64LocatorBytes;
    if (end >= kZip64LocatorBytes && Load<uint32_t>(bytes, locator) == kZip64Locator) {
      const uint64_t record = Load<uint64_t>(bytes, locator + 8);
      if (!Fits(bytes, record, kZip64EndOfDirectoryBytes) || Load<uint32_t>(bytes, record) != kZip64EndOfDirectory) {
        return absl::DataLossError(absl::StrCat("zip64 end record expected at byte ", record));
      }
      return Directory{Load<uint64_t>(bytes, record + 48), Load<uint64_t>(bytes, record + 32)};
    }
    return Directory{Load<uint32_t>(bytes, end + 16), Load<uint16_t>(bytes, end + 10)};
  }
  return absl::DataLossError("not a zip file: no end-of-directory record");
}

absl::StatusOr<std::string> Inflate(absl::string_view compressed, uint64_t bytes) {
  // Deflate expands data by a factor of at most 1032. A header that claims more would only cause a useless allocation.
  if (bytes / 1032 > compressed.size()) {
    return absl::DataLossError(absl::StrCat("claims ", bytes, " bytes from ", compressed.size(), " deflated ones"));
  }
  if (compressed.size() > std::numeric_limits<uInt>::max() || bytes > std::numeric_limits<uInt>::max()) {
    return absl::UnimplementedError(absl::StrCat("deflated entry of ", bytes, " bytes; at most 4 GiB are read"));
  }
  std::string out(bytes, '\0');
  z_stream stream = {};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return absl::InternalError("zlib does not start");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(compressed.data()));
  stream.avail_in = static_cast<uInt>(compressed.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int code = inflate(&stream, Z_FINISH);
  const uint64_t written = stream.total_out;
  inflateEnd(&stream);
  if (code != Z_STREAM_END || written != bytes) {
    return absl::DataLossError(absl::StrCat("inflates to ", written, " bytes of ", bytes, ", zlib code ", code));
  }
  return out;
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return absl::NotFoundError(absl::StrCat("no file ", path));
  std::ifstream file(path, std::ios::binary);
  std::string bytes(std::filesystem::file_size(path, error), '\0');
  if (error || !file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) {
    return absl::DataLossError(absl::StrCat("cannot read ", path));
  }
  return bytes;
}

absl::StatusOr<ZipArchive> ZipArchive::Open(const std::string& path) {
  absl::StatusOr<std::string> bytes = ReadFile(path);
  if (!bytes.ok()) return bytes.status();
  absl::StatusOr<ZipArchive> archive = Parse(*std::move(bytes));
  if (!archive.ok()) return absl::Status(archive.status().code(), absl::StrCat(path, ": ", archive.status().message()));
  return archive;
}

absl::StatusOr<ZipArchive> ZipArchive::Parse(std::string bytes) {
  const absl::StatusOr<Directory> directory = FindDirectory(bytes);
  if (!directory.ok()) return directory.status();
  ZipArchive archive;
  uint64_t at = directory->offset;
  for (uint64_t i = 0; i < directory->num_entries; ++i) {
    if (!Fits(bytes, at, kCentralHeaderBytes) || Load<uint32_t>(bytes, at) != kCentralHeader) {
      return absl::DataLossError(
          absl::StrCat("entry ", i, " of ", directory->num_entries, ": no directory record at byte ", at));
    }
    const uint64_t name_bytes = Load<uint16_t>(bytes, at + 28);
    const uint64_t extra_bytes = Load<uint16_t>(bytes, at + 30);
    const uint64_t comment_bytes = Load<uint16_t>(bytes, at + 32);
    if (!Fits(bytes, at + kCentralHeaderBytes, name_bytes + extra_bytes + comment_bytes)) {
      return absl::DataLossError(absl::StrCat("entry ", i, ": its directory record runs past the end"));
    }
    std::string name = bytes.substr(at + kCentralHeaderBytes, name_bytes);
    Entry entry{Load<uint16_t>(bytes, at + 10), Load<uint32_t>(bytes, at + 16), Load<uint32_t>(bytes, at + 20),
                Load<uint32_t>(bytes, at + 24), Load<uint32_t>(bytes, at + 42)};
    // The zip64 field holds 64-bit values only for the 32-bit fields that have their maximum, in this order.
    uint64_t field = at + kCentralHeaderBytes + name_bytes;
    const uint64_t extra_end = field + extra_bytes;
    while (extra_end - field >= 4) {
      const uint16_t id = Load<uint16_t>(bytes, field);
      const uint64_t field_end = field + 4 + Load<uint16_t>(bytes, field + 2);
      if (field_end > extra_end) break;
      if (id == kZip64Extra) {
        uint64_t value = field + 4;
        for (uint64_t* wide : {&entry.bytes, &entry.compressed_bytes, &entry.header_offset}) {
          if (*wide != kIn64 || field_end - value < sizeof(uint64_t)) continue;
          *wide = Load<uint64_t>(bytes, value);
          value += sizeof(uint64_t);
        }
      }
      field = field_end;
    }
    if (!archive.entries_.emplace(name, entry).second) {
      return absl::DataLossError(absl::StrCat("entry '", name, "' occurs twice"));
    }
    at += kCentralHeaderBytes + name_bytes + extra_bytes + comment_bytes;
  }
  archive.bytes_ = std::move(bytes);
  return archive;
}

std::vector<std::string> ZipArchive::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

absl::StatusOr<std::string> ZipArchive::Read(absl::string_view name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    return absl::NotFoundError(absl::StrCat("no entry '", name, "'; there are: ", absl::StrJoin(names(), ", ")));
  }
  const Entry& entry = found->second;
  const auto damaged = [&](const auto&... what) {
    return absl::DataLossError(absl::StrCat("entry '", name, "': ", what...));
  };
  if (!Fits(bytes_, entry.header_offset, kLocalHeaderBytes) ||
      Load<uint32_t>(bytes_, entry.header_offset) != kLocalHeader) {
    return damaged("no header at byte ", entry.header_offset);
  }
  const uint64_t begin = entry.header_offset + kLocalHeaderBytes + Load<uint16_t>(bytes_, entry.header_offset + 26) +
                         Load<uint16_t>(bytes_, entry.header_offset + 28);
  if (!Fits(bytes_, begin, entry.compressed_bytes)) {
    return damaged(entry.compressed_bytes, " bytes at ", begin, " run past the end at ", bytes_.size());
  }
  const absl::string_view raw = absl::string_view(bytes_).substr(begin, entry.compressed_bytes);
  std::string out;
  if (entry.method == kStored) {
    if (entry.bytes != raw.size()) return damaged("stored in ", raw.size(), " bytes but holds ", entry.bytes);
    out = std::string(raw);
  } else if (entry.method == kDeflated) {
    absl::StatusOr<std::string> inflated = Inflate(raw, entry.bytes);
    if (!inflated.ok()) return absl::Status(inflated.status().code(), damaged(inflated.status().message()).message());
    out = *std::move(inflated);
  } else {
    return absl::UnimplementedError(
        absl::StrCat("entry '", name, "': compression method ", entry.method, "; stored and deflate are read"));
  }
  const uint32_t crc = static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(out.data()), out.size()));
  if (crc != entry.crc32) return damaged("CRC-32 ", absl::Hex(crc), " instead of ", absl::Hex(entry.crc32));
  return out;
}

}  // namespace voxserve::support
