#pragma once

// Counts what a program does on NVIDIA GPUs, from outside of it: CUPTI sees every call and everything that runs, the
// libraries' too. For benchmarks alone; a traced program is slower by some microseconds a call, so that wall clocks are
// read in runs without it.
//
//   auto activity = CudaActivity::Create();          // before the process's first kernel: it hooks NVTX in
//   (*activity)->Start();
//   for (int i = 0; i < runs; ++i) Run();
//   const auto summary = (*activity)->Stop();
//
// Documentation: https://docs.nvidia.com/cupti. Needs libcupti.so at run time (tests/gpu/run.sh finds it).

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/bench/activity_summary.h"

namespace voxserve::bench {

// One at a time in a process. Start and Stop are called from one thread, outside of any NVTX range and with the current
// device idle; threads in between are all counted.
class CudaActivity {
 public:
  // UNAVAILABLE with CUPTI's words where it does not work here: no driver, another profiler attached.
  static absl::StatusOr<std::unique_ptr<CudaActivity>> Create();
  ~CudaActivity();
  CudaActivity(const CudaActivity&) = delete;
  CudaActivity& operator=(const CudaActivity&) = delete;

  absl::Status Start();
  // Waits for the current device; the wait is not counted.
  absl::StatusOr<ActivitySummary> Stop();

 private:
  struct Session;
  explicit CudaActivity(std::unique_ptr<Session> session);
  std::unique_ptr<Session> session_;
};

}  // namespace voxserve::bench
