#include "client/cpp/io/label_file.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/io/file.h"
#include "client/cpp/io/npy_header.h"

namespace voxserve::client {
namespace {

template <typename T>
void AppendLabelsAs(const std::vector<uint16_t>& labels, std::string* out) {
  out->reserve(out->size() + labels.size() * sizeof(T));
  for (const uint16_t label : labels) {
    const T value = static_cast<T>(label);
    out->append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
}

// Returns the low 16 bits of every `width`-byte value.
std::vector<uint16_t> LowBits(absl::string_view bytes, size_t width, bool is_bigendian) {
  std::vector<uint16_t> labels(bytes.size() / width);
  for (size_t i = 0; i < labels.size(); ++i) {
    const char* value = bytes.data() + i * width;
    const auto byte = [&](size_t k) -> unsigned {
      return k >= width ? 0u : static_cast<unsigned char>(value[is_bigendian ? width - 1 - k : k]);
    };
    labels[i] = static_cast<uint16_t>(byte(0) | byte(1) << 8);
  }
  return labels;
}

absl::StatusOr<std::vector<uint16_t>> FromNpy(absl::string_view contents) {
  const absl::StatusOr<NpyHeader> header = ReadNpyHeader(contents);
  if (!header.ok()) return header.status();
  if (header->is_structured || !IsInteger(header->fields[0].type) ||
      (header->shape.size() != 1 && !(header->shape.size() == 2 && header->shape[1] == 1))) {
    return absl::InvalidArgumentError("labels must be an array of integers of up to 4 bytes, shape (points,)");
  }
  return LowBits(contents.substr(header->data_offset), header->item_bytes, header->is_bigendian);
}

}  // namespace

bool IsLabelFile(const std::string& path) {
  return absl::EndsWithIgnoreCase(path, ".npy") || absl::EndsWithIgnoreCase(path, ".label");
}

absl::Status WriteLabels(const std::string& path, const std::vector<uint16_t>& labels, int bytes_per_label) {
  std::string contents;
  if (absl::EndsWithIgnoreCase(path, ".label")) {
    AppendLabelsAs<uint32_t>(labels, &contents);
  } else if (!absl::EndsWithIgnoreCase(path, ".npy")) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": labels are written as .npy or .label"));
  } else if (bytes_per_label == 1) {
    contents = MakeNpyHeader("'|u1'", {labels.size()});
    AppendLabelsAs<uint8_t>(labels, &contents);
  } else {
    contents = MakeNpyHeader("'<u2'", {labels.size()});
    AppendLabelsAs<uint16_t>(labels, &contents);
  }
  return WriteFile(path, contents);
}

absl::StatusOr<std::vector<uint16_t>> ReadLabels(const std::string& path, uint64_t num_points) {
  const absl::StatusOr<std::string> contents = ReadFile(path);
  if (!contents.ok()) return contents.status();
  std::vector<uint16_t> labels;
  if (absl::EndsWithIgnoreCase(path, ".npy")) {
    absl::StatusOr<std::vector<uint16_t>> read = FromNpy(*contents);
    if (!read.ok()) return absl::Status(read.status().code(), absl::StrCat(path, ": ", read.status().message()));
    labels = *std::move(read);
  } else if (absl::EndsWithIgnoreCase(path, ".label") || contents->size() == 4 * num_points) {
    labels = LowBits(*contents, sizeof(uint32_t), /*is_bigendian=*/false);
  } else {
    labels = LowBits(*contents, sizeof(uint8_t), /*is_bigendian=*/false);
  }
  if (labels.size() != num_points) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", contents->size(), " bytes are not ", num_points,
                                                   " labels of 1 or 4 bytes (or an .npy of them)"));
  }
  return labels;
}

}  // namespace voxserve::client
