#include "client/cpp/io/npy_header.h"

#include <cstring>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cpp/io/text.h"
#include "engine/base/numbers.h"

namespace voxserve::client {
namespace {

constexpr absl::string_view kMagic = "\x93NUMPY";
constexpr uint64_t kMaxItemBytes = 1 << 20;

absl::Status BadNpyHeader(absl::string_view why) { return absl::InvalidArgumentError(absl::StrCat("NPY: ", why)); }

// Takes Python literals from the front of a text.
class Literals {
 public:
  explicit Literals(absl::string_view text) : text_(text) {}

  bool Take(char symbol) {
    text_ = absl::StripLeadingAsciiWhitespace(text_);
    if (text_.empty() || text_[0] != symbol) return false;
    text_.remove_prefix(1);
    return true;
  }

  // Ignores escapes: dtype strings and field names contain none that matter here.
  std::optional<std::string> TakeString() {
    const char quote = Take('\'') ? '\'' : Take('"') ? '"' : '\0';
    const size_t end = quote ? text_.find(quote) : absl::string_view::npos;
    if (end == absl::string_view::npos) return std::nullopt;
    std::string value(text_.substr(0, end));
    text_.remove_prefix(end + 1);
    return value;
  }

  std::optional<uint64_t> TakeNumber() {
    text_ = absl::StripLeadingAsciiWhitespace(text_);
    size_t end = 0;
    while (end < text_.size() && absl::ascii_isdigit(static_cast<unsigned char>(text_[end]))) ++end;
    uint64_t value = 0;
    if (!ParseInteger(text_.substr(0, end), &value)) return std::nullopt;
    text_.remove_prefix(end);
    return value;
  }

  std::optional<bool> TakeBool() {
    text_ = absl::StripLeadingAsciiWhitespace(text_);
    for (const bool value : {false, true}) {
      const absl::string_view word = value ? "True" : "False";
      if (absl::StartsWith(text_, word)) {
        text_.remove_prefix(word.size());
        return value;
      }
    }
    return std::nullopt;
  }

  // Takes (), (3,) or (3, 4).
  std::optional<std::vector<uint64_t>> TakeTuple() {
    std::vector<uint64_t> values;
    if (!Take('(')) return std::nullopt;
    while (!Take(')')) {
      const std::optional<uint64_t> value = TakeNumber();
      if (!value) return std::nullopt;
      values.push_back(*value);
      if (!Take(',')) {
        if (Take(')')) break;
        return std::nullopt;
      }
    }
    return values;
  }

