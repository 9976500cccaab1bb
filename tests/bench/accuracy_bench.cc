// Prints what precision costs the demo's MinkUNet: the errors against the golden logits, the labels that differ from
// the golden ones, and the intersection over union with the labels that people gave to PandaSet's frames 63 and 64. The
// network was not trained on these frames.
//
//   accuracy_bench [--device cpu|cuda] [--plan default|gathered]
//
//   --device cpu      runs float32 on the CPU only
//   --plan gathered   runs every convolution by gather-GEMM-scatter instead of the precision's default
//
// Tables are Markdown. Frames 63 and 64 come from the shared data; without them their table is left out, and the output
// says so. Exits with 77 if the device does not exist.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/runtime/cuda_devices.h"
#include "tests/bench/label_accuracy.h"
#include "tests/bench/network_cases.h"
#include "tests/bench/or_die.h"
#include "tests/engine/device_runner.h"
#include "tests/engine/golden_scan.h"

namespace voxserve::bench {
namespace {

using Precision = ModelConfig::Precision;

constexpr const char* kGoldenScans[] = {"pandaset_063", "pandaset_070"};

struct Options {
  support::Device device = support::Device::kCuda;
  bool gathers = false;
};

// The network in one precision, ready to run.
class Network {
 public:
  Network(const LoadedModel& model, Precision precision, const Options& options) {
    runner_ =
        OrDie(DeviceRunner::Create({.device = options.device, .num_threads = kernels::ThreadPool::AvailableCpus()}));
    Variant variant{.device = options.device, .precision = precision, .plan = DefaultPlanOf(options.device, precision)};
    if (options.device == support::Device::kCuda && options.gathers) {
      variant.plan = ByDataflow(variant.plan, Dataflow::kGatherGemmScatter);
    }
    program_ = OrDie(runner_->Compile(model.graph, variant));
  }
  ~Network() { program_ = Program(); }

  InferResult Run(const PointCloud& cloud) {
    BatchReport output = runner_->Run(program_, {&cloud}, /*return_scores=*/true);
    if (output.status.ok()) output.status = output.samples[0].status;
    if (output.status.ok()) return std::move(output.samples[0]);
    std::cerr << output.status << std::endl;
    std::exit(1);
  }

