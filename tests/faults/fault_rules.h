#pragma once

// Parses the text by which a test says what fails in the program voxserve_with_faults. A site is a place in the code
// that asks whether it should fail (engine/base/fault.h). The text is a list of rules with ';' between them. A rule is
// the name of a site, then ':' and settings with ',' between them:
//
//   reserve_scratch:every=3            every third reservation of scratch memory fails
//   host_memory:after=10,times=1       ten allocations succeed, the next one fails, all later ones succeed
//   slow_batch:ms=200;cuda_error       every batch takes 200 ms longer, and every call of CUDA returns an error
//
// The sites, and their effect on a call that fails:
//
//   reserve_requests, reserve_sweeps,  MemoryBudget refuses a reservation for the use that the name says
//   reserve_answers, reserve_tuning,
//   reserve_scratch, reserve_models,
//   reserve_pinned
//   host_buffer                        the bytes of a cloud get no memory
//   host_memory                        the system refuses the memory in which a batch is computed
//   page_locked                        CUDA refuses to page-lock host memory
//   device_memory                      the GPU has no free memory
//   heap                               an allocation of the server's own code fails (failing_heap.cc); with bytes=N,
//                                      only allocations of N bytes or more count as calls
//   cuda_error                         a call of CUDA that succeeded returns a launch failure
//   cuda_poison                        a call of CUDA that succeeded returns an illegal access, and its context is lost
//   batch_error                        a batch fails on any device; a second try of the batch is another call
//   device_failure                     a batch fails as if its device were lost
//   slow_batch                         a batch takes N ms longer (ms=N)
//   plan_file                          the disk is full when a plan file is written
//   log                                the disk is full when a log line is written
//   clock                              the wall clock is N seconds ahead (seconds=N), or behind if N is negative
//                                      (jumping_clock.cc); the settings below do not apply
//
// Settings of every site: after=N (the first N calls succeed), every=N (each N-th of the later calls fails; 1 by
// default) and times=N (at most N calls fail; no limit by default). Each site may be in one rule only.

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/fault.h"

namespace voxserve {

inline constexpr std::array<std::string_view, 20> kFaultSiteNames = {
    "reserve_requests",
    "reserve_sweeps",
    "reserve_answers",
    "reserve_tuning",
    "reserve_scratch",
    "reserve_models",
    "reserve_pinned",
    "host_buffer",
    "host_memory",
    "page_locked",
    "device_memory",
    "heap",
    "cuda_error",
    "cuda_poison",
    "batch_error",
    "device_failure",
    "slow_batch",
    "plan_file",
    "log",
    "clock",
};
static_assert(kFaultSiteNames.size() == static_cast<size_t>(FaultSite::kClock) + 1);

struct FaultRule {
  FaultSite site = FaultSite::kReserveRequests;
  int64_t after = 0;
  int64_t every = 1;
  int64_t times = std::numeric_limits<int64_t>::max();
  int64_t amount = 0;  // bytes of heap, ms of slow_batch, seconds of clock
};

// Returns the rules of the text, or no rules for an empty text. A wrong rule is INVALID_ARGUMENT, and the message names
// the rule.
absl::StatusOr<std::vector<FaultRule>> ParseFaultRules(std::string_view text);

}  // namespace voxserve
