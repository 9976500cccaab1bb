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

  // Returns the line without its end; nullopt after the last line.
  std::optional<absl::string_view> Next();

  size_t position() const { return position_; }    // bytes read so far
  size_t num_lines() const { return num_lines_; }  // lines read so far
  size_t remaining() const { return text_.size() - position_; }

 private:
  absl::string_view text_;
  size_t position_ = 0;
  size_t num_lines_ = 0;
};

// Sets *value to the number in a word: a decimal number, or NaN or infinity as C libraries print them (nan, -nan(ind),
// inf, Infinity; older libraries for Windows: 1.#IND, 1.#QNAN0, -1.#INF00). Returns false for other words.
bool ParseNumber(absl::string_view word, double* value);

// A value of each line.
struct AsciiColumn {
  PointFieldType type = v1::POINT_FIELD_TYPE_UNSPECIFIED;  // UNSPECIFIED: the value is dropped
  bool is_list = false;  // the value is the number of values that follow, which are dropped with it
};

// Reads num_points lines of columns.size() numbers each, and appends them to *packed as little-endian values of their
// types. Skips blank lines. max_lines_behind: the most lines that may follow the points. Returns INVALID_ARGUMENT if
// there are fewer or more lines, or if a line, which the message names, has a wrong number of values or a value that
// does not fit its type.
absl::Status ParseAsciiPoints(uint64_t num_points, const std::vector<AsciiColumn>& columns, uint64_t max_lines_behind,
                              LineReader* lines, std::string* packed);

}  // namespace voxserve::client
