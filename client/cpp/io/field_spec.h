#pragma once

// The layout of a scan file's points in one line:
//
//   x:f32,y:f32,z:f32,intensity:f32*0.00392156862745098,-:f32
//
// Entries follow each other without gaps, separated by commas: NAME:TYPE[*SCALE][+SHIFT]. TYPE is i8, u8, i16, u16,
// i32, u32, f16, f32 or f64, little endian. What the network gets is raw * SCALE + SHIFT (default 1 and 0), in metres
// for x, y, z and 0..1 for intensity. The name - skips a value of that type. Python's voxserve reads the same syntax.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cpp/api/point_cloud.h"

namespace voxserve::client {

struct FieldSpec {
  std::vector<PointField> fields;  // with offsets; those named - are left out
  uint32_t point_step = 0;         // bytes of a point, skipped values included
};

// INVALID_ARGUMENT quoting the entry that is wrong and saying what it should look like.
absl::StatusOr<FieldSpec> ParseFieldSpec(absl::string_view text);

// Gives the cloud's fields the scale and shift of the spec's entries of the same name. INVALID_ARGUMENT where the
// cloud has no such field or it has another type.
absl::Status ApplySpecByName(const FieldSpec& spec, PointCloud* cloud);

// The reverse, without the skipped values' names: for messages.
std::string Describe(const std::vector<PointField>& fields);

}  // namespace voxserve::client
