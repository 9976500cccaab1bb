#pragma once

// The functions of fault.cc that parts of voxserve_with_faults call, beside those of engine/base/fault.h.
//
// The rules (fault_rules.h) come from the environment's VOXSERVE_FAULTS when the process starts. "@FILE" names a file
// that has them, which may change: it is read again every 10 ms. FILE.applied is then written anew, a line for each
// site that had a rule until then: its name, its calls and its faults. A process with wrong rules ends with status 2.

#include <cstddef>
#include <cstdint>

namespace voxserve {

// Returns true if an allocation of so many bytes is to fail.
bool HeapFaultAt(size_t bytes);

// Returns the seconds by which the wall clock is ahead.
int64_t ClockJumpSeconds();

}  // namespace voxserve
