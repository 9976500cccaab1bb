#pragma once

// How many descriptors this process may have open (RLIMIT_NOFILE).

#include <cstdint>

namespace voxserve {

// The soft limit. INT64_MAX where there is none.
int64_t DescriptorLimit();

// Raises the soft limit to the hard one, and returns the soft limit that holds then. A server has a descriptor or two
// for each connection, and the usual soft limit of 1,024 is there for programs that call select(). Nothing here does.
int64_t RaiseDescriptorLimit();

}  // namespace voxserve
