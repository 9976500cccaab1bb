#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace voxserve {

struct Utf8Character {
  uint32_t code_point = 0;
  size_t size = 0;  // in bytes
};

// Returns the UTF-8 character with which the text begins (RFC 3629), or nullopt if it begins with none. The text is not
// empty.
inline std::optional<Utf8Character> FirstUtf8Character(absl::string_view text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  if (lead < 0x80) return Utf8Character{lead, 1};
  const size_t size = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < size) return std::nullopt;
  uint32_t code_point = lead & (0xFF >> (size + 1));
  for (size_t i = 1; i < size; ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if ((byte & 0xC0) != 0x80) return std::nullopt;
    code_point = code_point << 6 | (byte & 0x3F);
  }
  const bool is_overlong = (size == 3 && code_point < 0x800) || (size == 4 && code_point < 0x10000);
  const bool is_surrogate = code_point >= 0xD800 && code_point <= 0xDFFF;
  if (is_overlong || is_surrogate || code_point > 0x10FFFF) return std::nullopt;
  return Utf8Character{code_point, size};
}

}  // namespace voxserve
