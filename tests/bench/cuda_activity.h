#pragma once

// CudaActivity records what a program does on NVIDIA GPUs, with CUPTI (NVIDIA's profiling library). CUPTI sees every
// CUDA call and all work on the GPUs, including the calls and the work of libraries. Only benchmarks use this class. It
// slows a program down by some microseconds per call, so they measure wall-clock times in runs without it.
//
//   auto activity = CudaActivity::Create();          // call before the first kernel: it sets up NVTX
//   (*activity)->Start();
//   for (int i = 0; i < runs; ++i) Run();
//   const auto summary = (*activity)->Stop();
//
// Documentation: https://docs.nvidia.com/cupti. Needs libcupti.so at run time (tests/gpu/run.sh finds it).

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/bench/activity_summary.h"

namespace voxserve::bench {

// A process may have one CudaActivity at a time. The same thread calls Start and Stop, outside of any NVTX range and
// while the current device is idle. Everything that any thread does between Start and Stop is counted.
class CudaActivity {
 public:
  // Returns UNAVAILABLE with CUPTI's message if CUPTI does not work here: no driver, or another profiler is attached.
  static absl::StatusOr<std::unique_ptr<CudaActivity>> Create();
  ~CudaActivity();
  CudaActivity(const CudaActivity&) = delete;
  CudaActivity& operator=(const CudaActivity&) = delete;

  absl::Status Start();
  // Waits for the current device and returns the summary since Start. The wait is not counted.
  absl::StatusOr<ActivitySummary> Stop();
  // Returns the records of the last Stop in no particular order.
  const std::vector<DeviceActivity>& activities() const;

 private:
  struct Session;
  explicit CudaActivity(std::unique_ptr<Session> session);
  std::unique_ptr<Session> session_;
};

}  // namespace voxserve::bench
