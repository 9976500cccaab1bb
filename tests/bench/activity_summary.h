#pragma once

// Summarizes what a GPU did and which CUDA calls the host made, as counts and times: kernels, copies, synchronisations
// and allocations. Times are also summed by stage (StageOf). cuda_activity.h collects the records; the functions here
// only add them up and need no GPU.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace voxserve::bench {

// One kernel, copy or memset that ran on the device.
struct DeviceActivity {
  enum class Kind { kKernel, kCopyToDevice, kCopyToHost, kCopyOnDevice, kMemset };
  Kind kind = Kind::kKernel;
  std::string kernel;               // may be mangled; empty for copies and memsets
  std::vector<std::string> ranges;  // the NVTX ranges around the launch, outermost first; may be empty
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
  double copy_us = 0;    // between host and device in both directions, and on the device
  double memset_us = 0;
  double busy_us = 0;                      // the time in which anything ran; overlaps count once
  double span_us = 0;                      // from the first begin to the last end
  std::map<std::string, double> stage_us;  // kernels and memsets by StageOf; "copy": to and from the host
  std::vector<KernelTotal> kernel_totals;  // longest first
  int64_t dropped_records = 0;             // number of lost records; if it is above 0, the numbers above are too low

  // The host's calls. A call that another CUDA call makes inside itself counts as part of that call.
  int64_t launch_calls = 0;      // kernels, graphs
  int64_t synchronizations = 0;  // of streams, events or devices; also copies that block
  int64_t polls = 0;             // queries of a stream or an event
  int64_t device_allocations = 0;
  int64_t device_frees = 0;              // cudaFree also waits for the device
  int64_t host_allocations = 0;          // pinned
  std::map<std::string, int64_t> calls;  // calls of every CUDA function by its name
};

// Returns the stage to which a launch belongs: voxelize, map, gather, matmul, scatter, head or other. The table in
// activity_summary.cc maps words to stages. The innermost NVTX range with such a word decides; if there is none, the
// kernel's name does.
std::string_view StageOf(const std::vector<std::string>& ranges, std::string_view kernel);

// Shortens "void ns::FooKernel<float, 3>(ns::FooParams)", which may be mangled, to "FooKernel<float, 3>". Keeps
// parentheses within template arguments.
std::string ShortKernelName(const std::string& name);

// Returns the summary. `calls` has the number of calls of each CUDA function, by the name that CUPTI gives it
// ("cudaMemcpyAsync_v3020").
ActivitySummary Summarize(const std::vector<DeviceActivity>& activities, const std::map<std::string, int64_t>& calls);

// Returns Markdown tables: all numbers divided by num_runs, and the `num_kernels` kernels that took longest.
std::string ToMarkdown(const ActivitySummary& summary, int num_runs, int num_kernels = 10);

}  // namespace voxserve::bench
