#pragma once

// Declares functions for the parts of voxserve_with_faults, a build of the server in which chosen calls fail. fault.cc
// defines them, and also the functions of engine/base/fault.h. All of them are thread-safe.
//
// The process reads its rules (fault_rules.h) when it starts, from the environment variable VOXSERVE_FAULTS. If the
// value is "@FILE", the rules are the content of FILE. The process then reads FILE every 10 ms. Whenever the content
// has changed, the process applies the new rules and writes FILE.applied with one line for each site of the old rules:
// the site's name, the number of its calls and the number of calls that failed. A process with a wrong rule ends with
// status 2.

#include <cstddef>
#include <cstdint>

namespace voxserve {

// Returns true if the allocation of `bytes` bytes must fail. Counts it as a call of the site "heap".
bool HeapFaultAt(size_t bytes);

// Returns by how many seconds the wall clock must be ahead, or a negative number if it must be behind. 0: no rule.
int64_t ClockJumpSeconds();

}  // namespace voxserve
