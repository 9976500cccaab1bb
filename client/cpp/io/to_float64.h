#pragma once

// ToFloat64 makes float64 of integers of 8 bytes, a type that fields of a request cannot have. float64 holds every
// value that float32, the networks' type, tells apart.

#include <cstdint>
#include <string>
#include <vector>

namespace voxserve::client {

// A field of integers of 8 bytes.
struct LongField {
  uint64_t offset = 0;  // bytes from the start of a point
  uint32_t count = 1;   // values in the field
  bool is_signed = false;
};

// Converts the values of these fields where they are. points: points of point_step bytes each, which hold the fields.
// is_bigendian: the byte order before and after.
void ToFloat64(const std::vector<LongField>& fields, uint64_t point_step, bool is_bigendian, std::string* points);

}  // namespace voxserve::client
