#pragma once

// A field spec describes the layout of a scan file's points in one line, such as
//
//   x:f32,y:f32,z:f32,intensity:f32*0.00392156862745098,-:f32
//
// Entries are separated by commas and follow each other in a point without gaps: NAME:TYPE[*SCALE][+SHIFT]. TYPE is i8,
// u8, i16, u16, i32, u32, f16, f32 or f64, little endian. The network gets the value raw * SCALE + SHIFT (defaults 1
// and 0), which must be in metres for x, y, z and in 0..1 for intensity. An entry with the name - skips a value of its
// type.
//
// An entry NEW=OLD[*SCALE][+SHIFT] gives the field OLD of the file the name NEW, such as intensity=reflectivity. A
// field that had the name NEW before is left out, unless the spec renames it too. SCALE and SHIFT replace those of OLD.
// A spec may have only such entries. The Python client reads the same syntax.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cpp/api/point_cloud.h"

namespace voxserve::client {

// A new name for a field, and the scale and shift that it gets; nullopt keeps its own.
struct FieldRename {
  std::string name;
  std::string source;  // the field's name in the file
  std::optional<double> scale;
  std::optional<double> shift;
};

struct FieldSpec {
  std::vector<PointField> fields;  // with offsets; without the skipped values
  uint32_t point_step = 0;         // bytes per point, including skipped values; 0: the spec has only renames
  std::vector<FieldRename> renames;
};

// Returns INVALID_ARGUMENT, which quotes the wrong entry and shows the right form.
absl::StatusOr<FieldSpec> ParseFieldSpec(absl::string_view text);

// Sets the scale and shift of the cloud's fields from the spec's entries of the same names. Returns INVALID_ARGUMENT if
// the cloud has no such field, or the field has another type.
absl::Status ApplySpecByName(const FieldSpec& spec, PointCloud* cloud);

// Gives fields of the cloud new names. Returns INVALID_ARGUMENT, with the names that the cloud has, if it lacks one.
absl::Status ApplyRenames(const std::vector<FieldRename>& renames, PointCloud* cloud);

// Returns a field spec of the fields, without skipped values, for error messages.
std::string Describe(const std::vector<PointField>& fields);

}  // namespace voxserve::client
