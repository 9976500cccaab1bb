#pragma once

// This header lets a test inject faults: memory that is refused, a device that fails, a disk that is full. Code that
// can fail calls FaultAt first. If FaultAt returns true, the code fails in the same way as with a real fault.
//
// Only the program voxserve_with_faults (tests/faults) is compiled with VOXSERVE_FAULTS; for it, the sources that call
// FaultAt are compiled a second time. Everywhere else FaultAt is constantly false, and the compiler removes the code
// that it guards.

#include <cstdint>

namespace voxserve {

// The places where a fault can be injected. tests/faults/fault_rules.h says what fails at each place.
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
// Counts a call at the site, and returns true if the test's rules say that this call fails. Thread-safe; allocates
// nothing.
bool FaultAt(FaultSite site);
// Counts a call at the site, and waits if the test's rules say that this call is slow. Thread-safe.
void DelayAt(FaultSite site);
#else
constexpr bool FaultAt(FaultSite /*site*/) { return false; }
constexpr void DelayAt(FaultSite /*site*/) {}
#endif

}  // namespace voxserve
