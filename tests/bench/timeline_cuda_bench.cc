// Writes what a GPU does in one batch, kernel by kernel, for plot_timeline.py. The batch runs in three ways:
//
//   with sizes   the host waits for the numbers of voxels and sites before it launches the network's steps, as for a
//                context's first batch; it also records an event after each step, so that steps do not overlap
//   capacities   the host launches everything without a wait (engine/executor/cuda_batch.h)
//   captured     within capacities, replayed as a CUDA graph (engine/executor/captured_batches.h)
//
//   timeline_cuda_bench [--filter TEXT] [--batch N] [--model FOLDER SCAN]
//
// The first case whose name contains TEXT is run (default "MinkUNet 1.0x, semantickitti"); varied_cases.h has the
// cases. Prints lines of CSV: way, kind, stage, what, begin_us, end_us; times begin with the batch's first record.
// CUPTI adds some microseconds to each launch, so the gaps between kernels are upper bounds. Exits with 77 if there is
// no GPU.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "tests/bench/cuda_activity.h"
#include "tests/bench/or_die.h"
#include "tests/bench/varied_cases.h"

namespace voxserve::bench {
namespace {

struct Way {
  const char* name;
  RunOptions options;
};

const char* KindName(DeviceActivity::Kind kind) {
  switch (kind) {
    case DeviceActivity::Kind::kKernel:
      return "kernel";
    case DeviceActivity::Kind::kCopyToDevice:
      return "copy in";
    case DeviceActivity::Kind::kCopyToHost:
      return "copy out";
    case DeviceActivity::Kind::kCopyOnDevice:
      return "copy";
    case DeviceActivity::Kind::kMemset:
      return "memset";
  }
  return "";
}

// Makes one record of copies to the device that follow each other: a cloud comes in as many transfers as it happens to
// be staged in (engine/runtime/streaming_copy.h). The record lasts from
// the begin of the first one to the end of the last one, with the gaps between them. activities: in the order of their
// begin.
void JoinCopiesIn(std::vector<DeviceActivity>& activities) {
  std::vector<DeviceActivity> joined;
  for (DeviceActivity& activity : activities) {
    if (!joined.empty() && activity.kind == DeviceActivity::Kind::kCopyToDevice &&
        joined.back().kind == DeviceActivity::Kind::kCopyToDevice) {
      joined.back().end_ns = std::max(joined.back().end_ns, activity.end_ns);
    } else {
      joined.push_back(std::move(activity));
    }
  }
  activities = std::move(joined);
}

// Returns the records of the last of num_batches equal batches, in the order of their begin. Ends the program if the
// records do not divide into so many.
std::vector<DeviceActivity> LastOf(std::vector<DeviceActivity> activities, int num_batches) {
  std::sort(activities.begin(), activities.end(),
            [](const DeviceActivity& a, const DeviceActivity& b) { return a.begin_ns < b.begin_ns; });
  JoinCopiesIn(activities);
  if (activities.size() % static_cast<size_t>(num_batches) != 0) {
    std::fprintf(stderr, "%d batches left %d records\n", num_batches, static_cast<int>(activities.size()));
    std::exit(1);
  }
  const auto of_others = static_cast<std::ptrdiff_t>(activities.size() / static_cast<size_t>(num_batches)) *
                         (static_cast<std::ptrdiff_t>(num_batches) - 1);
  activities.erase(activities.begin(), activities.begin() + of_others);
  return activities;
}

void Print(const Way& way, const std::vector<DeviceActivity>& activities) {
  for (const DeviceActivity& activity : activities) {
    const uint64_t start = activities.front().begin_ns;
    const std::string what = absl::StrReplaceAll(ShortKernelName(activity.kernel), {{",", ";"}, {"\"", "'"}});
    std::printf("%s,%s,%s,%s,%.3f,%.3f\n", way.name, KindName(activity.kind),
                std::string(StageOf(activity.ranges, activity.kernel)).c_str(), what.c_str(),
                static_cast<double>(activity.begin_ns - start) / 1e3,
                static_cast<double>(activity.end_ns - start) / 1e3);
  }
}

int Main(int argc, char** argv) {
  std::string filter = "MinkUNet 1.0x, semantickitti";
  int batch = 1;
  std::vector<std::pair<std::string, std::string>> models;  // folder, scan
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    const auto next = [&]() -> std::string { return i + 1 < argc ? argv[++i] : ""; };
    bool is_right = true;
    if (option == "--filter") {
      filter = next();
    } else if (option == "--batch") {
      is_right = absl::SimpleAtoi(next(), &batch) && batch > 0;
    } else if (option == "--model") {
      const std::string folder = next();
      models.emplace_back(folder, next());
      is_right = !models.back().second.empty();
    } else {
      is_right = false;
    }
    if (is_right) continue;
    std::fprintf(stderr, "usage: %s [--filter TEXT] [--batch N] [--model FOLDER SCAN]\n", argv[0]);
    return 2;
  }
  if (!support::HasDevice(support::Device::kCuda)) {
    std::puts("skipped: no CUDA device here");
    return 77;
  }
  for (const BenchCase& c : VariedCases(models, /*with_deterministic=*/false)) {
    if (!absl::StrContains(c.name, filter)) continue;
    const auto activity = OrDie(CudaActivity::Create());
    PreparedCase prepared(c, support::Device::kCuda);
    std::puts("way,kind,stage,what,begin_us,end_us");
    for (const Way& way :
         {Way{"with sizes", {.times_convs = true}}, Way{"capacities", {}}, Way{"captured", {.captures = true}}}) {
      // The first batches take memory, and the first two of a shape are not replayed. All of them are one input, so
      // that the ways can be compared. CUPTI sets itself up in the first batches that it records.
      for (int i = 0; i < kNumInputs; ++i) prepared.RunOrDie(batch, 0, way.options);
      if (const absl::Status status = activity->Start(); !status.ok()) {
        std::cerr << status << std::endl;
        return 1;
      }
      for (int i = 0; i < kNumInputs; ++i) prepared.RunOrDie(batch, 0, way.options);
      if (OrDie(activity->Stop()).dropped_records > 0) std::fputs("CUPTI lost records\n", stderr);
      Print(way, LastOf(activity->activities(), kNumInputs));
    }
    std::fprintf(stderr, "%s, batch %d\n", c.name.c_str(), batch);
    return 0;
  }
  std::fprintf(stderr, "no case has '%s' in its name\n", filter.c_str());
  return 2;
}

}  // namespace
}  // namespace voxserve::bench

int main(int argc, char** argv) { return voxserve::bench::Main(argc, argv); }
