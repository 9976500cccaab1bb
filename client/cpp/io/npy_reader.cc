#include "client/cpp/io/npy_reader.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cpp/io/columns.h"
#include "client/cpp/io/npy_header.h"
#include "client/cpp/io/to_float64.h"

namespace voxserve::client {
namespace {

constexpr std::array<absl::string_view, 4> kColumnNames = {"x", "y", "z", "intensity"};
constexpr uint64_t kMaxColumns = 65536;
// A scan has more points than a point has values. An array with more columns than this, and fewer rows than columns, is
// one whose rows and columns are exchanged.
constexpr uint64_t kMaxColumnsOfFewRows = 8;

absl::Status BadNpy(absl::string_view why) { return absl::InvalidArgumentError(absl::StrCat("NPY: ", why)); }

std::string ShapeOf(const NpyHeader& header) { return absl::StrCat("(", absl::StrJoin(header.shape, ", "), ")"); }

// Returns the type of a column in the cloud.
PointFieldType TypeInCloud(const NpyHeader::Field& column) {
  return column.IsLongInteger() ? v1::POINT_FIELD_TYPE_FLOAT64 : column.type;
}

// Names the columns by the spec; without a spec, x, y, z and intensity.
absl::Status NameColumns(const NpyHeader& header, const FieldSpec* spec, PointCloud* cloud) {
  const PointFieldType type = TypeInCloud(header.fields[0]);
  const uint32_t width = header.fields[0].bytes;
  if (spec != nullptr) {
    if (spec->point_step > cloud->point_step()) {
      return BadNpy(absl::StrCat("--fields describes ", spec->point_step, " bytes, but a row of shape ",
                                 ShapeOf(header), " has ", cloud->point_step()));
    }
    for (const PointField& entry : spec->fields) {
      if (entry.type() != type || entry.offset() % width != 0) {
        return BadNpy(absl::StrCat("--fields says ", entry.name(), ":", NameOf(entry.type()),
                                   ", but the array's columns are all ", NameOf(type)));
      }
      *cloud->add_fields() = entry;
    }
    return absl::OkStatus();
  }
  for (size_t c = 0; c < kColumnNames.size() && c * width < cloud->point_step(); ++c) {
    PointField& field = *cloud->add_fields();
    field.set_name(std::string(kColumnNames[c]));
    field.set_offset(static_cast<uint32_t>(c * width));
    field.set_type(type);
  }
  return absl::OkStatus();
}

absl::StatusOr<PointCloud> ReadTable(const NpyHeader& header, std::string data, const FieldSpec* spec) {
  if (TypeInCloud(header.fields[0]) == v1::POINT_FIELD_TYPE_UNSPECIFIED) {
    return BadNpy("the array's values are none of i1, u1, i2, u2, i4, u4, i8, u8, f2, f4, f8");
  }
  if (header.shape.size() != 2 || header.shape[1] < 3 || header.shape[1] > kMaxColumns) {
    return BadNpy(absl::StrCat("the array's shape is ", ShapeOf(header), "; (points, 3 or more columns) is needed"));
  }
  const uint64_t num_named = spec == nullptr ? 0 : spec->point_step / header.item_bytes;
  if (header.shape[1] > std::max({header.shape[0], kMaxColumnsOfFewRows, num_named})) {
    return BadNpy(absl::StrCat("points have shape ", ShapeOf(header), ", which would be ", header.shape[0],
                               " points of ", header.shape[1],
                               " values; a point is a row, so save points.T (or name every column with --fields)"));
  }
  PointCloud cloud;
  cloud.set_num_points(header.shape[0]);
  cloud.set_point_step(static_cast<uint32_t>(header.shape[1] * header.item_bytes));
  cloud.set_is_bigendian(header.is_bigendian);
  if (absl::Status status = NameColumns(header, spec, &cloud); !status.ok()) return status;
  if (header.is_fortran_order) {
    const std::vector<uint32_t> widths(header.shape[1], static_cast<uint32_t>(header.item_bytes));
    data = InterleaveColumns(data, widths, header.shape[0]);
  }
  if (header.fields[0].IsLongInteger()) {
    const bool is_signed = header.fields[0].kind == 'i';
    ToFloat64({{.count = static_cast<uint32_t>(header.shape[1]), .is_signed = is_signed}}, cloud.point_step(),
              header.is_bigendian, &data);
  }
  cloud.set_data(std::move(data));
  return cloud;
}

absl::StatusOr<PointCloud> ReadStructured(const NpyHeader& header, std::string data, const FieldSpec* spec) {
  if (header.shape.size() != 1) {
    return BadNpy(absl::StrCat("the structured array's shape is ", ShapeOf(header), "; (points,) is needed"));
  }
  PointCloud cloud;
  cloud.set_num_points(header.num_items);
  cloud.set_point_step(static_cast<uint32_t>(header.item_bytes));
  cloud.set_is_bigendian(header.is_bigendian);
  uint32_t offset = 0;
  std::set<std::string> seen;
  std::vector<LongField> long_fields;
  for (const NpyHeader::Field& column : header.fields) {
    const PointFieldType type = TypeInCloud(column);
    if (type != v1::POINT_FIELD_TYPE_UNSPECIFIED && !column.name.empty() && column.count > 0) {
      if (!seen.insert(column.name).second) return BadNpy(absl::StrCat("the field '", column.name, "' occurs twice"));
      PointField& field = *cloud.add_fields();
      field.set_name(column.name);
      field.set_offset(offset);
      field.set_type(type);
      if (column.count > 1) field.set_count(column.count);
      if (column.IsLongInteger()) long_fields.push_back({offset, column.count, column.kind == 'i'});
    }
    offset += column.bytes;
  }
  ToFloat64(long_fields, header.item_bytes, header.is_bigendian, &data);
  cloud.set_data(std::move(data));
  if (spec != nullptr) {
    if (absl::Status status = ApplySpecByName(*spec, &cloud); !status.ok()) return status;
  }
  return cloud;
}

}  // namespace

absl::StatusOr<PointCloud> ReadNpy(std::string contents, const FieldSpec* spec) {
  const absl::StatusOr<NpyHeader> header = ReadNpyHeader(contents);
  if (!header.ok()) return header.status();
  contents.erase(0, header->data_offset);
  return header->is_structured ? ReadStructured(*header, std::move(contents), spec)
                               : ReadTable(*header, std::move(contents), spec);
}

}  // namespace voxserve::client
