// Times mapping on a GPU, level by level. It shows the gain from fused output coordinates and then from tables of
// bricks (Tang et al., MLSys 2022, Figure 13), and compares each step of MinkUNet's geometry with the engine's few
// launches for all of it.
//
//   mapping_cuda_bench
//
// Before it is timed, everything is compared with the CPU's result, and the variants with ours; the program exits with
// 1 if they differ. Tables are Markdown.

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "engine/executor/cuda_executor.h"
#include "engine/runtime/cuda_devices.h"
#include "tests/bench/device_mapping.h"
#include "tests/bench/event_timer.h"
#include "tests/bench/map_workloads.h"
#include "tests/bench/percentile.h"
#include "tests/engine/device_runner.h"
#include "tests/support/minkunet.h"
#include "tests/support/test_device.h"

namespace voxserve::bench {
namespace {

constexpr float kMinkUNetVoxelSize = 0.05F;  // m

struct Case {
  MapWorkload workload;
  CpuMaps expected;

  int num_steps() const { return workload.num_levels() * kNumMappingSteps; }
};

[[noreturn]] void Fail(const std::string& what) {
  std::fflush(stdout);
  std::cerr << what << std::endl;
  std::exit(1);
}

template <typename T>
T OrFail(absl::StatusOr<T> value) {
  if (!value.ok()) Fail(std::string(value.status().message()));
  return *std::move(value);
}

Case Prepare(MapWorkload workload, kernels::ThreadPool& pool) {
  CpuMaps expected = OrFail(MapOnCpu(workload, pool));
  return {std::move(workload), std::move(expected)};
}

// Runs the mapping once and compares its results with the CPU's.
void Check(DeviceMapping& mapping, const std::string& name) {
  mapping.Launch([](int) {});
  if (const std::string flaw = mapping.Flaw(); !flaw.empty()) Fail(name + ": " + flaw);
}

GpuTimes Time(const Case& c, DeviceMapping& mapping) {
  return TimeOnGpu(support::TestStream(), c.num_steps(), [&](const MarkStep& mark) { mapping.Launch(mark); });
}

double SumOver(const Case& c, const GpuTimes& times, const std::vector<MappingStep>& steps) {
  double ms = 0;
  for (int level = 0; level < c.workload.num_levels(); ++level) {
    for (const MappingStep step : steps) ms += times.step_ms[static_cast<size_t>(StepOf(level, step))];
  }
  return ms;
}

std::string Gain(double gain) { return gain == 0 ? "" : absl::StrFormat("%.2fx", gain); }

// --- Variants --------------------------------------------------------------------------------------------------------

struct Variant {
  const char* name;
  MappingOptions options;
};

void PrintVariants(const Case& c) {
  const std::vector<Variant> variants = {
      {"baseline: a key a slot, a kernel a stage, loops", {.fuses_coordinates = false, .looks_up_bricks = false}},
      {"+ fused output coordinates", {.looks_up_bricks = false}},
      {"+ bricks (ours)", {}},
      {"ours, capacities in place of sizes", {.knows_sizes = false}}};
  constexpr size_t kOursAt = 2;
  std::printf("\n#### One measure after the other: %s\n\n", c.workload.name.c_str());
  std::puts(
      "All levels and maps of the network; GPU time, and beside it with the host's launches. Pair tables, the same "
      "in all, are left out.\n");
  std::puts(
      "| mapping | output coordinates ms | tables ms | searches ms | GPU ms | gain | total gain | with launches ms |");
  std::puts("|---|--:|--:|--:|--:|--:|--:|--:|");
  DeviceMapping ours(c.workload, c.expected, variants[kOursAt].options);
  Check(ours, variants[kOursAt].name);
  std::vector<GpuTimes> times;
  for (const Variant& variant : variants) {
    DeviceMapping mapping(c.workload, c.expected, variant.options);
    Check(mapping, variant.name);
    if (const std::string difference = mapping.DifferenceFrom(ours); !difference.empty()) {
      Fail(absl::StrFormat("%s: %s from ours", variant.name, difference));
    }
    times.push_back(Time(c, mapping));
  }
  for (size_t i = 0; i < variants.size(); ++i) {
    const double ms = times[i].back_to_back_ms;
    const bool is_step = i > 0 && i <= kOursAt;
    std::puts(absl::StrFormat("| %s | %.3f | %.3f | %.3f | %.3f | %s | %s | %.3f |", variants[i].name,
                              SumOver(c, times[i], {MappingStep::kCoordinates}),
                              SumOver(c, times[i], {MappingStep::kTable}),
                              SumOver(c, times[i], {MappingStep::kSubmanifoldSearch, MappingStep::kStridedSearch}), ms,
                              is_step ? Gain(times[i - 1].back_to_back_ms / ms) : "",
                              Gain(i == 0 ? 0 : times[0].back_to_back_ms / ms), times[i].as_launched_ms)
                  .c_str());
  }
}

// --- Tables ----------------------------------------------------------------------------------------------------------

void PrintTables(const std::vector<const Case*>& cases) {
  std::puts("\n#### A slot a key against a slot a brick, microseconds\n");
  std::puts("The search is that of all maps that read the level.\n");
  std::puts("| network | level | sites | keys: build | search | sum | bricks: build | search | sum | keys / bricks |");
  std::puts("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
  for (const Case* c : cases) {
    DeviceMapping keys(c->workload, c->expected, {.looks_up_bricks = false});
    DeviceMapping bricks(c->workload, c->expected, {});
    Check(keys, "keys");
    Check(bricks, "bricks");
    if (const std::string difference = bricks.DifferenceFrom(keys); !difference.empty()) {
      Fail("bricks: " + difference + " from keys");
    }
    const GpuTimes key_times = Time(*c, keys), brick_times = Time(*c, bricks);
    for (int level = 0; level < c->workload.num_levels(); ++level) {
      const auto us = [&](const GpuTimes& times, MappingStep step) {
        return 1e3 * times.step_ms[static_cast<size_t>(StepOf(level, step))];
      };
      const auto search_us = [&](const GpuTimes& times) {
        return us(times, MappingStep::kSubmanifoldSearch) + us(times, MappingStep::kStridedSearch);
      };
      const double key_us = us(key_times, MappingStep::kTable) + search_us(key_times);
      const double brick_us = us(brick_times, MappingStep::kTable) + search_us(brick_times);
      if (key_us == 0) continue;  // no map reads the last level
      std::puts(absl::StrFormat("| %s | %d | %d | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | %s |", c->workload.name,
                                level, c->expected.num_sites(level), us(key_times, MappingStep::kTable),
                                search_us(key_times), key_us, us(brick_times, MappingStep::kTable),
                                search_us(brick_times), brick_us, Gain(key_us / brick_us))
                    .c_str());
    }
  }
}

// --- Steps -----------------------------------------------------------------------------------------------------------

// Returns the milliseconds that the engine takes for MinkUNet's geometry: the median of the sum of its two stages.
double ServedGeometryMs(const Case& c) {
  constexpr int kWarmUpRuns = 10, kNumRuns = 50;
  const support::RealScan& scan = c.workload.scan;
  const PointCloud cloud = OrFail(support::ReadScan(scan.format, scan.path()));
  const Graph graph = OrFail(support::LoadNetwork(support::MinkUNet(
      {.width = 0.5, .features = support::FeaturesOf(scan.format), .voxel_size_m = kMinkUNetVoxelSize})));
  const std::unique_ptr<DeviceRunner> runner = OrFail(DeviceRunner::Create({.device = support::Device::kCuda}));
  const Program program = OrFail(
      runner->Compile(graph, {.device = support::Device::kCuda,
                              .precision = ModelConfig::Precision::kFloat16,
                              .plan = ByDataflow(kDefaultCudaConvPlan, Dataflow::kGatherGemmScatter)}));  // pair tables
  std::vector<double> ms;
  for (int run = 0; run < kWarmUpRuns + kNumRuns; ++run) {
    const BatchReport output = runner->Run(program, {&cloud}, /*return_scores=*/false);
    if (!output.status.ok()) Fail(std::string(output.status.message()));
    if (!output.samples[0].status.ok()) Fail(std::string(output.samples[0].status.message()));
    if (run < kWarmUpRuns) continue;
    ms.push_back(0);
    int num_found = 0;
    for (const StageTime& time : output.stages) {
      if (time.stage != Stage::kVoxelize && time.stage != Stage::kGeometry) continue;
      ms.back() += absl::ToDoubleMilliseconds(time.duration);
      ++num_found;
    }
    if (num_found != 2 || output.geometry_on_cpu) Fail("the engine did not make its geometry on the GPU");
  }
  const std::vector<int64_t>& num_sites = static_cast<const CudaExecutor&>(runner->executor()).geometry().num_sites();
  if (static_cast<int>(num_sites.size()) != c.workload.num_levels()) Fail("the engine has other levels");
  for (int level = 0; level < c.workload.num_levels(); ++level) {
    if (num_sites[static_cast<size_t>(level)] != c.expected.num_sites(level)) {
      Fail(absl::StrFormat("the engine has other sites on level %d", level));
    }
  }
  return Percentile(ms, 0.5);
}

void PrintSteps(const Case& c) {
  std::printf("\n#### Geometry step by step, microseconds: %s\n\n", c.workload.name.c_str());
  std::puts(
      "One step after the other, level by level, which the server does not do. As in the server: tables of bricks, "
      "capacities in place of sizes, strided maps read from consecutive rows, pair tables that know of symmetry. An "
      "event after each step costs it about a microsecond.\n");
  const std::pair<const char*, MappingStep> columns[] = {
      {"voxelize / coordinates", MappingStep::kCoordinates},   {"table", MappingStep::kTable},
      {"submanifold search", MappingStep::kSubmanifoldSearch}, {"its pairs", MappingStep::kSubmanifoldPairs},
      {"strided search", MappingStep::kStridedSearch},         {"its pairs", MappingStep::kStridedPairs}};
  std::string names, rule;
  for (const auto& [name, step] : columns) {
    names += absl::StrFormat(" %s |", name);
    rule += "--:|";
  }
  std::printf("| level | sites |%s sum |\n|---|--:|%s--:|\n", names.c_str(), rule.c_str());

  const MappingOptions as_served{.knows_sizes = false, .voxelizes = true, .makes_pairs = true, .reads_blocks = true};
  MappingOptions with_sizes = as_served;
  with_sizes.knows_sizes = true;
  DeviceMapping mapping(c.workload, c.expected, as_served);
  DeviceMapping sized(c.workload, c.expected, with_sizes);
  Check(mapping, "geometry");
  Check(sized, "geometry with sizes");
  const GpuTimes times = Time(c, mapping);
  const GpuTimes sized_times = Time(c, sized);
  for (int level = 0; level < c.workload.num_levels(); ++level) {
    std::string cells;
    double sum = 0;
    for (const auto& [name, step] : columns) {
      const double us = 1e3 * times.step_ms[static_cast<size_t>(StepOf(level, step))];
      sum += us;
      cells += us == 0 ? "  |" : absl::StrFormat(" %.1f |", us);
    }
    std::puts(absl::StrFormat("| %d | %d |%s %.1f |", level, c.expected.num_sites(level), cells, sum).c_str());
  }
  std::string totals;
  double total = 0;
  for (const auto& [name, step] : columns) {
    const double us = 1e3 * SumOver(c, times, {step});
    total += us;
    totals += absl::StrFormat(" %.1f |", us);
  }
  std::puts(absl::StrFormat("| all | |%s %.1f |", totals, total).c_str());
  std::puts("\n| | GPU ms | with launches ms |\n|---|--:|--:|");
  std::puts(absl::StrFormat("| all of it, without events between | %.3f | %.3f |", times.back_to_back_ms,
                            times.as_launched_ms)
                .c_str());
  std::puts(absl::StrFormat("| the same where the host knew every size | %.3f | %.3f |", sized_times.back_to_back_ms,
                            sized_times.as_launched_ms)
                .c_str());
  std::fflush(stdout);
  std::puts(absl::StrFormat("| the whole geometry as the server runs it (few launches) | | %.3f |", ServedGeometryMs(c))
                .c_str());
  std::puts(
      "\nThe server's: the voxelize and geometry stages of MinkUNet 0.5x in the engine, by its own events on the "
      "stream, from points that lie decoded on the device to all sizes back on the host. The GPU is not held for it: "
      "where it waits for a launch, that is in the time.");
}

int Main() {
  if (!support::HasDevice(support::Device::kCuda)) {
    std::puts("skipped: no CUDA device here");
    return 0;
  }
  std::printf("#### Mapping on %s, CUDA %s: medians of 50\n", ListCudaDevices().front().name.c_str(),
              CudaVersion().c_str());
  kernels::ThreadPool pool(kernels::ThreadPool::AvailableCpus());
  const Case center_point = Prepare(CenterPointMaps(support::kWaymoFrame), pool);
  const Case minkunet = Prepare(MinkUNetMaps(support::kSemanticKittiScan, kMinkUNetVoxelSize), pool);
  PrintVariants(center_point);
  PrintTables({&center_point, &minkunet});
  PrintSteps(minkunet);
  return 0;
}

}  // namespace
}  // namespace voxserve::bench

int main() { return voxserve::bench::Main(); }
