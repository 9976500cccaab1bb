#pragma once

// What a GPU did and what the host asked of it, as counts and times: kernels, copies, synchronisations, allocations, by
// stage of a request. Plain arithmetic on records; cuda_activity.h collects them.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace voxserve::bench {

// One thing that ran on the device.
struct DeviceActivity {
  enum class Kind { kKernel, kCopyToDevice, kCopyToHost, kCopyOnDevice, kMemset };
  Kind kind = Kind::kKernel;
  std::string kernel;               // mangled or not; empty for copies and memsets
  std::vector<std::string> ranges;  // NVTX ranges that the launch stood in, outermost first; may be empty
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;
  uint64_t bytes = 0;  // of copies and memsets
};

struct KernelTotal {
  std::string name;   // demangled, without parameters
  std::string stage;  // StageOf
  int64_t launches = 0;
  double us = 0;
};

struct ActivitySummary {
  // On the device.
  int64_t kernels = 0;
  int64_t copies_to_device = 0;
  int64_t copies_to_host = 0;
  int64_t copies_on_device = 0;
  int64_t memsets = 0;
  int64_t bytes_to_device = 0;
  int64_t bytes_to_host = 0;
  double kernel_us = 0;  // sums of durations
  double copy_us = 0;    // host to device, device to host, on the device
  double memset_us = 0;
  double busy_us = 0;                      // length of the union of all of them: the time in which the GPU did anything
  double span_us = 0;                      // first begin to last end
  std::map<std::string, double> stage_us;  // kernel and memset time by StageOf; copies between host and device: "copy"
  std::vector<KernelTotal> kernel_totals;  // longest first
  int64_t dropped_records = 0;             // the collector lost these: numbers above are too low

  // On the host; calls that another CUDA call makes inside itself are part of that call.
  int64_t launch_calls = 0;      // kernels, graphs
  int64_t synchronizations = 0;  // of a stream, an event, a device; copies that block
  int64_t polls = 0;             // of a stream or an event
  int64_t device_allocations = 0;
  int64_t device_frees = 0;              // cudaFree waits for the device too
  int64_t host_allocations = 0;          // pinned
  std::map<std::string, int64_t> calls;  // every CUDA function by its name
};

// voxelize, map, gather, matmul, scatter, head, or other: by the table in activity_summary.cc, from the innermost range
// that it knows, else from the kernel's name.
std::string_view StageOf(const std::vector<std::string>& ranges, std::string_view kernel);

// `calls`: CUDA functions by the name that CUPTI gives ("cudaMemcpyAsync_v3020").
ActivitySummary Summarize(const std::vector<DeviceActivity>& activities, const std::map<std::string, int64_t>& calls);

// A table in Markdown of everything per run, and the `num_kernels` kernels that took longest.
std::string ToMarkdown(const ActivitySummary& summary, int num_runs, int num_kernels = 10);

}  // namespace voxserve::bench
