#include "client/cpp/io/pcd_reader.h"

#include <lzf.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cpp/io/columns.h"
#include "client/cpp/io/text.h"
#include "client/cpp/io/to_float64.h"
#include "engine/base/numbers.h"

namespace voxserve::client {
namespace {

constexpr uint64_t kMaxPointBytes = 1 << 20;
constexpr uint64_t kMaxLzfExpansion = 264;  // the longest match that three bytes can encode

using PcdWords = std::vector<std::string>;

struct PcdHeader {
  std::map<std::string, PcdWords> entries;  // by keyword
  std::string data;                         // ascii, binary or binary_compressed
};

struct Layout {
  struct Column {
    PointField field;    // its offset in a packed point
    uint32_t bytes = 0;  // size of all values of the field
    bool skipped = false;
  };
  std::vector<Column> columns;
  std::vector<LongField> long_fields;  // the columns of integers of 8 bytes
  uint64_t point_step = 0;
  uint64_t num_points = 0;
  uint64_t height = 1;
};

absl::Status BadPcd(absl::string_view why) { return absl::InvalidArgumentError(absl::StrCat("PCD: ", why)); }

absl::StatusOr<PcdHeader> ReadPcdHeader(LineReader* lines) {
  PcdHeader header;
  while (const std::optional<absl::string_view> line = lines->Next()) {
    if (lines->position() > kMaxPointBytes) break;
    PcdWords words = absl::StrSplit(*line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (words.empty() || words[0][0] == '#') continue;
    const std::string keyword = absl::AsciiStrToUpper(words[0]);
    words.erase(words.begin());
    if (keyword == "DATA") {
      if (words.size() != 1) return BadPcd("DATA needs one word: ascii, binary or binary_compressed");
      header.data = absl::AsciiStrToLower(words[0]);
      return header;
    }
    header.entries[keyword == "COLUMNS" ? "FIELDS" : keyword] = std::move(words);
  }
  return BadPcd("the header has no DATA line");
}

// Returns the number of a line of the header; nullopt if the header lacks the line.
absl::StatusOr<std::optional<uint64_t>> ReadCount(const PcdHeader& header, const std::string& keyword) {
  const auto entry = header.entries.find(keyword);
  uint64_t value = 0;
  if (entry == header.entries.end()) return std::nullopt;
  if (entry->second.size() != 1 || !ParseInteger(entry->second[0], &value)) {
    return BadPcd(absl::StrCat(keyword, " needs one whole number"));
  }
  return value;
}

PointFieldType PcdTypeOf(char kind, uint64_t size) {
  if (kind == 'F') {
    return size == 4   ? v1::POINT_FIELD_TYPE_FLOAT32
           : size == 8 ? v1::POINT_FIELD_TYPE_FLOAT64
                       : v1::POINT_FIELD_TYPE_UNSPECIFIED;
  }
  if (kind == 'B') return v1::POINT_FIELD_TYPE_UINT8;  // a byte that is 0 or 1
  const bool is_signed = kind == 'I';
  switch (size) {
    case 1:
      return is_signed ? v1::POINT_FIELD_TYPE_INT8 : v1::POINT_FIELD_TYPE_UINT8;
    case 2:
      return is_signed ? v1::POINT_FIELD_TYPE_INT16 : v1::POINT_FIELD_TYPE_UINT16;
    case 4:
      return is_signed ? v1::POINT_FIELD_TYPE_INT32 : v1::POINT_FIELD_TYPE_UINT32;
    default:
      return v1::POINT_FIELD_TYPE_UNSPECIFIED;
  }
}

// Sets the number of points and rows. As PCL's reader does (io/src/pcd_io.cpp, PCDReader::readHeader), a cloud without
// HEIGHT is one row, and without WIDTH its width follows from POINTS.
absl::Status ReadExtent(const PcdHeader& header, Layout* layout) {
  const absl::StatusOr<std::optional<uint64_t>> points = ReadCount(header, "POINTS");
  const absl::StatusOr<std::optional<uint64_t>> rows = ReadCount(header, "HEIGHT");
  absl::StatusOr<std::optional<uint64_t>> width = ReadCount(header, "WIDTH");
  if (!points.ok()) return points.status();
  if (!rows.ok()) return rows.status();
  if (!width.ok()) return width.status();
  const uint64_t height = rows->value_or(1);
  const bool has_width = width->has_value() && (**width > 0 || rows->has_value());
  if (!has_width && points->has_value()) *width = **points / std::max<uint64_t>(1, height);
  if (!width->has_value()) return BadPcd("the header has neither WIDTH nor POINTS");
  if (**width > UINT32_MAX || height > UINT32_MAX) {
    return BadPcd(absl::StrCat("WIDTH ", **width, " x HEIGHT ", height, " is not a scan's size"));
  }
  layout->num_points = **width * height;
  layout->height = height;
  if (points->value_or(layout->num_points) == layout->num_points) return absl::OkStatus();
  return BadPcd(
      absl::StrCat("POINTS ", **points, ", but WIDTH ", **width, " x HEIGHT ", height, " = ", layout->num_points));
}

absl::StatusOr<Layout> ReadLayout(const PcdHeader& header) {
  const auto words_of = [&](const std::string& keyword) {
    const auto entry = header.entries.find(keyword);
    return entry == header.entries.end() ? PcdWords() : entry->second;
  };
  const PcdWords names = words_of("FIELDS");
  PcdWords sizes = words_of("SIZE"), types = words_of("TYPE"), counts = words_of("COUNT");
  if (counts.empty()) counts.assign(names.size(), "1");
  if (sizes.empty() && types.empty()) {  // older files, whose fields are all float32
    sizes.assign(names.size(), "4");
    types.assign(names.size(), "F");
  }
  if (names.empty()) return BadPcd("the header has no FIELDS");
  if (sizes.size() != names.size() || types.size() != names.size() || counts.size() != names.size()) {
    return BadPcd(absl::StrCat(names.size(), " FIELDS, but ", sizes.size(), " SIZE, ", types.size(), " TYPE and ",
                               counts.size(), " COUNT values"));
  }
  Layout layout;
  std::set<std::string> seen;
  for (size_t i = 0; i < names.size(); ++i) {
    uint64_t size = 0, count = 0;
    const char kind = types[i].size() == 1 ? absl::ascii_toupper(static_cast<unsigned char>(types[i][0])) : '?';
    if (!ParseInteger(sizes[i], &size) || (size != 1 && size != 2 && size != 4 && size != 8) ||
        (kind != 'F' && kind != 'I' && kind != 'U' && kind != 'B') || (kind == 'F' && size < 4) ||
        (kind == 'B' && size != 1)) {
      return BadPcd(absl::StrCat("field '", names[i], "' has TYPE ", types[i], " SIZE ", sizes[i],
                                 "; there are F 4 and 8, I and U 1, 2, 4 and 8, B 1"));
    }
    if (!ParseInteger(counts[i], &count) || count > kMaxPointBytes) {
      return BadPcd(absl::StrCat("field '", names[i], "' has COUNT ", counts[i], ", must be 1 to ", kMaxPointBytes,
                                 ", or 0 for none"));
    }
    if (count == 0) continue;
    Layout::Column column;
    column.field.set_name(names[i]);
    column.field.set_type(PcdTypeOf(kind, size));
    column.field.set_offset(static_cast<uint32_t>(layout.point_step));
    if (count > 1) column.field.set_count(static_cast<uint32_t>(count));
    column.bytes = static_cast<uint32_t>(size * count);
    column.skipped = names[i] == "_";
    if (column.field.type() == v1::POINT_FIELD_TYPE_UNSPECIFIED) {
      column.field.set_type(v1::POINT_FIELD_TYPE_FLOAT64);
      if (!column.skipped) layout.long_fields.push_back({layout.point_step, static_cast<uint32_t>(count), kind == 'I'});
    }
    if (!column.skipped && !seen.insert(names[i]).second) {
      return BadPcd(absl::StrCat("the field '", names[i], "' occurs twice"));
    }
    layout.point_step += column.bytes;
    layout.columns.push_back(std::move(column));
    if (layout.point_step > kMaxPointBytes) {
      return BadPcd(absl::StrCat("a point takes more than ", kMaxPointBytes, " bytes"));
    }
  }
  if (layout.columns.empty()) return BadPcd("all FIELDS have COUNT 0");
  if (absl::Status status = ReadExtent(header, &layout); !status.ok()) return status;
  return layout;
}

absl::StatusOr<std::string> Decompress(absl::string_view body, const Layout& layout) {
  // pypcd4 writes nothing after the header of a cloud without points.
  if (layout.num_points == 0 && body.empty()) return std::string();
  uint32_t sizes[2];  // compressed, uncompressed; little endian
  if (body.size() < sizeof(sizes)) return BadPcd("the file ends before the compressed data");
  std::memcpy(sizes, body.data(), sizeof(sizes));
  body.remove_prefix(sizeof(sizes));
  if (sizes[0] > body.size()) {
    return BadPcd(absl::StrCat("promises ", sizes[0], " compressed bytes, but ", body.size(), " follow"));
  }
  const uint64_t expected = layout.num_points <= UINT32_MAX ? layout.num_points * layout.point_step : UINT64_MAX;
  if (sizes[1] != expected) {
    return BadPcd(absl::StrCat(sizes[1], " uncompressed bytes for ", layout.num_points, " points of ",
                               layout.point_step, " bytes"));
  }
  if (sizes[1] > sizes[0] * kMaxLzfExpansion) {
    return BadPcd(absl::StrCat(sizes[0], " compressed bytes cannot hold ", sizes[1]));
  }
  if (sizes[1] == 0) return std::string();
  std::string columns(sizes[1], '\0');
  if (lzf_decompress(body.data(), sizes[0], columns.data(), sizes[1]) != sizes[1]) {
    return BadPcd("the compressed data is damaged");
  }
  std::vector<uint32_t> widths;
  for (const Layout::Column& column : layout.columns) widths.push_back(column.bytes);
  return InterleaveColumns(columns, widths, layout.num_points);
}

// Sets the layout of the points that ParseAsciiPoints makes: it leaves out padding, so each later field has a smaller
// offset. Integers of 8 bytes are float64 already.
void DropSkippedColumns(Layout* layout) {
  layout->point_step = 0;
  for (Layout::Column& column : layout->columns) {
    column.field.set_offset(static_cast<uint32_t>(layout->point_step));
    if (!column.skipped) layout->point_step += column.bytes;
  }
  layout->long_fields.clear();
}

absl::StatusOr<std::string> ParseAsciiPcd(LineReader* lines, Layout* layout) {
  std::vector<AsciiColumn> columns;
  for (const Layout::Column& column : layout->columns) {
    const uint32_t count = column.field.count() > 0 ? column.field.count() : 1;
    columns.insert(columns.end(), count,
                   {.type = column.skipped ? v1::POINT_FIELD_TYPE_UNSPECIFIED : column.field.type()});
  }
  std::string packed;
  if (absl::Status status = ParseAsciiPoints(layout->num_points, columns, 0, lines, &packed); !status.ok()) {
    return BadPcd(status.message());
  }
  DropSkippedColumns(layout);
  return packed;
}

// Some writers pad the file with zeros. Any other bytes after the points mean that the header is wrong.
absl::StatusOr<std::string> TakeBinaryPcd(size_t begin, const Layout& layout, std::string contents) {
  const uint64_t left = contents.size() - begin;
  if (layout.num_points > left / layout.point_step ||
      contents.find_first_not_of('\0', begin + layout.num_points * layout.point_step) != std::string::npos) {
    return BadPcd(absl::StrCat("the header promises ", layout.num_points, " points of ", layout.point_step,
                               " bytes, but ", left, " bytes follow"));
  }
  contents.erase(0, begin);
  contents.resize(layout.num_points * layout.point_step);
  return contents;
}

}  // namespace

absl::StatusOr<PointCloud> ReadPcd(std::string contents, const FieldSpec* spec) {
  LineReader lines(contents);
  const absl::StatusOr<PcdHeader> header = ReadPcdHeader(&lines);
  if (!header.ok()) return header.status();
  absl::StatusOr<Layout> layout = ReadLayout(*header);
  if (!layout.ok()) return layout.status();

  absl::StatusOr<std::string> data;
  if (header->data == "ascii") {
    data = ParseAsciiPcd(&lines, &*layout);
  } else if (header->data == "binary_compressed") {
    data = Decompress(absl::string_view(contents).substr(lines.position()), *layout);
  } else if (header->data == "binary") {
    data = TakeBinaryPcd(lines.position(), *layout, std::move(contents));
  } else {
    return BadPcd(absl::StrCat("DATA ", Shown(header->data), " is none of ascii, binary, binary_compressed"));
  }
  if (!data.ok()) return data.status();
  ToFloat64(layout->long_fields, layout->point_step, /*is_bigendian=*/false, &*data);

  PointCloud cloud;
  for (Layout::Column& column : layout->columns) {
    if (!column.skipped) *cloud.add_fields() = std::move(column.field);
  }
  cloud.set_num_points(layout->num_points);
  cloud.set_point_step(static_cast<uint32_t>(layout->point_step));
  if (layout->height > 1 && layout->num_points > 0) cloud.set_height(static_cast<uint32_t>(layout->height));
  cloud.set_data(*std::move(data));
  if (spec != nullptr) {
    if (absl::Status status = ApplySpecByName(*spec, &cloud); !status.ok()) return status;
  }
  return cloud;
}

}  // namespace voxserve::client
