// Times the demo's networks (MinkUNet 0.5x, CenterPoint) from points to answers on the CPU, in float32 and in 8 bits.
// The two take turns, so that both see the same load of the machine, and the least time of each is printed, with that
// of the feature pass alone. Scales are the largest values on the same scan; the first convolution and the last layers,
// whose values the head alone reads, stay in float32.
//
//   taskset -c 0 build/dev/tests/bench/int8_bench [runs]
//
// --layers prints the time of each sparse convolution too.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "engine/compiler/compiler.h"
#include "engine/executor/cpu_executor.h"
#include "engine/model/model_version.h"
#include "kernels/conv/fetch_on_demand.h"
#include "kernels/int8/int8_product.h"
#include "tests/bench/or_die.h"
#include "tests/engine/box_matching.h"
#include "tests/engine/measured_scales.h"
#include "tests/support/paths.h"
#include "tests/support/real_scans.h"

namespace voxserve::bench {
namespace {

constexpr float kLeastScore = 0.3f;

// The least times of a program's runs.
struct Timed {
  const char* name;
  Program program;
  double total_ms = std::numeric_limits<double>::infinity();
  double features_ms = std::numeric_limits<double>::infinity();
  std::vector<double> conv_ms;  // by convolution
  std::string labels;
  std::vector<BoxRow> boxes;  // with a score of at least kLeastScore

  void Run(CpuExecutor& executor, const PointCloud& cloud) {
    const InferTask task{.cloud = cloud};
    const absl::Time start = absl::Now();
    const BatchReport output = executor.Run(program, task, RunLimits(), {.times_convs = true});
    total_ms = std::min(total_ms, absl::ToDoubleMilliseconds(absl::Now() - start));
    OrDie(output.status);
    for (const StageTime& time : output.stages) {
      if (time.stage == Stage::kFeatures)
        features_ms = std::min(features_ms, absl::ToDoubleMilliseconds(time.duration));
    }
    conv_ms.resize(output.conv_times.size(), std::numeric_limits<double>::infinity());
    for (size_t i = 0; i < conv_ms.size(); ++i) {
      conv_ms[i] = std::min(conv_ms[i], absl::ToDoubleMilliseconds(output.conv_times[i]));
    }
    const absl::Span<const uint8_t> bytes = output.samples[0].labels();
    labels.assign(bytes.begin(), bytes.end());
    boxes = RowsOf(output.samples[0].boxes());
    boxes.erase(std::remove_if(boxes.begin(), boxes.end(), [](const BoxRow& row) { return row[9] < kLeastScore; }),
                boxes.end());
  }
};

void Compare(const std::string& name, const std::string& folder, const std::string& path, int runs,
             bool prints_layers) {
  if (!std::filesystem::exists(path)) {
    std::printf("skipped %s: no %s\n", name.c_str(), path.c_str());
    return;
  }
  LoadedModel model = OrDie(LoadModelVersion(support::SourceDir() + "/deploy/models/" + folder, 1));
  const PointCloud cloud = OrDie(support::ReadScan(support::ScanFormat::kKitti, path));
  OrDie(SetMeasuredScales(cloud, model.graph));
  Timed float32{.name = "float32", .program = Compile(model.graph, Plan(), {})};
  Timed int8{
      .name = "int8",
      .program = Compile(model.graph, Plan(), {.is_int8 = true, .float_nodes = FirstAndLastLayers(model.graph)})};
  kernels::ThreadPool pool(kernels::ThreadPool::AvailableCpus());
  ExecutionContext context{.device = "cpu", .pool = &pool};
  CpuExecutor executor(&context);
  for (int run = 0; run < runs; ++run) {
    for (Timed* timed : {&float32, &int8}) timed->Run(executor, cloud);
  }
  std::printf("%s, %d threads, %d runs each, least times:\n", name.c_str(), pool.num_threads(), runs);
  for (const Timed* timed : {&float32, &int8}) {
    std::printf("  %-8s points to answer %7.1f ms, features %7.1f ms, weights %5.1f MB\n", timed->name, timed->total_ms,
                timed->features_ms, static_cast<double>(timed->program.weight_bytes) * 1e-6);
  }
  int64_t num_equal = 0;
  for (size_t i = 0; i < int8.labels.size(); ++i) num_equal += int8.labels[i] == float32.labels[i];
  if (!int8.labels.empty()) {
    std::printf("  labels as float32's: %.2f%%\n",
                100.0 * static_cast<double>(num_equal) / static_cast<double>(int8.labels.size()));
  }
  if (int8.program.has_boxes) {
    const BoxMatches matches = MatchBoxes(int8.boxes, float32.boxes, {.number = 0.5f, .score = 0.1f});
    std::printf("  boxes with scores from %.1f: %zu in float32, %zu in 8 bits, %d within 0.5 m and 0.1 of the score\n",
                kLeastScore, float32.boxes.size(), int8.boxes.size(), matches.num_matched);
  }
  for (size_t i = 0; prints_layers && i < int8.conv_ms.size(); ++i) {
    const ProgramConv& conv = int8.program.convs[i];
    std::printf("    %-28s %3d cells %4d -> %4d  float32 %7.2f ms  %s %7.2f ms\n", conv.node.c_str(), conv.num_offsets,
                conv.in_channels, conv.out_channels, float32.conv_ms[i], NameOf(conv.dtype), int8.conv_ms[i]);
  }
}

}  // namespace
}  // namespace voxserve::bench

int main(int argc, char** argv) {
  int runs = 20;
  bool prints_layers = false;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--layers") {
      prints_layers = true;
    } else {
      runs = std::max(1, std::atoi(argv[i]));
    }
  }
  std::printf("float32 by %s, 8 bits by %s\n", voxserve::kernels::cpu::VectorInstructionSet(),
              voxserve::kernels::cpu::Int8InstructionSet());
  const std::string own_scan = voxserve::support::SourceDir() + "/deploy/scans/pandaset_070.bin";
  voxserve::bench::Compare("minkunet_0.5x/semantickitti-00/000000", "minkunet",
                           voxserve::support::kSemanticKittiScan.path(), runs, prints_layers);
  voxserve::bench::Compare("minkunet_0.5x/pandaset_070", "minkunet", own_scan, runs, prints_layers);
  voxserve::bench::Compare("centerpoint/pandaset_070", "centerpoint", own_scan, runs, prints_layers);
}
