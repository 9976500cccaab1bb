#pragma once

#include <initializer_list>
#include <stop_token>
#include <string>
#include <string_view>

namespace voxserve {

// Returns the SHA-256 over the parts as 64 lower-case hexadecimal digits. Each part is preceded by its length, 8 bytes
// little endian, so that moving a byte from one part to the next changes the digest. Soon after `stop` is requested,
// returns a digest of no use.
std::string Sha256OfParts(std::initializer_list<std::string_view> parts, const std::stop_token& stop = {});

}  // namespace voxserve
