#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace voxserve {

// SHA-256 over the parts, each preceded by its length as 8 bytes little endian (so that moving a byte from one part to
// the next changes it), as 64 lower-case hexadecimal digits.
std::string Sha256OfParts(std::initializer_list<std::string_view> parts);

}  // namespace voxserve
