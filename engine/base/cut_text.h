#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace voxserve {

// Returns the longest beginning of `text` that has at most max_bytes bytes and does not end within a UTF-8 character.
// If the bytes at the cut cannot be UTF-8 (more than three following bytes in a row), it has max_bytes bytes. The
// result points into `text`. Error messages and log lines use this function for text from outside: gRPC's peers expect
// UTF-8, and a terminal shows half a character as rubbish.
inline absl::string_view CutAtCharacter(absl::string_view text, size_t max_bytes) {
  constexpr size_t kMostFollowingBytes = 3;  // a UTF-8 character has at most 3 bytes after its first one
  if (text.size() <= max_bytes) return text;
  const auto is_following = [&](size_t place) { return (static_cast<unsigned char>(text[place]) & 0xC0) == 0x80; };
  size_t end = max_bytes;
  while (end > 0 && max_bytes - end < kMostFollowingBytes && is_following(end)) --end;
  return text.substr(0, is_following(end) ? max_bytes : end);
}

}  // namespace voxserve
