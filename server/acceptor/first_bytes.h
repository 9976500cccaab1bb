#pragma once

// The first bytes of a connection tell whether its client speaks the port's protocol.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace voxserve {

enum class FirstBytes : uint8_t { kIncomplete, kGood, kBad };

// As many bytes as CheckHttp2 and CheckTls look at.
inline constexpr size_t kMostFirstBytes = 24;

// Returns whether `received`, 1 to kMostFirstBytes bytes, begins HTTP/2 (RFC 9113, section 3.4).
FirstBytes CheckHttp2(std::string_view received);
// Returns whether `received`, 1 to kMostFirstBytes bytes, begins a TLS handshake with a ClientHello (RFC 8446, sections
// 5.1 and 4).
FirstBytes CheckTls(std::string_view received);

}  // namespace voxserve