 private:
  std::unique_ptr<DeviceRunner> runner_;
  Program program_;
};

// A golden scan, and the voxel of each of its points.
struct Golden {
  std::string name;
  GoldenScan scan;
  std::vector<int64_t> voxels;
};

float LargestLogitError(const Golden& golden, const InferResult& found) {
  const auto classes = static_cast<size_t>(golden.scan.num_classes);
  float largest = 0;
  for (size_t i = 0; i < golden.voxels.size(); ++i) {
    const float* const logits = golden.scan.LogitsOf(golden.voxels[i]);
    for (size_t c = 0; logits != nullptr && c < classes; ++c) {
      const float error = std::abs(found.scores()[i * classes + c] - logits[c]);
      largest = std::isnan(error) ? INFINITY : std::max(largest, error);
    }
  }
  return largest;
}

// Returns the margins (GoldenScan::margins) of the points whose labels differ from the golden ones, ascending.
std::vector<float> MarginsOfOtherLabels(const Golden& golden, const InferResult& found) {
  std::vector<float> margins;
  for (size_t i = 0; i < golden.voxels.size(); ++i) {
    if (found.labels()[i] != golden.scan.labels[i]) {
      margins.push_back(golden.scan.margins[static_cast<size_t>(golden.voxels[i])]);
    }
  }
  std::sort(margins.begin(), margins.end());
  return margins;
}

struct PrecisionResult {
  std::array<float, std::size(kGoldenScans)> largest_error = {};
  std::array<std::vector<float>, std::size(kGoldenScans)> margins;
  std::vector<Confusion> confusions;  // one per frame, then one for all frames
};

void Print(const std::vector<Precision>& precisions, const std::vector<PrecisionResult>& results,
           const std::vector<Golden>& goldens, const std::vector<std::string>& frame_names) {
  std::puts(
      "| scan | precision | largest error of a logit | labels that differ | of points |"
      " largest golden margin of those |\n|---|---|--:|--:|--:|--:|");
  for (size_t g = 0; g < goldens.size(); ++g) {
    for (size_t p = 0; p < precisions.size(); ++p) {
      const std::vector<float>& margins = results[p].margins[g];
      std::puts(absl::StrFormat("| %s | %s | %.2g | %d | %d | %s |", goldens[g].name, NameOf(precisions[p]),
                                results[p].largest_error[g], margins.size(), goldens[g].scan.num_points(),
                                margins.empty() ? "" : absl::StrFormat("%.4f", margins.back()))
                    .c_str());
    }
  }
  std::puts("\nA margin is the best golden logit minus the second best, at most 4.\n");
  for (size_t g = 0; g < goldens.size(); ++g) {
    for (size_t p = 0; p < precisions.size(); ++p) {
      if (precisions[p] != Precision::kFloat16) continue;
      std::string list;
      for (const float margin : results[p].margins[g]) absl::StrAppendFormat(&list, " %.4f", margin);
      std::printf("- labels of %s that differ in %s, by their golden margin:%s\n", goldens[g].name.c_str(),
                  NameOf(precisions[p]), list.empty() ? " none" : list.c_str());
    }
  }
  if (frame_names.empty()) return;
  std::puts("\n| frame | precision | mIoU | points labelled right |\n|---|---|--:|--:|");
  for (size_t f = 0; f < frame_names.size(); ++f) {
    for (size_t p = 0; p < precisions.size(); ++p) {
      const Confusion& confusion = results[p].confusions[f];
      std::puts(absl::StrFormat("| %s | %s | %.4f | %.4f |", frame_names[f], NameOf(precisions[p]),
                                confusion.MeanIntersectionOverUnion(), confusion.Accuracy())
                    .c_str());
    }
  }
  std::puts("\nmIoU: over points, the mean of the classes that a frame has.");
}

int Run(const Options& options) {
  const LoadedModel model = OrDie(LoadMinkUNetModel());
  std::vector<Golden> goldens;
  for (const char* name : kGoldenScans) {
    GoldenScan scan = OrDie(LoadGoldenScan(name));
    std::vector<int64_t> voxels = scan.PointToVoxel();
    goldens.push_back({name, std::move(scan), std::move(voxels)});
  }
  std::vector<std::string> frame_names;
  std::vector<LabelledFrame> frames;
  for (const char* number : {"63", "64"}) {
    absl::StatusOr<LabelledFrame> frame = ReadPandaSetFrame(number);
    if (!frame.ok()) {
      std::printf("**No mIoU: %s**\n\n", std::string(frame.status().message()).c_str());
      frames.clear();
      break;
    }
    frames.push_back(*std::move(frame));
  }
  if (!frames.empty()) frame_names = {"63", "64", "63 and 64"};

  std::vector<Precision> precisions = {Precision::kFloat32};
  if (options.device == support::Device::kCuda) {
    precisions.insert(precisions.end(), {Precision::kTfloat32, Precision::kFloat16, Precision::kBfloat16});
  }
  std::vector<PrecisionResult> results;
  for (const Precision precision : precisions) {
    Network network(model, precision, options);
    PrecisionResult result;
    for (size_t g = 0; g < goldens.size(); ++g) {
      const InferResult found = network.Run(goldens[g].scan.cloud);
      const auto num_points = goldens[g].voxels.size();
      if (found.labels().size() != num_points ||
          found.scores().size() != num_points * static_cast<size_t>(goldens[g].scan.num_classes)) {
        std::cerr << goldens[g].name << ": other sizes than the golden ones" << std::endl;
        return 1;
      }
      result.largest_error[g] = LargestLogitError(goldens[g], found);
      result.margins[g] = MarginsOfOtherLabels(goldens[g], found);
    }
    result.confusions.assign(frame_names.size(), Confusion(goldens[0].scan.num_classes));
    for (size_t f = 0; f < frames.size(); ++f) {
      const InferResult found = network.Run(frames[f].cloud);
      result.confusions[f].Add(found.labels(), frames[f].truth);
      result.confusions.back().Add(found.labels(), frames[f].truth);
    }
    results.push_back(std::move(result));
  }
  std::printf("The demo's MinkUNet 0.5x on %s%s\n\n",
              options.device == support::Device::kCuda ? ListCudaDevices().front().name.c_str() : "the CPU",
              options.gathers ? ", gather-GEMM-scatter" : "");
  Print(precisions, results, goldens, frame_names);
  return 0;
}

std::optional<Options> Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view option = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    if (option == "--device" && (value == "cpu" || value == "cuda")) {
      options.device = value == "cpu" ? support::Device::kCpu : support::Device::kCuda;
    } else if (option == "--plan" && (value == "default" || value == "gathered")) {
      options.gathers = value == "gathered";
    } else {
      return std::nullopt;
    }
  }
  return options;
}

int Main(int argc, char** argv) {
  const std::optional<Options> options = Parse(argc, argv);
  if (!options) {
    std::fprintf(stderr, "usage: %s [--device cpu|cuda] [--plan default|gathered]\n", argv[0]);
    return 2;
  }
  if (!support::HasDevice(options->device)) {
    std::puts("skipped: no CUDA device here");
    return 77;
  }
  return Run(*options);
}

}  // namespace
}  // namespace voxserve::bench

int main(int argc, char** argv) { return voxserve::bench::Main(argc, argv); }
