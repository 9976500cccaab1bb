#include "client/cpp/io/field_spec.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/base/numbers.h"

namespace voxserve::client {
namespace {

absl::Status BadEntry(absl::string_view entry, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("field entry '", entry, "': ", why,
                                                 "; write NAME:TYPE[*SCALE][+SHIFT], e.g. intensity:u8*0.00392, or "
                                                 "NEW=OLD, e.g. intensity=reflectivity"));
}

// Returns the position of the '+' that begins a shift; the '+' of an exponent ("1e+3") does not count.
size_t FindShift(absl::string_view text) {
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '+' && absl::ascii_tolower(static_cast<unsigned char>(text[i - 1])) != 'e') return i;
  }
  return absl::string_view::npos;
}

// Takes [*SCALE][+SHIFT] from the end of *rest, a part of `entry`.
absl::Status TakeUnit(absl::string_view entry, absl::string_view* rest, std::optional<double>* scale,
                      std::optional<double>* shift) {
  if (const size_t plus = FindShift(*rest); plus != absl::string_view::npos) {
    double value = 0;
    if (!ParseReal(rest->substr(plus + 1), &value) || !std::isfinite(value)) {
      return BadEntry(entry, "the shift is not a finite number");
    }
    *shift = value;
    *rest = rest->substr(0, plus);
  }
  if (const size_t star = rest->find('*'); star != absl::string_view::npos) {
    double value = 0;
    if (!ParseReal(rest->substr(star + 1), &value) || !std::isfinite(value) || value == 0) {
      return BadEntry(entry, "the scale is not a finite number other than 0");
    }
    *scale = value;
    *rest = rest->substr(0, star);
  }
  return absl::OkStatus();
}

