#include "client/cpp/io/field_spec.h"

#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace voxserve::client {
namespace {

absl::Status BadEntry(absl::string_view entry, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("field entry '", entry, "': ", why, "; write NAME:TYPE[*SCALE][+SHIFT], e.g. intensity:u8*0.00392"));
}

// Returns the position of the '+' that begins a shift; the '+' of an exponent ("1e+3") does not count.
size_t FindShift(absl::string_view text) {
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '+' && absl::ascii_tolower(static_cast<unsigned char>(text[i - 1])) != 'e') return i;
  }
  return absl::string_view::npos;
}

}  // namespace

absl::StatusOr<FieldSpec> ParseFieldSpec(absl::string_view text) {
  FieldSpec spec;
  for (absl::string_view raw_entry : absl::StrSplit(text, ',')) {
    const absl::string_view entry = absl::StripAsciiWhitespace(raw_entry);
    const size_t colon = entry.find(':');
    if (colon == absl::string_view::npos || colon == 0) return BadEntry(entry, "has no NAME:TYPE");
    const absl::string_view name = entry.substr(0, colon);
    absl::string_view rest = entry.substr(colon + 1);

    PointField field;
    field.set_name(std::string(name));
    field.set_offset(spec.point_step);
    if (const size_t plus = FindShift(rest); plus != absl::string_view::npos) {
      double shift = 0;
      if (!absl::SimpleAtod(rest.substr(plus + 1), &shift) || !std::isfinite(shift)) {
        return BadEntry(entry, "the shift is not a finite number");
      }
      field.set_shift(shift);
      rest = rest.substr(0, plus);
    }
    if (const size_t star = rest.find('*'); star != absl::string_view::npos) {
      double scale = 0;
      if (!absl::SimpleAtod(rest.substr(star + 1), &scale) || !std::isfinite(scale) || scale == 0) {
        return BadEntry(entry, "the scale is not a finite number other than 0");
      }
      field.set_scale(scale);
      rest = rest.substr(0, star);
    }
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
    PointField* found = nullptr;
    for (PointField& field : *cloud->mutable_fields()) {
      if (field.name() == entry.name()) found = &field;
    }
    if (found == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("--fields names '", entry.name(), "', but the file's fields are ",
                       Describe(std::vector<PointField>(cloud->fields().begin(), cloud->fields().end()))));
    }
    if (found->type() != entry.type()) {
      return absl::InvalidArgumentError(absl::StrCat("--fields says ", entry.name(), ":", NameOf(entry.type()),
                                                     ", but the file says ", NameOf(found->type())));
    }
    if (entry.has_scale()) found->set_scale(entry.scale());
    found->set_shift(entry.shift());
  }
  return absl::OkStatus();
}

}  // namespace voxserve::client
