#include "tests/bench/activity_summary.h"

#include <cxxabi.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace voxserve::bench {
namespace {

using Kind = DeviceActivity::Kind;

// Names the stage of a launch by words in the launcher's NVTX range or in the kernel's name. The first match wins. The
// words cover our kernels and those of libraries. (Kernels in a CUDA graph have no ranges. Sorts of 64-bit keys are of
// points, those of 32-bit keys of tiles.)
struct StageRule {
  std::string_view part;
  std::string_view stage;
};
constexpr std::array kStageRules = {
    StageRule{"MakeTiles", "map"},     StageRule{"Brick", "map"},       StageRule{"CheckCapacities", "map"},
    StageRule{"VoxelToPoint", "head"}, StageRule{"Argmax", "head"},     StageRule{"DecodePoints", "voxelize"},
    StageRule{"Voxel", "voxelize"},    StageRule{"Radix", "voxelize"},  StageRule{"Gemm", "matmul"},
    StageRule{"gemm", "matmul"},       StageRule{"Multiply", "matmul"}, StageRule{"Matmul", "matmul"},
    StageRule{"matmul", "matmul"},     StageRule{"Linear", "matmul"},   StageRule{"cutlass", "matmul"},
    StageRule{"nvjet", "matmul"},      StageRule{"sm80_", "matmul"},    StageRule{"sm90_", "matmul"},
    StageRule{"splitK", "matmul"},     StageRule{"cublas", "matmul"},   StageRule{"PairTable", "map"},
    StageRule{"Pairs", "map"},         StageRule{"Scatter", "scatter"}, StageRule{"Gather", "gather"},
    StageRule{"Neighbour", "map"},     StageRule{"Coordinate", "map"},  StageRule{"Candidates", "map"},
    StageRule{"Grid", "map"},          StageRule{"Hash", "map"},        StageRule{"geometry", "map"},
    StageRule{"Scan", "map"},          StageRule{"Select", "map"},      StageRule{"<unsigned long>", "voxelize"},
    StageRule{"Heads", "map"},         StageRule{"Swapped", "map"},     StageRule{"<unsigned int>", "map"},
    StageRule{"Tiles", "map"},         StageRule{"Classes", "map"},     StageRule{"SortKeys", "map"},
};

const StageRule* FindRule(std::string_view name) {
  const auto* rule = std::find_if(kStageRules.begin(), kStageRules.end(),
                                  [&](const StageRule& r) { return name.find(r.part) != std::string_view::npos; });
  return rule == kStageRules.end() ? nullptr : rule;
}

std::string Demangle(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> demangled(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? demangled.get() : name;
}

// Shortens "cudaMemcpyAsync_ptsz_v7000" to "cudaMemcpyAsync", and "cuMemcpyHtoD_v2" to "cuMemcpyHtoD".
std::string BareCallName(const std::string& name) {
  const size_t end = name.find('_');
  return end == std::string::npos ? name : name.substr(0, end);
}

bool StartsWithAny(std::string_view name, std::initializer_list<std::string_view> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

void CountCall(const std::string& name, int64_t count, ActivitySummary& summary) {
  summary.calls[name] += count;
  const bool is_blocking_copy =
      StartsWithAny(name, {"cudaMemcpy", "cuMemcpy"}) && name.find("Async") == std::string::npos;
  if (is_blocking_copy || StartsWithAny(name, {"cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize",
                                               "cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize"})) {
    summary.synchronizations += count;
  } else if (StartsWithAny(name, {"cudaStreamQuery", "cudaEventQuery", "cuStreamQuery", "cuEventQuery"})) {
    summary.polls += count;
  } else if (StartsWithAny(name, {"cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cuGraphLaunch"})) {
    summary.launch_calls += count;
  } else if (StartsWithAny(name, {"cudaMallocHost", "cudaHostAlloc", "cudaHostRegister", "cuMemAllocHost",
                                  "cuMemHostAlloc", "cuMemHostRegister"})) {
    summary.host_allocations += count;
  } else if (StartsWithAny(name, {"cudaMalloc", "cuMemAlloc", "cuMemCreate"})) {
    summary.device_allocations += count;
  } else if (StartsWithAny(name, {"cudaFree", "cuMemFree", "cuMemRelease"}) && name.find("Host") == std::string::npos) {
    summary.device_frees += count;
  }
}

void CountActivity(const DeviceActivity& activity, ActivitySummary& summary) {
  const double us = static_cast<double>(activity.end_ns - activity.begin_ns) * 1e-3;
  const auto bytes = static_cast<int64_t>(activity.bytes);
  const std::string stage(StageOf(activity.ranges, activity.kernel));
  switch (activity.kind) {
    case Kind::kKernel:
      ++summary.kernels;
      summary.kernel_us += us;
      summary.stage_us[stage] += us;
      return;
    case Kind::kMemset:
      ++summary.memsets;
      summary.memset_us += us;
      summary.stage_us[stage] += us;
      return;
    case Kind::kCopyOnDevice:
      ++summary.copies_on_device;
      summary.copy_us += us;
      summary.stage_us[stage] += us;
      return;
    case Kind::kCopyToDevice:
      ++summary.copies_to_device;
      summary.bytes_to_device += bytes;
      break;
    case Kind::kCopyToHost:
      ++summary.copies_to_host;
      summary.bytes_to_host += bytes;
      break;
  }
  summary.copy_us += us;
  summary.stage_us["copy"] += us;
}

void MeasureUnion(const std::vector<DeviceActivity>& activities, ActivitySummary& summary) {
  std::vector<std::pair<uint64_t, uint64_t>> intervals;
  for (const DeviceActivity& activity : activities) intervals.emplace_back(activity.begin_ns, activity.end_ns);
  std::sort(intervals.begin(), intervals.end());
  if (intervals.empty()) return;
  uint64_t busy_ns = 0;
  uint64_t covered_until = intervals.front().first;
  for (const auto& [begin, end] : intervals) {
    const uint64_t from = std::max(begin, covered_until);
    if (end > from) busy_ns += end - from;
    covered_until = std::max(covered_until, end);
  }
  summary.busy_us = static_cast<double>(busy_ns) * 1e-3;
  summary.span_us = static_cast<double>(covered_until - intervals.front().first) * 1e-3;
}

}  // namespace

std::string ShortKernelName(const std::string& mangled) {
  std::string name = absl::StrReplaceAll(
      Demangle(mangled),
      {{"voxserve::kernels::cuda::", ""}, {"voxserve::kernels::", ""}, {"(anonymous namespace)::", ""}});
  if (name.starts_with("void ")) name.erase(0, 5);
  int depth = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<') ++depth;
    if (name[i] == '>') --depth;
    if (name[i] == '(' && depth == 0) return name.substr(0, i);
  }
  return name;
}

std::string_view StageOf(const std::vector<std::string>& ranges, std::string_view kernel) {
  for (auto range = ranges.rbegin(); range != ranges.rend(); ++range) {
    if (const StageRule* rule = FindRule(*range)) return rule->stage;
  }
  const StageRule* rule = FindRule(kernel);
  return rule == nullptr ? "other" : rule->stage;
}

ActivitySummary Summarize(const std::vector<DeviceActivity>& activities, const std::map<std::string, int64_t>& calls) {
  ActivitySummary summary;
  for (const auto& [name, count] : calls) CountCall(BareCallName(name), count, summary);

  std::map<std::pair<std::string, std::string>, KernelTotal> totals;  // keyed by mangled name and stage
  for (const DeviceActivity& activity : activities) {
    CountActivity(activity, summary);
    if (activity.kind != Kind::kKernel) continue;
    const std::string stage(StageOf(activity.ranges, activity.kernel));
    KernelTotal& total = totals[{activity.kernel, stage}];
    if (total.launches == 0) total = {.name = ShortKernelName(activity.kernel), .stage = stage};
    ++total.launches;
    total.us += static_cast<double>(activity.end_ns - activity.begin_ns) * 1e-3;
  }
  for (const auto& [key, total] : totals) summary.kernel_totals.push_back(total);
  std::stable_sort(summary.kernel_totals.begin(), summary.kernel_totals.end(),
                   [](const KernelTotal& a, const KernelTotal& b) { return a.us > b.us; });
  MeasureUnion(activities, summary);
  return summary;
}

std::string ToMarkdown(const ActivitySummary& summary, int num_runs, int num_kernels) {
  const double runs = num_runs;
  std::string text = "| per run | |\n|---|---|\n";
  const auto count = [&](const char* what, int64_t value) {
    absl::StrAppendFormat(&text, "| %s | %.4g |\n", what, static_cast<double>(value) / runs);
  };
  const auto kib = [&](const char* what, int64_t bytes) {
    absl::StrAppendFormat(&text, "| %s | %.1f KiB |\n", what, static_cast<double>(bytes) / 1024 / runs);
  };
  const auto us = [&](const std::string& what, double value) {
    absl::StrAppendFormat(&text, "| %s | %.1f us |\n", what, value / runs);
  };
  count("kernels", summary.kernels);
  count("launch calls", summary.launch_calls);
  count("host synchronisations", summary.synchronizations);
  count("polls", summary.polls);
  count("copies to the device", summary.copies_to_device);
  kib("bytes to the device", summary.bytes_to_device);
  count("copies to the host", summary.copies_to_host);
  kib("bytes to the host", summary.bytes_to_host);
  count("copies on the device", summary.copies_on_device);
  count("memsets", summary.memsets);
  count("device allocations", summary.device_allocations);
  count("device frees", summary.device_frees);
  count("pinned allocations", summary.host_allocations);
  us("GPU busy", summary.busy_us);
  us("kernels' time", summary.kernel_us);
  us("copies' time", summary.copy_us);
  us("memsets' time", summary.memset_us);
  for (const auto& [stage, time] : summary.stage_us) us("stage " + stage, time);
  if (summary.dropped_records > 0) {
    absl::StrAppendFormat(&text, "| LOST RECORDS in all, numbers are too low | %d |\n", summary.dropped_records);
  }
  if (num_kernels <= 0) return text;

  absl::StrAppendFormat(&text, "\n| kernel | stage | launches | us |\n|---|---|---|---|\n");
  const size_t rows = std::min(summary.kernel_totals.size(), static_cast<size_t>(num_kernels));
  for (const KernelTotal& total : std::vector(summary.kernel_totals.begin(), summary.kernel_totals.begin() + rows)) {
    constexpr size_t kNameColumns = 80;
    absl::StrAppendFormat(&text, "| `%s` | %s | %.4g | %.1f |\n", total.name.substr(0, kNameColumns), total.stage,
                          static_cast<double>(total.launches) / runs, total.us / runs);
  }
  return text;
}

}  // namespace voxserve::bench
