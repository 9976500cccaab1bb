#pragma once

// These functions read and raise the limit of this process's open descriptors (RLIMIT_NOFILE).

#include <cstdint>

namespace voxserve {

// Returns the soft limit; INT64_MAX if there is none.
int64_t DescriptorLimit();

// Raises the soft limit to the hard limit, and returns the resulting soft limit. A server uses one or two descriptors
// per connection. The usual soft limit of 1,024 protects programs that call select(); this program does not call it.
int64_t RaiseDescriptorLimit();

}  // namespace voxserve
