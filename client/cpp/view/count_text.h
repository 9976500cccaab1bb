#pragma once

// WithSeparators formats numbers for people.

#include <cstdint>
#include <string>

namespace voxserve::client {

// Returns the number with commas: 1234567 becomes "1,234,567".
std::string WithSeparators(uint64_t number);

}  // namespace voxserve::client
