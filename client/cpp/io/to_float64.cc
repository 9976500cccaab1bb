#include "client/cpp/io/to_float64.h"

#include <bit>
#include <cstring>

namespace voxserve::client {
namespace {

void ConvertValue(bool is_signed, bool is_bigendian, char* place) {
  uint64_t bits = 0;
  std::memcpy(&bits, place, sizeof(bits));
  if (is_bigendian) bits = __builtin_bswap64(bits);
  bits =
      std::bit_cast<uint64_t>(is_signed ? static_cast<double>(static_cast<int64_t>(bits)) : static_cast<double>(bits));
  if (is_bigendian) bits = __builtin_bswap64(bits);
  std::memcpy(place, &bits, sizeof(bits));
}

}  // namespace

void ToFloat64(const std::vector<LongField>& fields, uint64_t point_step, bool is_bigendian, std::string* points) {
  if (fields.empty()) return;
  for (uint64_t begin = 0; begin < points->size(); begin += point_step) {
    for (const LongField& field : fields) {
      char* place = points->data() + begin + field.offset;
      for (uint32_t i = 0; i < field.count; ++i, place += sizeof(uint64_t)) {
        ConvertValue(field.is_signed, is_bigendian, place);
      }
    }
  }
}

}  // namespace voxserve::client