 private:
  absl::string_view text_;
};

PointFieldType NpyTypeOf(char kind, uint64_t bytes) {
  const bool is_signed = kind == 'i';
  if (kind == 'f') {
    if (bytes == 2) return v1::POINT_FIELD_TYPE_FLOAT16;
    if (bytes == 4) return v1::POINT_FIELD_TYPE_FLOAT32;
    if (bytes == 8) return v1::POINT_FIELD_TYPE_FLOAT64;
  } else if (kind == 'i' || kind == 'u') {
    if (bytes == 1) return is_signed ? v1::POINT_FIELD_TYPE_INT8 : v1::POINT_FIELD_TYPE_UINT8;
    if (bytes == 2) return is_signed ? v1::POINT_FIELD_TYPE_INT16 : v1::POINT_FIELD_TYPE_UINT16;
    if (bytes == 4) return is_signed ? v1::POINT_FIELD_TYPE_INT32 : v1::POINT_FIELD_TYPE_UINT32;
  }
  return v1::POINT_FIELD_TYPE_UNSPECIFIED;
}

// The byte order of the header's fields. An array that mixes byte orders is refused.
struct ByteOrder {
  bool is_known = false;
  bool is_bigendian = false;
};

// Adds a field of dtype "<f4", "|u1", ">i2", "|V8": order, kind, bytes.
absl::Status AddField(absl::string_view name, absl::string_view dtype, uint64_t count, ByteOrder* order,
                      NpyHeader* header) {
  uint64_t bytes = 0;
  if (dtype.size() < 3 || !absl::StrContains("<>|=", dtype[0]) || !ParseInteger(dtype.substr(2), &bytes) ||
      bytes > kMaxItemBytes || count > kMaxItemBytes || dtype[1] == 'O') {
    return BadNpyHeader(absl::StrCat("dtype '", Shown(dtype), "' is not one of plain numbers"));
  }
  if (dtype[1] == 'U') bytes *= 4;
  NpyHeader::Field field;
  field.name = std::string(name);
  field.type = NpyTypeOf(dtype[1], bytes);
  field.count = static_cast<uint32_t>(count);
  field.kind = dtype[1];
  const uint64_t total = bytes * count;
  header->item_bytes += total;
  if (header->item_bytes > kMaxItemBytes)
    return BadNpyHeader(absl::StrCat("an item takes more than ", kMaxItemBytes, " bytes"));
  field.bytes = static_cast<uint32_t>(total);
  if (bytes > 1 && (field.type != v1::POINT_FIELD_TYPE_UNSPECIFIED || field.IsLongInteger())) {
    const bool is_bigendian = dtype[0] == '>';
    if (order->is_known && order->is_bigendian != is_bigendian)
      return BadNpyHeader("the fields have different byte orders");
    *order = {true, is_bigendian};
  }
  header->fields.push_back(std::move(field));
  return absl::OkStatus();
}

absl::Status ReadDescr(Literals* literals, NpyHeader* header) {
  ByteOrder order;
  if (const std::optional<std::string> dtype = literals->TakeString()) {
    absl::Status status = AddField("", *dtype, 1, &order, header);
    header->is_bigendian = order.is_bigendian;
    return status;
  }
  header->is_structured = true;
  if (!literals->Take('[')) return BadNpyHeader("the header's descr is neither a dtype nor a list of fields");
  while (!literals->Take(']')) {
    const bool opened = literals->Take('(');
    const std::optional<std::string> name = literals->TakeString();
    const bool has_comma = literals->Take(',');
    const std::optional<std::string> dtype = literals->TakeString();
    if (!opened || !name || !has_comma || !dtype)
      return BadNpyHeader("a field of the header's descr is not (name, dtype)");
    uint64_t count = 1;
    if (literals->Take(',')) {
      const std::optional<std::vector<uint64_t>> shape = literals->TakeTuple();
      if (!shape || shape->size() != 1)
        return BadNpyHeader(absl::StrCat("field '", *name, "' is an array of many axes"));
      count = shape->front();
    }
    if (!literals->Take(')')) return BadNpyHeader("a field of the header's descr has no end");
    if (absl::Status status = AddField(*name, *dtype, count, &order, header); !status.ok()) return status;
    literals->Take(',');
  }
  header->is_bigendian = order.is_bigendian;
  return absl::OkStatus();
}

absl::Status ReadDict(absl::string_view text, NpyHeader* header) {
  Literals literals(text);
  bool has_descr = false, has_order = false, has_shape = false;
  if (!literals.Take('{')) return BadNpyHeader("the header is not a dict");
  while (!literals.Take('}')) {
    const std::optional<std::string> key = literals.TakeString();
    if (!key || !literals.Take(':')) return BadNpyHeader("the header is not a dict");
    if (*key == "descr" && !has_descr) {
      if (absl::Status status = ReadDescr(&literals, header); !status.ok()) return status;
      has_descr = true;
    } else if (*key == "fortran_order") {
      const std::optional<bool> value = literals.TakeBool();
      if (!value) return BadNpyHeader("the header's fortran_order is neither True nor False");
      header->is_fortran_order = *value;
      has_order = true;
    } else if (*key == "shape") {
      std::optional<std::vector<uint64_t>> shape = literals.TakeTuple();
      if (!shape) return BadNpyHeader("the header's shape is not a tuple of numbers");
      header->shape = *std::move(shape);
      has_shape = true;
    } else {
      return BadNpyHeader(absl::StrCat("the header has the key '", Shown(*key), "'"));
    }
    literals.Take(',');
  }
  if (!has_descr || !has_order || !has_shape) return BadNpyHeader("the header lacks descr, fortran_order or shape");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<NpyHeader> ReadNpyHeader(absl::string_view contents) {
  if (contents.size() < 10 || !absl::StartsWith(contents, kMagic))
    return BadNpyHeader("the file does not begin as NPY does");
  const int version = static_cast<unsigned char>(contents[6]);
  if (version < 1 || version > 3) return BadNpyHeader(absl::StrCat("version ", version, "; there are 1 to 3"));
  uint32_t header_bytes = 0;
  const size_t length_bytes = version == 1 ? 2 : 4;
  if (contents.size() < 8 + length_bytes) return BadNpyHeader("the file ends within its header");
  std::memcpy(&header_bytes, contents.data() + 8, length_bytes);
  NpyHeader header;
  header.data_offset = 8 + length_bytes + header_bytes;
  if (header.data_offset > contents.size() || header_bytes > kMaxItemBytes) {
    return BadNpyHeader(absl::StrCat("a header of ", header_bytes, " bytes in a file of ", contents.size()));
  }
  if (absl::Status status = ReadDict(contents.substr(8 + length_bytes, header_bytes), &header); !status.ok()) {
    return status;
  }
  const uint64_t data_bytes = contents.size() - header.data_offset;
  header.num_items = 1;
  for (const uint64_t extent : header.shape) {
    if (extent > 0 && header.num_items > UINT64_MAX / extent) return BadNpyHeader("the shape's product overflows");
    header.num_items *= extent;
  }
  if (header.item_bytes == 0 || header.num_items > UINT64_MAX / header.item_bytes ||
      header.num_items * header.item_bytes != data_bytes) {
    return BadNpyHeader(absl::StrCat("the header promises ", header.num_items, " items of ", header.item_bytes,
                                     " bytes, but ", data_bytes, " bytes follow"));
  }
  return header;
}

std::string MakeNpyHeader(absl::string_view dtype, const std::vector<uint64_t>& shape) {
  std::string dict =
      absl::StrCat("{'descr': ", dtype, ", 'fortran_order': False, 'shape': (", absl::StrJoin(shape, ", "), ",), }");
  constexpr size_t kPreambleBytes = 10, kAlignment = 64;  // the data is aligned to 64 bytes
  dict.append((kAlignment - (kPreambleBytes + dict.size() + 1) % kAlignment) % kAlignment, ' ');
  dict += '\n';
  std::string header(kMagic);
  header += '\x01';
  header += '\0';
  header += static_cast<char>(dict.size() & 0xff);
  header += static_cast<char>(dict.size() >> 8);
  return header + dict;
}

}  // namespace voxserve::client
