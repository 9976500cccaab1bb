#include "tests/server/codec/wire_bytes.h"

#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <vector>

namespace voxserve {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;

// Returns a random number from 0 to `most`, both included.
size_t Draw(size_t most, std::mt19937* random) { return std::uniform_int_distribution<size_t>(0, most)(*random); }

bool OneIn(size_t n, std::mt19937* random) { return Draw(n - 1, random) == 0; }

uint64_t RandomNumber(std::mt19937* random) {
  switch (Draw(3, random)) {
    case 0:
      return Draw(3, random);
    case 1:
      return Draw(1000, random);
    case 2:
      return ~uint64_t{0} - Draw(3, random);
    default:
      return (uint64_t{(*random)()} << 32 | (*random)()) >> Draw(63, random);
  }
}

std::string RandomBytes(size_t size, std::mt19937* random) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>((*random)());
  return bytes;
}

std::string RandomText(std::mt19937* random) {
  static const std::vector<std::string> letters = {"a",
                                                   "B",
                                                   " ",
                                                   std::string(1, '\0'),
                                                   "\x7f",
                                                   "\xc2\x80",
                                                   "\xdf\xbf",
                                                   "\u20ac",
                                                   "\xed\x9f\xbf",
                                                   "\xee\x80\x80",
                                                   "\U0001F697",
                                                   "\xf4\x8f\xbf\xbf"};
  std::string text;
  for (size_t i = Draw(6, random); i > 0; --i) text += letters[Draw(letters.size() - 1, random)];
  return text;
}

std::string Tag(int number, int wire_type, std::mt19937* random) {
  const int num_bytes = OneIn(10, random) ? static_cast<int>(1 + Draw(4, random)) : 1;
  return Varint(static_cast<uint32_t>(number) << 3 | static_cast<uint32_t>(wire_type), num_bytes);
}

std::string Sized(const std::string& value, std::mt19937* random) {
  return Varint(value.size(), OneIn(10, random) ? static_cast<int>(1 + Draw(4, random)) : 1) + value;
}

// Returns the tag and a random value of a field of this wire type. It is for fields that the message does not have, or
// has with another wire type.
std::string RandomValue(int number, int wire_type, int depth, std::mt19937* random) {
  std::string value = Tag(number, wire_type, random);
  switch (wire_type) {
    case WireFormatLite::WIRETYPE_VARINT:
      return value + Varint(RandomNumber(random), static_cast<int>(1 + Draw(9, random)));
    case WireFormatLite::WIRETYPE_FIXED64:
      return value + RandomBytes(8, random);
    case WireFormatLite::WIRETYPE_FIXED32:
      return value + RandomBytes(4, random);
    case WireFormatLite::WIRETYPE_LENGTH_DELIMITED:
      return value + Sized(RandomBytes(Draw(8, random), random), random);
    default:
      break;
  }
  for (size_t i = Draw(2, random); i > 0 && depth < 5; --i) {
    constexpr int kTypes[] = {0, 1, 2, 3, 5};
    value += RandomValue(static_cast<int>(1 + Draw(30, random)), kTypes[Draw(4, random)], depth + 1, random);
  }
  return value + Tag(number, WireFormatLite::WIRETYPE_END_GROUP, random);
}

std::string RandomField(const FieldDescriptor& field, size_t max_bytes, std::mt19937* random) {
  const auto wire_type =
      static_cast<int>(WireFormatLite::WireTypeForFieldType(static_cast<WireFormatLite::FieldType>(field.type())));
  const std::string tag = Tag(field.number(), wire_type, random);
  switch (field.type()) {
    case FieldDescriptor::TYPE_MESSAGE:
      return tag + Sized(RandomMessage(*field.message_type(), Draw(max_bytes, random), random), random);
    case FieldDescriptor::TYPE_STRING:
      return tag + Sized(RandomText(random), random);
    case FieldDescriptor::TYPE_BYTES:
      return tag + Sized(RandomBytes(Draw(max_bytes, random), random), random);
    default:
      return RandomValue(field.number(), wire_type, 0, random);
  }
}

}  // namespace

std::string Varint(uint64_t value, int num_bytes) {
  std::string bytes;
  do {
    bytes.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  } while (value != 0 || static_cast<int>(bytes.size()) < num_bytes);
  bytes.back() = static_cast<char>(bytes.back() & 0x7F);
  return bytes;
}

std::string VarintField(int number, uint64_t value) {
  return Varint(static_cast<uint64_t>(number) << 3) + Varint(value);
}

std::string DelimitedField(int number, const std::string& value) {
  return Varint(static_cast<uint64_t>(number) << 3 | 2) + Varint(value.size()) + value;
}

std::string GroupField(int number, const std::string& body) {
  return Varint(static_cast<uint64_t>(number) << 3 | 3) + body + Varint(static_cast<uint64_t>(number) << 3 | 4);
}

std::string Repeated(const std::string& bytes, size_t times) {
  const size_t size = bytes.size() * times;
  std::string all = bytes;
  while (all.size() < size) all += all.substr(0, size - all.size());
  all.resize(size);
  return all;
}

grpc::ByteBuffer OneSlice(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

grpc::ByteBuffer RandomSlices(const std::string& bytes, size_t max_slice_bytes, std::mt19937* random) {
  std::vector<grpc::Slice> slices;
  for (size_t i = 0; i < bytes.size();) {
    const size_t size = std::min(Draw(max_slice_bytes, random), bytes.size() - i);
    slices.emplace_back(bytes.substr(i, size));
    i += size;
  }
  if (slices.empty()) slices.emplace_back("");
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string RandomMessage(const Descriptor& type, size_t max_bytes, std::mt19937* random) {
  std::string bytes;
  while (type.field_count() > 0 && bytes.size() < max_bytes && !OneIn(12, random)) {
    const FieldDescriptor& field = *type.field(static_cast<int>(Draw(type.field_count() - 1, random)));
    constexpr int kTypes[] = {0, 1, 3, 5};  // not 2 (length-delimited): it may have to hold a valid message
    std::string value;
    if (OneIn(10, random)) {
      value = RandomValue(static_cast<int>(100 + Draw(1000, random)), kTypes[Draw(3, random)], 0, random);
    } else if (OneIn(20, random)) {
      // The message has a field of this number. If the field also has this wire type, the value must be valid for it,
      // and values of these wire types always are.
      value = RandomValue(field.number(), kTypes[Draw(3, random)], 0, random);
    } else {
      value = RandomField(field, max_bytes - bytes.size(), random);
    }
    bytes += value;
  }
  return bytes;
}

std::string Mutated(std::string bytes, std::mt19937* random) {
  for (size_t i = 1 + Draw(3, random); i > 0; --i) {
    const size_t at = bytes.empty() ? 0 : Draw(bytes.size() - 1, random);
    const size_t size = Draw(std::min<size_t>(8, bytes.size() - at), random);
    switch (bytes.empty() ? 1 : Draw(5, random)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << Draw(7, random)));
        break;
      case 1:
        bytes.insert(at, RandomBytes(1 + Draw(3, random), random));
        break;
      case 2:
        bytes.erase(at, size);
        break;
      case 3:
        bytes.resize(at);
        break;
      case 4:
        bytes.insert(Draw(bytes.size(), random), bytes.substr(at, size));
        break;
      default:
        bytes[at] = static_cast<char>((*random)());
    }
  }
  return bytes;
}

}  // namespace voxserve
