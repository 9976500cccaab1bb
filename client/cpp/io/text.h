#pragma once

// What the formats with text headers and ascii points share: lines, and rows of numbers.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/cpp/api/point_cloud.h"

namespace voxserve::client {

// Goes through a text line by line, with \n or \r\n endings. The text outlives it.
class LineReader {
 public:
  explicit LineReader(absl::string_view text) : text_(text) {}

  // Without its ending; nullopt at the end.
  std::optional<absl::string_view> Next();

  size_t position() const { return position_; }    // bytes taken so far
  size_t num_lines() const { return num_lines_; }  // lines taken so far
  size_t remaining() const { return text_.size() - position_; }

 private:
  absl::string_view text_;
  size_t position_ = 0;
  size_t num_lines_ = 0;
};

// Reads num_points lines of columns.size() numbers each as packed little-endian values of those types (a type of
// UNSPECIFIED drops the column). Blank lines are passed over. INVALID_ARGUMENT naming the line that has another number
// of values or one that its type cannot hold, and where lines are missing.
absl::Status ParseAsciiPoints(uint64_t num_points, const std::vector<PointFieldType>& columns, LineReader* lines,
                              std::string* packed);

}  // namespace voxserve::client
