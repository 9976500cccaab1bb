// Prints what a precision costs any model: the labels and their scores, and the boxes, that a GPU finds in each
// precision, beside those of float32 on the CPU.
//
//   precision_bench MODEL SCAN [--version N]
//
// MODEL is a model's folder, of a network with labels or boxes. SCAN is the name of one of the scans of
// tests/support/real_scans.h. The tables are Markdown. Exits with 77 if there is no GPU.
//
// In 8 bits a version that voxserve-calibrate made has its own scales. Other versions get the largest values on the
// same scan, and their first and last layers stay in float16.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "engine/model/model_version.h"
#include "engine/runtime/cuda_devices.h"
#include "engine/tensor/box.h"
#include "tests/bench/network_cases.h"
#include "tests/bench/or_die.h"
#include "tests/engine/device_runner.h"
#include "tests/engine/measured_scales.h"
#include "tests/support/real_scans.h"

namespace voxserve::bench {
namespace {

using Precision = ModelConfig::Precision;

// Returns the model as it is run in 8 bits.
LoadedModel InInt8(const LoadedModel& model, const PointCloud& cloud) {
  LoadedModel int8 = model;
  if (model.config.precision == Precision::kInt8) return int8;
  OrDie(SetMeasuredScales(cloud, int8.graph));
  int8.config.float_nodes = FirstAndLastLayers(int8.graph);
  return int8;
}

// Returns the error of a network that the precision does not serve.
absl::StatusOr<InferResult> Infer(const LoadedModel& model, const PointCloud& cloud, support::Device device,
                                  Precision precision) {
  if (precision == Precision::kInt8 && !MultipliesInInt8(device)) {
    return absl::UnimplementedError("this GPU does not multiply in 8 bits");
  }
  const auto runner =
      OrDie(DeviceRunner::Create({.device = device, .num_threads = kernels::ThreadPool::AvailableCpus()}));
  absl::StatusOr<Program> program = runner->Compile(model.graph,
                                                    {.device = device,
                                                     .precision = precision,
                                                     .plan = DefaultPlanOf(device, precision),
                                                     .float_nodes = model.config.float_nodes},
                                                    model.config.bytes_per_label());
  if (!program.ok()) return program.status();
  BatchReport output =
      runner->Run(*program, {&cloud}, /*return_scores=*/true, {.ignore_label = model.config.ignore_label});
  if (output.status.ok()) output.status = output.samples[0].status;
  if (output.status.ok()) return std::move(output.samples[0]);
  std::cerr << output.status << std::endl;
  std::exit(1);
}

// Returns the largest value of a point's scores minus the second largest.
float MarginOf(const float* scores, size_t num_classes) {
  std::vector<float> sorted(scores, scores + num_classes);
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  return num_classes > 1 ? sorted[0] - sorted[1] : 0;
}

constexpr Precision kPrecisions[] = {Precision::kFloat32, Precision::kTfloat32, Precision::kFloat16,
                                     Precision::kBfloat16, Precision::kInt8};

struct Answer {
  Precision precision;
  InferResult found;
};
using Answers = std::vector<Answer>;

void PrintLabels(const InferResult& expected, const Answers& answers, size_t num_points) {
  const size_t num_classes = expected.scores().size() / num_points;
  float largest_score = 0;
  for (const float score : expected.scores()) largest_score = std::max(largest_score, std::abs(score));
  std::printf(
      "%zu points, scores up to %.3g\n\n"
      "| precision | largest error of a score, by the largest score | labels that differ | median margin of those |"
      " largest | not finite |\n|---|--:|--:|--:|--:|--:|\n",
      num_points, largest_score);
  for (const auto& [precision, found] : answers) {
    float error = 0;
    int64_t not_finite = 0;
    std::vector<float> margins;
    for (size_t i = 0; i < found.scores().size(); ++i) {
      if (std::isfinite(found.scores()[i])) {
        error = std::max(error, std::abs(found.scores()[i] - expected.scores()[i]));
      } else {
        ++not_finite;
      }
    }
    for (size_t i = 0; i < num_points; ++i) {
      if (found.labels()[i] != expected.labels()[i]) {
        margins.push_back(MarginOf(&expected.scores()[i * num_classes], num_classes));
      }
    }
    std::sort(margins.begin(), margins.end());
    std::puts(absl::StrFormat("| %s | %.2e | %d | %s | %s | %d |", NameOf(precision), error / largest_score,
                              margins.size(),
                              margins.empty() ? "" : absl::StrFormat("%.4f", margins[margins.size() / 2]),
                              margins.empty() ? "" : absl::StrFormat("%.4f", margins.back()), not_finite)
                  .c_str());
  }
}

// A box's partner is the nearest box of its class that no better box has taken, with its centre within this distance.
constexpr double kMatchDistance = 0.5;  // metres

void PrintBoxes(const std::vector<Box>& expected, const Answers& answers) {
  std::printf(
      "%zu boxes, the least score %.4g\n\n"
      "| precision | boxes | matched | largest distance of centres, m | difference of scores, median | largest |"
      " without a partner | their score above the least, median | largest |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|\n",
      expected.size(), expected.empty() ? 0 : expected.back().score);
  for (const auto& [precision, answer] : answers) {
    const std::vector<Box> found = answer.boxes();
    std::vector<bool> is_taken(found.size());
    std::vector<double> differences, margins;
    double largest_distance = 0;
    for (const Box& box : expected) {  // the best first
      size_t best = found.size();
      double best_distance = kMatchDistance;
      for (size_t i = 0; i < found.size(); ++i) {
        const double distance = std::hypot(found[i].x - box.x, found[i].y - box.y, found[i].z - box.z);
        if (is_taken[i] || found[i].class_id != box.class_id || !(distance <= best_distance)) continue;
        best = i;
        best_distance = distance;
      }
      if (best == found.size()) {
        margins.push_back(box.score - expected.back().score);
        continue;
      }
      is_taken[best] = true;
      largest_distance = std::max(largest_distance, best_distance);
      differences.push_back(std::abs(double{found[best].score} - box.score));
    }
    std::sort(differences.begin(), differences.end());
    std::sort(margins.begin(), margins.end());
    const auto middle = [](const std::vector<double>& sorted) {
      return sorted.empty() ? "" : absl::StrFormat("%.1e", sorted[sorted.size() / 2]);
    };
    const auto last = [](const std::vector<double>& sorted) {
      return sorted.empty() ? "" : absl::StrFormat("%.1e", sorted.back());
    };
    std::puts(absl::StrFormat("| %s | %d | %d | %.1e | %s | %s | %d | %s | %s |", NameOf(precision), found.size(),
                              differences.size(), largest_distance, middle(differences), last(differences),
                              margins.size(), middle(margins), last(margins))
                  .c_str());
  }
}

int Run(const std::string& folder, const support::RealScan& scan, int version) {
  const LoadedModel model = OrDie(LoadModelVersion(folder, version));
  const PointCloud cloud = OrDie(support::ReadScan(scan.format, scan.path()));
  const InferResult expected = OrDie(Infer(model, cloud, support::Device::kCpu, Precision::kFloat32));
  Answers answers;
  for (const Precision precision : kPrecisions) {
    absl::StatusOr<InferResult> found =
        Infer(precision == Precision::kInt8 ? InInt8(model, cloud) : model, cloud, support::Device::kCuda, precision);
    if (found.ok()) {
      answers.push_back({precision, *std::move(found)});
    } else {
      std::cout << NameOf(precision) << " is refused: " << found.status() << "\n";
    }
  }
  std::printf("%s on %s, against float32 on the CPU: ", scan.name, ListCudaDevices().front().name.c_str());
  if (!expected.scores().empty()) PrintLabels(expected, answers, static_cast<size_t>(cloud.num_points()));
  if (expected.Find(NamedOutput::kBoxes) != nullptr) PrintBoxes(expected.boxes(), answers);
  return 0;
}

int Main(int argc, char** argv) {
  int version = 1;
  const bool has_version = argc == 5 && std::string(argv[3]) == "--version" && absl::SimpleAtoi(argv[4], &version);
  const auto scan = argc >= 3 ? support::RealScanNamed(argv[2]) : std::nullopt;
  if (!scan || (argc != 3 && !has_version)) {
    std::fprintf(stderr, "usage: %s MODEL SCAN [--version N]; SCAN is a name of real_scans.h\n", argv[0]);
    return 2;
  }
  if (!support::HasDevice(support::Device::kCuda)) {
    std::puts("skipped: no CUDA device here");
    return 77;
  }
  return Run(argv[1], *scan, version);
}

}  // namespace
}  // namespace voxserve::bench

int main(int argc, char** argv) { return voxserve::bench::Main(argc, argv); }
