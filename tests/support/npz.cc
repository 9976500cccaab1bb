#include "tests/support/npz.h"

#include <cstring>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/support/zip.h"

namespace voxserve::support {
namespace {

constexpr absl::string_view kMagic = "\x93NUMPY";

// Returns the text behind "'key': " in the header's Python dict, up to the end of the value.
absl::StatusOr<absl::string_view> HeaderValue(absl::string_view header, absl::string_view key) {
  const std::string quoted = absl::StrCat("'", key, "':");
  const size_t at = header.find(quoted);
  if (at == absl::string_view::npos)
    return absl::DataLossError(absl::StrCat("npy header without ", quoted, " ", header));
  absl::string_view rest = absl::StripLeadingAsciiWhitespace(header.substr(at + quoted.size()));
  if (rest.empty()) return absl::DataLossError(absl::StrCat("npy header ends after ", quoted));
  if (rest[0] == '(') {
    const size_t end = rest.find(')');
    if (end == absl::string_view::npos) return absl::DataLossError("npy header: shape without ')'");
    return rest.substr(1, end - 1);
  }
  if (rest[0] == '\'') {
    const size_t end = rest.find('\'', 1);
    if (end == absl::string_view::npos) return absl::DataLossError("npy header: string without end");
    return rest.substr(1, end - 1);
  }
  return rest.substr(0, rest.find_first_of(",}"));
}

absl::StatusOr<int64_t> ElementBytes(const std::string& dtype) {
  int64_t bytes = 0;
  const bool scalar = dtype.size() == 3 && absl::string_view("<|").find(dtype[0]) != absl::string_view::npos &&
                      absl::string_view("biufc").find(dtype[1]) != absl::string_view::npos &&
                      absl::SimpleAtoi(dtype.substr(2), &bytes) && bytes > 0;
  if (!scalar) return absl::UnimplementedError(absl::StrCat("npy dtype '", dtype, "' is not read"));
  return bytes;
}

}  // namespace

absl::StatusOr<NpyArray> ParseNpy(absl::string_view file) {
  constexpr size_t kVersionEnd = 8;
  if (file.size() < kVersionEnd + 4 || file.substr(0, kMagic.size()) != kMagic) {
    return absl::DataLossError("not an npy file: bad magic");
  }
  const int version = file[kMagic.size()];
  if (version < 1 || version > 3) return absl::UnimplementedError(absl::StrCat("npy version ", version));
  const size_t length_bytes = version == 1 ? 2 : 4;
  uint32_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data() + kVersionEnd, length_bytes);
  const size_t header_at = kVersionEnd + length_bytes;
  if (header_bytes > file.size() - header_at) {
    return absl::DataLossError(absl::StrCat("npy header of ", header_bytes, " bytes in a file of ", file.size()));
  }
  const absl::string_view header = file.substr(header_at, header_bytes);

  NpyArray array;
  absl::StatusOr<absl::string_view> text = HeaderValue(header, "descr");
  if (!text.ok()) return text.status();
  array.dtype = std::string(*text);
  const absl::StatusOr<int64_t> element_bytes = ElementBytes(array.dtype);
  if (!element_bytes.ok()) return element_bytes.status();

  text = HeaderValue(header, "shape");
  if (!text.ok()) return text.status();
  int64_t total_bytes = *element_bytes;
  for (const absl::string_view part : absl::StrSplit(*text, ',', absl::SkipWhitespace())) {
    int64_t size = 0;
    if (!absl::SimpleAtoi(part, &size) || size < 0) return absl::DataLossError(absl::StrCat("npy shape (", *text, ")"));
    array.shape.push_back(size);
    if (size != 0 && total_bytes > std::numeric_limits<int64_t>::max() / size) {
      return absl::DataLossError(absl::StrCat("npy shape (", *text, ") overflows"));
    }
    total_bytes *= size;
  }

  text = HeaderValue(header, "fortran_order");
  if (!text.ok()) return text.status();
  if (absl::StripAsciiWhitespace(*text) == "True" && array.shape.size() > 1) {
    return absl::UnimplementedError("npy array in Fortran order");
  }
  const absl::string_view values = file.substr(header_at + header_bytes);
  if (values.size() != static_cast<uint64_t>(total_bytes)) {
    return absl::DataLossError(
        absl::StrCat("npy array of shape (", absl::StripAsciiWhitespace(HeaderValue(header, "shape").value()),
                     ") and dtype ", array.dtype, " needs ", total_bytes, " bytes, has ", values.size()));
  }
  array.bytes = std::string(values);
  return array;
}

absl::StatusOr<NpyArray> ReadNpy(const std::string& path) {
  const absl::StatusOr<std::string> bytes = ReadFile(path);
  if (!bytes.ok()) return bytes.status();
  absl::StatusOr<NpyArray> array = ParseNpy(*bytes);
  if (!array.ok()) return absl::Status(array.status().code(), absl::StrCat(path, ": ", array.status().message()));
  return array;
}

absl::StatusOr<std::map<std::string, NpyArray>> ReadNpz(const std::string& path) {
  const absl::StatusOr<ZipArchive> archive = ZipArchive::Open(path);
  if (!archive.ok()) return archive.status();
  std::map<std::string, NpyArray> arrays;
  for (const std::string& name : archive->names()) {
    const absl::StatusOr<std::string> bytes = archive->Read(name);
    absl::StatusOr<NpyArray> array = bytes.ok() ? ParseNpy(*bytes) : bytes.status();
    if (!array.ok()) {
      return absl::Status(array.status().code(), absl::StrCat(path, ": ", name, ": ", array.status().message()));
    }
    arrays.emplace(absl::StripSuffix(name, ".npy"), *std::move(array));
  }
  return arrays;
}

}  // namespace voxserve::support
