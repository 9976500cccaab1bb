#pragma once

// The text by which a test says what is to fail. It holds rules with ';' between them; a rule is a site, then settings:
//
//   reserve_scratch:every=3            every third reservation of scratch fails
//   host_memory:after=10,times=1       ten allocations pass, the next one fails
//   slow_batch:ms=200;cuda_error       every batch takes 200 ms longer, every status of CUDA is an error
//
//   reserve_requests, reserve_sweeps,  MemoryBudget refuses a reservation for this use
//   reserve_answers, reserve_tuning,
//   reserve_scratch, reserve_models,
//   reserve_pinned
//   host_buffer                        no memory for the bytes of a cloud
//   host_memory                        the system has no memory for what a batch computes with
//   page_locked                        CUDA locks no page
//   device_memory                      the GPU has no memory
//   heap                               an allocation of the server's own code (failing_heap.cc); bytes=N: of N or more
//   cuda_error                         a call of CUDA that succeeded counts as a failed launch
//   cuda_poison                        ... as an illegal access, after which the context is lost
//   batch_error                        a batch fails on any device, once more if it is tried again
//   device_failure                     a batch fails as on a device that is lost
//   slow_batch                         a batch takes ms=N longer
//   plan_file                          the disk is full when a plan is written
//   log                                the disk is full when a log line is written
//   clock                              the wall clock is seconds=N ahead, or behind if N is negative (jumping_clock.cc)
//
// Settings of every site: after=N (calls that pass first), every=N (of the calls after those, each N-th fails; 1 by
// default) and times=N (faults at most; no limit by default). A site stands in one rule at most.

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

// Returns the rules, none for an empty text. INVALID_ARGUMENT names the rule that is wrong.
absl::StatusOr<std::vector<FaultRule>> ParseFaultRules(std::string_view text);

}  // namespace voxserve
