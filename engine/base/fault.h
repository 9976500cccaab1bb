#pragma once

// Faults that a test injects: memory that is refused, a device that fails, a disk that is full. Code that can fail asks
// FaultAt first, and fails as it would by itself where the answer is true.
//
// Only the program voxserve_with_faults (tests/faults) is compiled with VOXSERVE_FAULTS: its sources with a FaultAt are
// compiled a second time. Everywhere else FaultAt is constantly false, and the compiler leaves out what it guards.

#include <cstdint>

namespace voxserve {

// tests/faults/fault_rules.h has the names and what each does.
enum class FaultSite {
  // Reservations in the MemoryBudget, in the order of MemoryBudget::Use.
  kReserveRequests,
  kReserveSweeps,
  kReserveAnswers,
  kReserveTuning,
  kReserveScratch,
  kReserveModels,
  kReservePinned,
  // Allocations.
  kHostBuffer,
  kHostMemory,
  kPageLocked,
  kDeviceMemory,
  kHeap,
  // Computing.
  kCudaError,
  kCudaPoison,
  kBatchError,
  kDeviceFailure,
  kSlowBatch,
  // Files.
  kPlanFile,
  kLog,
  // The wall clock.
  kClock,
};

#ifdef VOXSERVE_FAULTS
// Returns true if this call at the site is to fail. Counts the call. Thread-safe; allocates nothing.
bool FaultAt(FaultSite site);
// Waits if this call at the site is to be slow.
void DelayAt(FaultSite site);
#else
constexpr bool FaultAt(FaultSite /*site*/) { return false; }
constexpr void DelayAt(FaultSite /*site*/) {}
#endif

}  // namespace voxserve
