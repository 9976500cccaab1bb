#pragma once

// PointFieldType is the type of the values in a point cloud's field, a protobuf enum
// (proto/voxserve/v1/point_cloud.proto). This header has the client's only list of the types' C++ types, sizes and
// names.

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "voxserve/v1/point_cloud.pb.h"

namespace voxserve::client {

using PointFieldType = v1::PointFieldType;

// The bits of an IEEE 754 binary16 number, for which C++20 has no type.
struct Float16Bits {
  uint16_t bits = 0;
};

// Returns visit(T()) for the C++ type T of the values; a value-initialised result (0) if `type` is unknown.
template <typename Visit>
constexpr auto VisitPointFieldType(PointFieldType type, Visit visit) {
  switch (type) {
    case v1::POINT_FIELD_TYPE_INT8:
      return visit(int8_t{});
    case v1::POINT_FIELD_TYPE_UINT8:
      return visit(uint8_t{});
    case v1::POINT_FIELD_TYPE_INT16:
      return visit(int16_t{});
    case v1::POINT_FIELD_TYPE_UINT16:
      return visit(uint16_t{});
    case v1::POINT_FIELD_TYPE_INT32:
      return visit(int32_t{});
    case v1::POINT_FIELD_TYPE_UINT32:
      return visit(uint32_t{});
    case v1::POINT_FIELD_TYPE_FLOAT32:
      return visit(float{});
    case v1::POINT_FIELD_TYPE_FLOAT64:
      return visit(double{});
    case v1::POINT_FIELD_TYPE_FLOAT16:
      return visit(Float16Bits{});
    default:
      return decltype(visit(int8_t{}))();
  }
}

// Returns the type of a field of ROS whose sensor_msgs/PointField has this datatype. 1 to 8 have the same numbers here.
// 11 is a bool, a byte that is 0 or 1. 9 (int64, while 9 is FLOAT16 on the wire), 10 (uint64) and unknown datatypes are
// UNSPECIFIED: the server skips such a field, and refuses it by name if its model reads it.
constexpr PointFieldType PointFieldTypeOfRos(int datatype) {
  if (datatype >= 1 && datatype <= 8) return static_cast<PointFieldType>(datatype);
  return datatype == 11 ? v1::POINT_FIELD_TYPE_UINT8 : v1::POINT_FIELD_TYPE_UNSPECIFIED;
}

// Returns the bytes of one value; 0 if `type` is unknown.
constexpr int SizeOf(PointFieldType type) {
  return VisitPointFieldType(type, [](auto value) { return static_cast<int>(sizeof(value)); });
}

// Returns true for integers of 1 to 4 bytes.
constexpr bool IsInteger(PointFieldType type) {
  return type != v1::POINT_FIELD_TYPE_UNSPECIFIED && type < v1::POINT_FIELD_TYPE_FLOAT32;
}

// Returns "f32", "u16", ..., the names in a field spec; "none" if `type` is unknown.
constexpr absl::string_view NameOf(PointFieldType type) {
  constexpr std::array<absl::string_view, v1::PointFieldType_ARRAYSIZE> kNames = {"none", "i8",  "u8",  "i16", "u16",
                                                                                  "i32",  "u32", "f32", "f64", "f16"};
  return SizeOf(type) == 0 ? kNames[0] : kNames[static_cast<size_t>(type)];
}

}  // namespace voxserve::client
