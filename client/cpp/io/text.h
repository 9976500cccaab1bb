#pragma once

// Lines and rows of numbers, for formats with text headers and ascii points.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/cpp/api/point_cloud.h"

namespace voxserve::client {

// Returns as much of a file's text as an error message shows: its first 32 bytes, and no half of a character.
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

// Reads num_points lines of columns.size() numbers each, as packed little-endian values of these types (UNSPECIFIED
// drops the column). Blank lines are skipped. INVALID_ARGUMENT if lines are missing; it names a line with a wrong
// number of values or with a value that does not fit its type.
absl::Status ParseAsciiPoints(uint64_t num_points, const std::vector<PointFieldType>& columns, LineReader* lines,
                              std::string* packed);

}  // namespace voxserve::client
