#pragma once

// These parts read lines and rows of numbers, for formats with text headers and ASCII points (PCD, PLY, poses).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/cpp/api/point_cloud.h"

namespace voxserve::client {

// Returns the part of a file's text that an error message shows: at most its first 32 bytes, without cutting a UTF-8
// character.
absl::string_view Shown(absl::string_view text);

// Reads a text line by line, with \n or \r\n line ends. The text must outlive it.
class LineReader {
 public:
  explicit LineReader(absl::string_view text) : text_(text) {}

  // Returns the line without its end; nullopt behind the last line.
  std::optional<absl::string_view> Next();

  size_t position() const { return position_; }    // bytes read so far
  size_t num_lines() const { return num_lines_; }  // lines read so far
  size_t remaining() const { return text_.size() - position_; }

 private:
  absl::string_view text_;
  size_t position_ = 0;
  size_t num_lines_ = 0;
};

// Reads num_points lines of columns.size() numbers each, and appends them to *packed as little-endian values of the
// types in `columns`; a column of type UNSPECIFIED is dropped. Skips blank lines. Returns INVALID_ARGUMENT if lines are
// missing, or if a line, which the message names, has a wrong number of values or a value that does not fit its type.
absl::Status ParseAsciiPoints(uint64_t num_points, const std::vector<PointFieldType>& columns, LineReader* lines,
                              std::string* packed);

}  // namespace voxserve::client
