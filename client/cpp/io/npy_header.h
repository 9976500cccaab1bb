#pragma once

// These functions read and write the header of a NumPy .npy file
// (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html): a Python dict with dtype, shape and order,
// which is parsed without Python.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cpp/api/point_cloud.h"

namespace voxserve::client {

struct NpyHeader {
  struct Field {
    std::string name;  // "" for an array of plain numbers, and for padding
    // UNSPECIFIED: a type that a point cloud cannot hold (padding, 8-byte integers, text).
    PointFieldType type = v1::POINT_FIELD_TYPE_UNSPECIFIED;
    uint32_t bytes = 0;  // size of all `count` values of the field in one item
    uint32_t count = 1;
    char kind = 'V';  // the letter of NumPy's dtype

    bool IsLongInteger() const { return (kind == 'i' || kind == 'u') && bytes == 8 * count; }
  };
  std::vector<Field> fields;  // of one item; a plain array has one field
  bool is_structured = false;
  bool is_bigendian = false;
  bool is_fortran_order = false;
  std::vector<uint64_t> shape;
  uint64_t item_bytes = 0;  // bytes of one item with all its fields
  uint64_t num_items = 0;   // the product of the shape; num_items * item_bytes bytes follow the header
  size_t data_offset = 0;   // where the data begins
};

// Returns INVALID_ARGUMENT if the header is not valid, mixes byte orders, or announces another number of bytes than
// follow. contents: the whole file.
absl::StatusOr<NpyHeader> ReadNpyHeader(absl::string_view contents);

// Returns a header of version 1.0; the array's data must follow it, row after row. dtype: a Python literal, such as
// "'<u2'" or a list of fields.
std::string MakeNpyHeader(absl::string_view dtype, const std::vector<uint64_t>& shape);

}  // namespace voxserve::client