absl::Status AddRename(absl::string_view entry, FieldSpec* spec) {
  const size_t equals = entry.find('=');
  absl::string_view rest = entry.substr(equals + 1);
  FieldRename rename;
  if (absl::Status status = TakeUnit(entry, &rest, &rename.scale, &rename.shift); !status.ok()) return status;
  rename.name = std::string(absl::StripAsciiWhitespace(entry.substr(0, equals)));
  rename.source = std::string(absl::StripAsciiWhitespace(rest));
  if (absl::StrContains(absl::StrCat(rename.name, rename.source), ':') || absl::StrContains(rename.source, '=')) {
    return BadEntry(entry, "is neither NAME:TYPE nor NEW=OLD");
  }
  for (const std::string& name : {rename.name, rename.source}) {
    if (name.empty() || name == "-") return BadEntry(entry, "lacks a name");
  }
  for (const FieldRename& other : spec->renames) {
    if (other.name == rename.name) return BadEntry(entry, absl::StrCat("the name '", rename.name, "' occurs twice"));
    if (other.source == rename.source) {
      return BadEntry(entry, absl::StrCat("the field '", rename.source, "' gets two names"));
    }
  }
  spec->renames.push_back(std::move(rename));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<FieldSpec> ParseFieldSpec(absl::string_view text) {
  FieldSpec spec;
  for (absl::string_view raw_entry : absl::StrSplit(text, ',')) {
    const absl::string_view entry = absl::StripAsciiWhitespace(raw_entry);
    if (absl::StrContains(entry, '=')) {
      if (absl::Status status = AddRename(entry, &spec); !status.ok()) return status;
      continue;
    }
    const size_t colon = entry.find(':');
    if (colon == absl::string_view::npos || colon == 0) return BadEntry(entry, "has no NAME:TYPE");
    const absl::string_view name = entry.substr(0, colon);
    absl::string_view rest = entry.substr(colon + 1);

    PointField field;
    field.set_name(std::string(name));
    field.set_offset(spec.point_step);
    std::optional<double> scale, shift;
    if (absl::Status status = TakeUnit(entry, &rest, &scale, &shift); !status.ok()) return status;
    if (scale) field.set_scale(*scale);
    if (shift) field.set_shift(*shift);
    for (int number = v1::POINT_FIELD_TYPE_UNSPECIFIED + 1; number < v1::PointFieldType_ARRAYSIZE; ++number) {
      const auto type = static_cast<PointFieldType>(number);
      if (rest == NameOf(type)) field.set_type(type);
    }
    if (field.type() == v1::POINT_FIELD_TYPE_UNSPECIFIED) {
      return BadEntry(entry, absl::StrCat("type '", rest, "' is none of i8, u8, i16, u16, i32, u32, f16, f32, f64"));
    }
    spec.point_step += static_cast<uint32_t>(SizeOf(field.type()));
    if (name == "-") continue;
    for (const PointField& other : spec.fields) {
      if (other.name() == name) return BadEntry(entry, absl::StrCat("the name '", name, "' occurs twice"));
    }
    spec.fields.push_back(std::move(field));
  }
  return spec;
}

std::string Describe(const std::vector<PointField>& fields) {
  return absl::StrJoin(fields, ",", [](std::string* out, const PointField& field) {
    absl::StrAppend(out, field.name(), ":", NameOf(field.type()));
    if (field.has_scale() && field.scale() != 1) absl::StrAppend(out, "*", field.scale());
    if (field.shift() != 0) absl::StrAppend(out, "+", field.shift());
  });
}

absl::Status ApplySpecByName(const FieldSpec& spec, PointCloud* cloud) {
  for (const PointField& entry : spec.fields) {
    const PointField* const own = FindField(*cloud, entry.name());
    if (own == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("--fields names '", entry.name(), "', but the file's fields are ",
                       Describe(std::vector<PointField>(cloud->fields().begin(), cloud->fields().end()))));
    }
    if (own->type() != entry.type()) {
      return absl::InvalidArgumentError(absl::StrCat("--fields says ", entry.name(), ":", NameOf(entry.type()),
                                                     ", but the file says ", NameOf(own->type())));
    }
    for (PointField& field : *cloud->mutable_fields()) {
      if (&field != own) continue;
      if (entry.has_scale()) field.set_scale(entry.scale());
      field.set_shift(entry.shift());
    }
  }
  return absl::OkStatus();
}

absl::Status ApplyRenames(const std::vector<FieldRename>& renames, PointCloud* cloud) {
  std::vector<const PointField*> sources;
  for (const FieldRename& rename : renames) {
    const PointField* const source = FindField(*cloud, rename.source);
    if (source == nullptr) {
      const auto append = [](std::string* out, const PointField& field) { out->append(field.name()); };
      return absl::InvalidArgumentError(absl::StrCat("--fields says ", rename.name, "=", rename.source,
                                                     ", but the points have ",
                                                     absl::StrJoin(cloud->fields(), ", ", append)));
    }
    if (std::find(sources.begin(), sources.end(), source) != sources.end()) {
      return absl::InvalidArgumentError(absl::StrCat("--fields gives the field '", source->name(), "' two names"));
    }
    sources.push_back(source);
  }
  google::protobuf::RepeatedPtrField<PointField> fields;
  for (const PointField& field : cloud->fields()) {
    const auto source = std::find(sources.begin(), sources.end(), &field);
    if (source != sources.end()) {
      const FieldRename& rename = renames[static_cast<size_t>(source - sources.begin())];
      PointField& renamed = *fields.Add();
      renamed = field;
      renamed.set_name(rename.name);
      if (rename.scale) renamed.set_scale(*rename.scale);
      if (rename.shift) renamed.set_shift(*rename.shift);
    } else if (std::none_of(renames.begin(), renames.end(),
                            [&](const FieldRename& rename) { return rename.name == field.name(); })) {
      *fields.Add() = field;
    }
  }
  cloud->mutable_fields()->Swap(&fields);
  return absl::OkStatus();
}

}  // namespace voxserve::client
