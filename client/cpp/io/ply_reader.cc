#include "client/cpp/io/ply_reader.h"

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cpp/io/text.h"

namespace voxserve::client {
namespace {

constexpr size_t kMaxHeaderBytes = 1 << 20;
constexpr size_t kMaxProperties = 1024;

using PlyWords = std::vector<absl::string_view>;

struct Element {
  std::string name;
  uint64_t count = 0;
  std::vector<PointField> properties;  // packed
  uint64_t step = 0;                   // bytes of one element in a binary file
  std::string list;                    // name of a list property, which has no fixed size; "" if there is none
};

struct PlyHeader {
  std::string format;
  std::vector<Element> before;  // the elements before the vertices
  Element vertex;
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

absl::Status AddProperty(const PlyWords& words, Element* element) {
  if (words.size() == 5 && words[1] == "list") {
    element->list = std::string(words[4]);
    return absl::OkStatus();
  }
  const PointFieldType type = words.size() == 3 ? PlyTypeOf(words[1]) : v1::POINT_FIELD_TYPE_UNSPECIFIED;
  if (type == v1::POINT_FIELD_TYPE_UNSPECIFIED) {
    return BadPly(absl::StrCat("a property of element '", element->name, "' is not 'property TYPE NAME'"));
  }
  if (element->properties.size() == kMaxProperties) {
    return BadPly(absl::StrCat("element '", element->name, "' has more than ", kMaxProperties, " properties"));
  }
  PointField field;
  field.set_name(FieldName(words[2]));
  field.set_type(type);
  field.set_offset(static_cast<uint32_t>(element->step));
  for (const PointField& other : element->properties) {
    if (other.name() == field.name()) return BadPly(absl::StrCat("the property '", field.name(), "' occurs twice"));
  }
  element->step += static_cast<uint64_t>(SizeOf(type));
  element->properties.push_back(std::move(field));
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
      if (words.size() != 3 || !absl::SimpleAtoi(words[2], &element.count)) {
        return BadPly("an element line is not 'element NAME COUNT'");
      }
      element.name = std::string(words[1]);
    } else if (words[0] == "property" && !elements.empty()) {
      if (absl::Status status = AddProperty(words, &elements.back()); !status.ok()) return status;
    } else if (words[0] == "end_header") {
      for (Element& element : elements) {
        if (element.name == "vertex") {
          header.vertex = std::move(element);
          return header;
        }
        header.before.push_back(std::move(element));
      }
      return BadPly("there is no element 'vertex'");
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
  std::vector<PointFieldType> types;
  for (const PointField& property : header.vertex.properties) types.push_back(property.type());
  std::string packed;
  if (absl::Status status = ParseAsciiPoints(header.vertex.count, types, lines, &packed); !status.ok()) {
    return BadPly(status.message());
  }
  return packed;
}

absl::StatusOr<std::string> TakeBinaryPly(const PlyHeader& header, size_t begin, std::string contents) {
  for (const Element& element : header.before) {
    if (!element.list.empty()) {
      return BadPly(absl::StrCat("element '", element.name, "' before the vertices has the list '", element.list,
                                 "', whose size is not known"));
    }
    const uint64_t left = contents.size() - begin;
    if (element.step > 0 && element.count > left / element.step) {
      return BadPly(absl::StrCat("element '", element.name, "' needs ", element.count, " x ", element.step,
                                 " bytes, but ", left, " follow"));
    }
    begin += element.count * element.step;
  }
  const Element& vertex = header.vertex;
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
  if (!vertex.list.empty()) return BadPly(absl::StrCat("the vertices have the list '", vertex.list, "'"));
  if (vertex.properties.empty()) return BadPly("the vertices have no properties");

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
  cloud.mutable_fields()->Add(vertex.properties.begin(), vertex.properties.end());
  cloud.set_is_bigendian(header->format == "binary_big_endian");
  cloud.set_data(*std::move(data));
  if (spec != nullptr) {
    if (absl::Status status = ApplySpecByName(*spec, &cloud); !status.ok()) return status;
  }
  return cloud;
}

}  // namespace voxserve::client
