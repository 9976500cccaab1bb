#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace voxserve {

// Returns the text's beginning, of at most max_bytes. It does not end within a character of UTF-8. Bytes that are no
// UTF-8 are cut as they come. The result points into the text. Error messages and log lines use it for text from
// outside: gRPC's other ends expect UTF-8, and a terminal shows half a character as rubbish.
inline absl::string_view CutAtCharacter(absl::string_view text, size_t max_bytes) {
  constexpr size_t kMostFollowingBytes = 3;  // of a character, behind its first byte
  if (text.size() <= max_bytes) return text;
  const auto is_following = [&](size_t place) { return (static_cast<unsigned char>(text[place]) & 0xC0) == 0x80; };
  size_t end = max_bytes;
  while (end > 0 && max_bytes - end < kMostFollowingBytes && is_following(end)) --end;
  return text.substr(0, is_following(end) ? max_bytes : end);
}

}  // namespace voxserve
