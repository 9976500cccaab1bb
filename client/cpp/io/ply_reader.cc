#include "client/cpp/io/ply_reader.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cpp/io/text.h"
#include "engine/base/numbers.h"

namespace voxserve::client {
namespace {

constexpr size_t kMaxHeaderBytes = 1 << 20;
constexpr size_t kMaxProperties = 1024;

using PlyWords = std::vector<absl::string_view>;

// A property of an element: one value, or a list, which is the number of its values and then the values.
struct Property {
  PointFieldType type = v1::POINT_FIELD_TYPE_UNSPECIFIED;
  PointFieldType count_type = v1::POINT_FIELD_TYPE_UNSPECIFIED;  // of a list's number; UNSPECIFIED: no list
  bool is_list() const { return count_type != v1::POINT_FIELD_TYPE_UNSPECIFIED; }
};

struct Element {
  std::string name;
  uint64_t count = 0;
  std::vector<Property> properties;
  std::vector<PointField> fields;  // the properties that are no lists, packed
  uint64_t step = 0;               // bytes of one element in a binary file, without its lists
  bool has_lists() const { return fields.size() < properties.size(); }
};

struct PlyHeader {
  std::string format;
  std::vector<Element> before;  // the elements before the vertices
  Element vertex;
  uint64_t num_behind = 0;  // elements after the vertices, at most UINT64_MAX
};

absl::Status BadPly(absl::string_view why) { return absl::InvalidArgumentError(absl::StrCat("PLY: ", why)); }

PointFieldType PlyTypeOf(absl::string_view name) {
  if (name == "char" || name == "int8") return v1::POINT_FIELD_TYPE_INT8;
  if (name == "uchar" || name == "uint8") return v1::POINT_FIELD_TYPE_UINT8;
  if (name == "short" || name == "int16") return v1::POINT_FIELD_TYPE_INT16;
  if (name == "ushort" || name == "uint16") return v1::POINT_FIELD_TYPE_UINT16;
  if (name == "int" || name == "int32") return v1::POINT_FIELD_TYPE_INT32;
  if (name == "uint" || name == "uint32") return v1::POINT_FIELD_TYPE_UINT32;
  if (name == "float" || name == "float32") return v1::POINT_FIELD_TYPE_FLOAT32;
  if (name == "double" || name == "float64") return v1::POINT_FIELD_TYPE_FLOAT64;
  return v1::POINT_FIELD_TYPE_UNSPECIFIED;
}

std::string FieldName(absl::string_view property) {
  constexpr absl::string_view kCloudCompare = "scalar_";
  if (!absl::StartsWith(property, kCloudCompare)) return std::string(property);
  return absl::AsciiStrToLower(property.substr(kCloudCompare.size()));
}

bool IsCountType(PointFieldType type) {
  return type != v1::POINT_FIELD_TYPE_UNSPECIFIED && type != v1::POINT_FIELD_TYPE_FLOAT32 &&
         type != v1::POINT_FIELD_TYPE_FLOAT64;
}

absl::Status AddProperty(const PlyWords& words, Element* element) {
  if (element->properties.size() == kMaxProperties) {
    return BadPly(absl::StrCat("element '", element->name, "' has more than ", kMaxProperties, " properties"));
  }
  if (words.size() == 5 && words[1] == "list") {
    const Property list = {.type = PlyTypeOf(words[3]), .count_type = PlyTypeOf(words[2])};
    if (!IsCountType(list.count_type) || list.type == v1::POINT_FIELD_TYPE_UNSPECIFIED) {
      return BadPly(absl::StrCat("list '", Shown(words[4]), "' of element '", element->name,
                                 "' is not 'property list COUNT TYPE NAME'"));
    }
    element->properties.push_back(list);
    return absl::OkStatus();
  }
  const PointFieldType type = words.size() == 3 ? PlyTypeOf(words[1]) : v1::POINT_FIELD_TYPE_UNSPECIFIED;
  if (type == v1::POINT_FIELD_TYPE_UNSPECIFIED) {
    return BadPly(absl::StrCat("a property of element '", element->name, "' is not 'property TYPE NAME'"));
  }
  PointField field;
  field.set_name(FieldName(words[2]));
  field.set_type(type);
  field.set_offset(static_cast<uint32_t>(element->step));
  for (const PointField& other : element->fields) {
    if (other.name() == field.name()) return BadPly(absl::StrCat("the property '", field.name(), "' occurs twice"));
  }
  element->step += static_cast<uint64_t>(SizeOf(type));
  element->fields.push_back(std::move(field));
  element->properties.push_back({.type = type});
  return absl::OkStatus();
}

absl::StatusOr<PlyHeader> ReadPlyHeader(LineReader* lines) {
  if (lines->Next().value_or("") != "ply") return BadPly("the file does not begin with 'ply'");
  PlyHeader header;
  std::vector<Element> elements;
  while (const std::optional<absl::string_view> line = lines->Next()) {
    if (lines->position() > kMaxHeaderBytes) break;
    const PlyWords words = absl::StrSplit(*line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (words.empty() || words[0] == "comment" || words[0] == "obj_info") continue;
    if (words[0] == "format" && words.size() == 3) {
      header.format = std::string(words[1]);
    } else if (words[0] == "element") {
      Element& element = elements.emplace_back();
      if (words.size() != 3 || !ParseInteger(words[2], &element.count)) {
        return BadPly("an element line is not 'element NAME COUNT'");
      }
      element.name = std::string(words[1]);
    } else if (words[0] == "property" && !elements.empty()) {
      if (absl::Status status = AddProperty(words, &elements.back()); !status.ok()) return status;
    } else if (words[0] == "end_header") {
      const auto vertex =
          std::find_if(elements.begin(), elements.end(), [](const Element& e) { return e.name == "vertex"; });
      if (vertex == elements.end()) return BadPly("there is no element 'vertex'");
      header.vertex = std::move(*vertex);
      for (auto behind = vertex + 1; behind != elements.end(); ++behind) {
        header.num_behind += std::min(behind->count, UINT64_MAX - header.num_behind);
      }
      header.before.assign(std::make_move_iterator(elements.begin()), std::make_move_iterator(vertex));
      return header;
    } else {
      return BadPly(absl::StrCat("header line ", lines->num_lines(), " begins with '", Shown(words[0]), "'"));
    }
  }
  return BadPly("the header has no end_header line");
}

absl::StatusOr<std::string> ParseAsciiPly(const PlyHeader& header, LineReader* lines) {
  for (const Element& element : header.before) {
    for (uint64_t i = 0; i < element.count; ++i) {
      if (!lines->Next()) return BadPly(absl::StrCat("the file ends within element '", element.name, "'"));
    }
  }
  std::vector<AsciiColumn> columns;
  for (const Property& property : header.vertex.properties) {
    columns.push_back(
        {.type = property.is_list() ? v1::POINT_FIELD_TYPE_UNSPECIFIED : property.type, .is_list = property.is_list()});
  }
  std::string packed;
  if (absl::Status status = ParseAsciiPoints(header.vertex.count, columns, header.num_behind, lines, &packed);
      !status.ok()) {
    return BadPly(status.message());
  }
  return packed;
}

// Returns the number at the beginning of `bytes`, which has at least SizeOf(type) bytes.
int64_t LoadCount(absl::string_view bytes, PointFieldType type, bool is_bigendian) {
  const auto size = static_cast<size_t>(SizeOf(type));
  std::string value(bytes.substr(0, size));
  if (is_bigendian) std::reverse(value.begin(), value.end());
  return VisitPointFieldType(type, [&](auto as) -> int64_t {
    if constexpr (std::is_integral_v<decltype(as)>) {
      std::memcpy(&as, value.data(), size);
      return static_cast<int64_t>(as);
    }
    return 0;
  });
}

// Reads elements with lists, which have no fixed size. Moves *begin after them, and appends their bytes without the
// lists to *packed unless it is null.
absl::Status WalkElements(const Element& element, bool is_bigendian, absl::string_view contents, size_t* begin,
                          std::string* packed) {
  for (uint64_t i = 0; i < element.count; ++i) {
    const auto ends = [&] {
      return BadPly(
          absl::StrCat("the file ends within element ", i, " of the ", element.count, " of '", element.name, "'"));
    };
    for (const Property& property : element.properties) {
      const auto size = static_cast<uint64_t>(SizeOf(property.type));
      if (!property.is_list()) {
        if (size > contents.size() - *begin) return ends();
        if (packed != nullptr) packed->append(contents.data() + *begin, size);
        *begin += size;
        continue;
      }
      const auto count_size = static_cast<size_t>(SizeOf(property.count_type));
      if (count_size > contents.size() - *begin) return ends();
      const int64_t count = LoadCount(contents.substr(*begin), property.count_type, is_bigendian);
      *begin += count_size;
      if (count < 0) {
        return BadPly(absl::StrCat("a list of element ", i, " of '", element.name, "' has ", count, " values"));
      }
      if (static_cast<uint64_t>(count) > (contents.size() - *begin) / size) return ends();
      *begin += static_cast<uint64_t>(count) * size;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> TakeBinaryPly(const PlyHeader& header, size_t begin, std::string contents) {
  const bool is_bigendian = header.format == "binary_big_endian";
  for (const Element& element : header.before) {
    if (element.has_lists()) {
      absl::Status status = WalkElements(element, is_bigendian, contents, &begin, nullptr);
      if (!status.ok()) return status;
      continue;
    }
    const uint64_t left = contents.size() - begin;
    if (element.step > 0 && element.count > left / element.step) {
      return BadPly(absl::StrCat("element '", element.name, "' needs ", element.count, " x ", element.step,
                                 " bytes, but ", left, " follow"));
    }
    begin += element.count * element.step;
  }
  const Element& vertex = header.vertex;
  if (vertex.has_lists()) {
    std::string packed;
    absl::Status status = WalkElements(vertex, is_bigendian, contents, &begin, &packed);
    if (!status.ok()) return status;
    return packed;
  }
  const uint64_t left = contents.size() - begin;
  if (vertex.count > left / vertex.step) {
    return BadPly(absl::StrCat("the header promises ", vertex.count, " vertices of ", vertex.step, " bytes, but ", left,
                               " bytes follow"));
  }
  contents.erase(0, begin);
  contents.resize(vertex.count * vertex.step);  // faces and other elements follow the vertices
  return contents;
}

}  // namespace

absl::StatusOr<PointCloud> ReadPly(std::string contents, const FieldSpec* spec) {
  LineReader lines(contents);
  absl::StatusOr<PlyHeader> header = ReadPlyHeader(&lines);
  if (!header.ok()) return header.status();
  const Element& vertex = header->vertex;
  if (vertex.fields.empty()) return BadPly("the vertices have no properties");

  absl::StatusOr<std::string> data;
  if (header->format == "ascii") {
    data = ParseAsciiPly(*header, &lines);
  } else if (header->format == "binary_little_endian" || header->format == "binary_big_endian") {
    data = TakeBinaryPly(*header, lines.position(), std::move(contents));
  } else {
    return BadPly(
        absl::StrCat("format '", Shown(header->format), "' is none of ascii, binary_little_endian, binary_big_endian"));
  }
  if (!data.ok()) return data.status();

  PointCloud cloud;
  cloud.set_num_points(vertex.count);
  cloud.set_point_step(static_cast<uint32_t>(vertex.step));
  cloud.mutable_fields()->Add(vertex.fields.begin(), vertex.fields.end());
  cloud.set_is_bigendian(header->format == "binary_big_endian");
  cloud.set_data(*std::move(data));
  if (spec != nullptr) {
    if (absl::Status status = ApplySpecByName(*spec, &cloud); !status.ok()) return status;
  }
  return cloud;
}

}  // namespace voxserve::client
