#pragma once

// Formats numbers for people.

#include <cstdint>
#include <string>

namespace voxserve::client {

// 1234567 -> "1,234,567".
std::string WithSeparators(uint64_t number);

}  // namespace voxserve::client
