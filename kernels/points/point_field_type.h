#pragma once

// PointFieldType lists the types of the values in a point cloud's fields: the types of ROS's sensor_msgs/PointField,
// and float16. The numbers are those of proto/voxserve/v1/point_cloud.proto. Kernels, engine and server share this
// list.

#include <cstdint>
#include <type_traits>

namespace voxserve::kernels {

enum class PointFieldType : int32_t {
  kInt8 = 1,
  kUint8 = 2,
  kInt16 = 3,
  kUint16 = 4,
  kInt32 = 5,
  kUint32 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kFloat16 = 9,
};

// An IEEE 754 binary16, for which C++ has no type.
struct Float16Bits {
  uint16_t bits = 0;
};

// The unsigned integer of T's size.
template <typename T>
using BitsOf = std::conditional_t<
    sizeof(T) == 1, uint8_t,
    std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>>;

// Returns visit(T()), where T is the C++ type of the values of `type`. If `type` has none of the listed numbers,
// returns a value-initialised result (0). The function also runs on a GPU.
template <typename Visit>
constexpr auto VisitPointFieldType(PointFieldType type, Visit visit) {
  switch (type) {
    case PointFieldType::kInt8:
      return visit(int8_t{});
    case PointFieldType::kUint8:
      return visit(uint8_t{});
    case PointFieldType::kInt16:
      return visit(int16_t{});
    case PointFieldType::kUint16:
      return visit(uint16_t{});
    case PointFieldType::kInt32:
      return visit(int32_t{});
    case PointFieldType::kUint32:
      return visit(uint32_t{});
    case PointFieldType::kFloat32:
      return visit(float{});
    case PointFieldType::kFloat64:
      return visit(double{});
    case PointFieldType::kFloat16:
      return visit(Float16Bits{});
  }
  return decltype(visit(int8_t{}))();
}

// Returns the bytes of one value, or 0 if `type` has none of the listed numbers.
constexpr int SizeOf(PointFieldType type) {
  return VisitPointFieldType(type, [](auto value) { return static_cast<int>(sizeof(value)); });
}

}  // namespace voxserve::kernels
