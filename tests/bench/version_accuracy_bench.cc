// Compares the answers of a model's versions on the CPU, for versions in 8 bits beside the float version that they were
// made from: the intersection over union with the truth, where scans have one, and the agreement with the first version
// (deploy/calibrate/agreement.h).
//
//   version_accuracy_bench SCANS MODEL:VERSION...
//
// SCANS is a folder of scan files, which every version must take. The truth of NAME.bin is NAME.truth.u8 beside it: the
// class of each point, 255 for none. The table is Markdown.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "client/cpp/cli/scan_jobs.h"
#include "deploy/calibrate/agreement.h"
#include "deploy/offline/model_argument.h"
#include "deploy/offline/scan_files.h"
#include "engine/model/model_version.h"
#include "engine/runtime/devices.h"
#include "engine/serving/models/device_program.h"
#include "tests/bench/label_accuracy.h"
#include "tests/bench/or_die.h"
#include "tests/support/values_file.h"

namespace voxserve::bench {
namespace {

// Returns the classes of the scan's points; nothing if there is no such file.
std::optional<std::vector<uint8_t>> TruthOf(const std::string& scan, size_t num_points) {
  const std::filesystem::path path = std::filesystem::path(scan).replace_extension(".truth.u8");
  if (!std::filesystem::exists(path)) return std::nullopt;
  std::vector<uint8_t> truth = OrDie(support::ReadValues<uint8_t>(path.string()));
  if (truth.size() == num_points) return truth;
  OrDie(absl::InvalidArgumentError(
      absl::StrCat(path.string(), " has ", truth.size(), " classes, but the scan has ", num_points, " points")));
  return std::nullopt;
}

struct Answers {
  LoadedModel model;
  std::vector<InferResult> scans;
};

Answers AnswersOf(const std::string& version, const std::vector<client::ScanJob>& jobs, offline::Scans* scans) {
  const offline::FoundVersion found = OrDie(offline::FindVersion(OrDie(offline::ParseModelArgument(version))));
  Answers answers{.model = OrDie(LoadModelVersion(found.model_folder, found.version))};
  const ModelConfig& config = answers.model.config;
  *scans =
      OrDie(offline::ReadScans("version_accuracy_bench", jobs, {.max_points = config.max_points}, {.err = &std::cerr}));
  kernels::ThreadPool pool(kernels::ThreadPool::AvailableCpus());
  const Device device;
  ExecutionContext context = OrDie(MakeContext(device, &pool));
  const std::unique_ptr<Executor> executor = Executor::Create(&context);
  const Program program = OrDie(MakeProgram(answers.model.graph, config, device));
  for (InferTask task : scans->tasks) {
    task.return_scores = program.has_scores;
    BatchReport report = executor->Run(program, task, offline::LimitsOf(config));
    OrDie(report.status);
    OrDie(report.samples[0].status);
    report.samples[0].ignore_label = config.ignore_label;
    answers.scans.push_back(std::move(report.samples[0]));
  }
  return answers;
}

// Boxes of two versions, whatever their scores.
struct BoxPairs {
  size_t num_first = 0, num_other = 0;
  size_t num_near = 0;     // boxes of the first with one of the same class within 0.5 m in the other
  double score_error = 0;  // the mean difference of those boxes' scores
};

BoxPairs PairsOf(const std::vector<InferResult>& first, const std::vector<InferResult>& other) {
  BoxPairs pairs;
  double sum = 0;
  for (size_t scan = 0; scan < first.size(); ++scan) {
    const std::vector<Box> others = other[scan].boxes();
    pairs.num_other += others.size();
    for (const Box& box : first[scan].boxes()) {
      ++pairs.num_first;
      const Box* nearest = nullptr;
      double least = calibrate::kMatchDistance;
      for (const Box& found : others) {
        const double distance = std::hypot(found.x - box.x, found.y - box.y, found.z - box.z);
        if (found.class_id != box.class_id || distance > least) continue;
        nearest = &found;
        least = distance;
      }
      if (nearest == nullptr) continue;
      ++pairs.num_near;
      sum += std::abs(double{nearest->score} - box.score);
    }
  }
  if (pairs.num_near > 0) pairs.score_error = sum / static_cast<double>(pairs.num_near);
  return pairs;
}

int Main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s SCANS MODEL:VERSION...\n", argv[0]);
    return 2;
  }
  const std::vector<client::ScanJob> jobs = OrDie(client::PlanJobs({.inputs = {argv[1]}}));
  std::printf("| version | float layers | mIoU | right labels | as the first version's | mean error of scores |\n");
  std::printf("|---|--:|--:|--:|--:|--:|\n");
  std::vector<InferResult> first;
  std::vector<std::string> files;  // of the first version's scans
  std::string notes;
  for (int i = 2; i < argc; ++i) {
    offline::Scans scans;
    Answers answers = AnswersOf(argv[i], jobs, &scans);
    if (i == 2) {
      first = answers.scans;
      files = scans.files;
    } else if (scans.files != files) {  // a version's max_points may leave out scans
      OrDie(absl::InvalidArgumentError(absl::StrCat(argv[i], " takes other scans than ", argv[2])));
    }
    Confusion confusion(answers.model.graph.num_classes);
    calibrate::Agreement agreement(calibrate::LeastBoxScore(answers.model.graph));
    bool has_truth = false;
    for (size_t scan = 0; scan < answers.scans.size(); ++scan) {
      agreement.Add(first[scan], answers.scans[scan]);
      const absl::Span<const uint8_t> labels = answers.scans[scan].labels();
      const auto truth = labels.empty() ? std::nullopt : TruthOf(scans.files[scan], labels.size());
      if (!truth) continue;
      has_truth = true;
      confusion.Add(labels, *truth);
    }
    const bool is_int8 = answers.model.config.precision == ModelConfig::Precision::kInt8;
    const std::string miou = has_truth ? absl::StrFormat("%.4f", confusion.MeanIntersectionOverUnion()) : "-";
    const std::string right = has_truth ? absl::StrFormat("%.2f%%", 100 * confusion.Accuracy()) : "-";
    std::printf("| %s | %s | %s | %s | %.3f%% | %.5f |\n", argv[i],
                is_int8 ? absl::StrFormat("%d", answers.model.config.float_nodes.size()).c_str() : "all", miou.c_str(),
                right.c_str(), 100 * agreement.share(), agreement.error());
    if (const BoxPairs pairs = PairsOf(first, answers.scans); pairs.num_first > 0) {
      notes += absl::StrFormat(
          "%s: %d boxes; %d of the first version's %d have one within 0.5 m, with scores %.4f apart on average\n",
          argv[i], pairs.num_other, pairs.num_near, pairs.num_first, pairs.score_error);
    }
    std::fflush(stdout);
  }
  if (!notes.empty()) std::printf("\n%s", notes.c_str());
  return 0;
}

}  // namespace
}  // namespace voxserve::bench

int main(int argc, char** argv) { return voxserve::bench::Main(argc, argv); }
