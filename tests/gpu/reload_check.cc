// A program that reloads a model of a running server while the server answers requests for it. Every answer names a
// version of the model; the answer's labels are compared with the labels that this version gave before.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/cpp/api/client.h"
#include "client/cpp/cli/bench/bench_statistics.h"
#include "client/cpp/cli/command.h"
#include "client/cpp/cli/scan_jobs.h"
#include "client/cpp/io/file.h"
#include "client/cpp/io/point_cloud_reader.h"

namespace voxserve::client {
namespace {

constexpr absl::Duration kLoadTimeout = absl::Minutes(5);
// Between two versions, at least this share of the points must have different labels; otherwise answers of the two
// cannot be told apart.
constexpr double kMinDistinct = 0.01;

struct CheckOptions {
  Connection connection;
  std::string model;
  std::string repository;
  std::string fields;
  int64_t concurrency = 8;
  absl::Duration duration = absl::Seconds(60);
  absl::Duration interval = absl::Seconds(1);
  double tolerance = 0.1;  // share of an answer's points whose labels may differ, in percent
  std::vector<std::string> paths;

  std::vector<Flag> Flags() {
    return connection.AdminFlags({
        StringFlag("model", "NAME", "The model to reload. Required.", &model),
        StringFlag("repository", "DIR", "The server's model repository; this program writes to it. Required.",
                   &repository),
        IntFlag("concurrency", "N", "N callers send requests.", 1, 1024, &concurrency),
        DurationFlag("duration", "The program runs for this time.", &duration),
        DurationFlag("interval", "A reload begins this long after the last one.", &interval),
        NumberFlag("tolerance", "PERCENT",
                   "So many of an answer's points may have another label than in the reference, since rounding "
                   "depends on the batch.",
                   0, 50, &tolerance),
        StringFlag("fields", "SPEC", "The layout of the points; see voxserve-client infer.", &fields),
    });
  }
};

using Labels = std::vector<uint16_t>;
using References = std::map<int64_t, std::vector<Labels>>;  // by version, then by the scan's index

// Returns the share (0..1) of labels that differ, or 1 if the two have different numbers of labels.
double Difference(const Labels& left, const Labels& right) {
  if (left.size() != right.size()) return 1;
  if (left.empty()) return 0;
  size_t count = 0;
  for (size_t i = 0; i < left.size(); ++i) count += left[i] != right[i];
  return static_cast<double>(count) / static_cast<double>(left.size());
}

struct Tally {
  std::map<int64_t, uint64_t> answers;  // by version
  // The number of answers that differ from the labels of the version that they name.
  uint64_t num_wrong = 0;
  uint64_t num_failed = 0;
  double largest_difference = 0;  // share of labels (0..1), of the right answers
  std::string first_problem;
  std::vector<absl::Duration> latencies;
};

class ReloadCheck {
 public:
  ReloadCheck(const CheckOptions& options, std::vector<PointCloud> clouds, Client* client)
      : options_(options),
        config_(std::filesystem::path(options.repository) / options.model / "config.textproto"),
        clouds_(std::move(clouds)),
        client_(client) {}

  absl::Status TakeReferences() {
    const absl::StatusOr<std::vector<v1::ModelVersion>> models = client_->ListModels();
    if (!models.ok()) return models.status();
    for (const v1::ModelVersion& model : *models) {
      if (model.name() != options_.model || model.state() != v1::MODEL_STATE_READY) continue;
      for (const PointCloud& cloud : clouds_) {
        absl::StatusOr<Segmentation> answer =
            client_->Infer({.model = options_.model, .version = model.version()}, cloud);
        if (!answer.ok()) return answer.status();
        references_[model.version()].push_back(std::move(answer->labels));
      }
    }
    if (references_.size() < 2) {
      return absl::FailedPreconditionError(absl::StrCat("model \"", options_.model, "\" has ", references_.size(),
                                                        " ready versions, and two are needed"));
    }
    for (auto one = references_.begin(); one != references_.end(); ++one) {
      for (auto other = std::next(one); other != references_.end(); ++other) {
        for (size_t i = 0; i < clouds_.size(); ++i) {
          if (Difference(one->second[i], other->second[i]) >= kMinDistinct) continue;
          return absl::FailedPreconditionError(absl::StrCat("versions ", one->first, " and ", other->first,
                                                            " give the same labels, so answers cannot be told apart"));
        }
      }
    }
    return absl::OkStatus();
  }

  // Sends requests and reloads the model until the duration has passed. Then restores the model's config.textproto.
  absl::Status Run() {
    std::string before;
    std::error_code error;
    const bool has_config = std::filesystem::exists(config_, error);
    if (has_config) {
      absl::StatusOr<std::string> text = ReadFile(config_.string());
      if (!text.ok()) return text.status();
      before = *std::move(text);
    }
    if (absl::StrContains(before, "version_policy")) {
      return absl::FailedPreconditionError(absl::StrCat(config_.string(), " has a version_policy of its own"));
    }
    std::vector<std::thread> callers;
    for (int64_t i = 0; i < options_.concurrency; ++i) {
      callers.emplace_back([this, i] { Call(static_cast<size_t>(i)); });
    }
    absl::Status status = Reload(before);
    stop_ = true;
    for (std::thread& caller : callers) caller.join();
    status.Update(has_config ? Write(before) : Delete());
    status.Update(Load());
    return status;
  }

  void Print() {
    absl::MutexLock lock(&mutex_);
    uint64_t num_answers = 0;
    std::string by_version;
    for (const auto& [version, count] : tally_.answers) {
      num_answers += count;
      absl::StrAppend(&by_version, by_version.empty() ? "" : ", ", count, " of version ", version);
    }
    const LatencySummary latency = SummariseLatencies(tally_.latencies);
    std::cout << absl::StrFormat("%d reloads, the slowest %.0f ms\n", num_reloads_,
                                 absl::ToDoubleMilliseconds(slowest_load_))
              << num_answers << " answers: " << by_version << "\n"
              << tally_.num_wrong << " were not those of the version that they name, " << tally_.num_failed
              << " requests failed\n"
              << absl::StrFormat("labels that differ from the reference, at most: %.3f%%\n",
                                 100 * tally_.largest_difference)
              << absl::StrFormat("p50 %.2f ms, p99 %.2f ms, max %.2f ms\n", absl::ToDoubleMilliseconds(latency.p50),
                                 absl::ToDoubleMilliseconds(latency.p99), absl::ToDoubleMilliseconds(latency.max));
  }

  // Returns OK if every request got a right answer, and answers came from every version.
  absl::Status Verdict() {
    absl::MutexLock lock(&mutex_);
    if (!tally_.first_problem.empty()) return absl::InternalError(tally_.first_problem);
    for (const auto& [version, labels] : references_) {
      if (tally_.answers[version] == 0) {
        return absl::InternalError(absl::StrCat("no answer was of version ", version, ": too few reloads"));
      }
    }
    return absl::OkStatus();
  }

 private:
  // Lets the versions take over from each other in turn, so that only one version serves at a time. `before` is the
  // text of config.textproto without a policy.
  absl::Status Reload(const std::string& before) {
    const absl::Time end = absl::Now() + options_.duration;
    auto next = references_.begin();
    for (absl::Time due = absl::Now(); due < end; due += options_.interval) {
      absl::SleepFor(due - absl::Now());
      absl::Status status =
          Write(absl::StrCat(before, "\nversion_policy { specific { versions: ", next->first, " } }\n"));
      const absl::Time start = absl::Now();
      if (status.ok()) status = Load();
      if (!status.ok()) return status;
      slowest_load_ = std::max(slowest_load_, absl::Now() - start);
      ++num_reloads_;
      if (++next == references_.end()) next = references_.begin();
    }
    absl::SleepFor(end - absl::Now());
    return absl::OkStatus();
  }

  absl::Status Load() { return client_->LoadModel(options_.model, 0, kLoadTimeout).status(); }

  // Writes a new file and renames it to config.textproto, so that no reader sees an incomplete file.
  absl::Status Write(const std::string& text) {
    const std::string coming = absl::StrCat(config_.string(), ".coming");
    if (absl::Status status = WriteFile(coming, text); !status.ok()) return status;
    std::error_code error;
    std::filesystem::rename(coming, config_, error);
    return error ? absl::UnknownError(absl::StrCat(config_.string(), ": ", error.message())) : absl::OkStatus();
  }

  absl::Status Delete() {
    std::error_code error;
    std::filesystem::remove(config_, error);
    return error ? absl::UnknownError(absl::StrCat(config_.string(), ": ", error.message())) : absl::OkStatus();
  }

  void Call(size_t first_scan) {
    for (size_t scan = first_scan % clouds_.size(); !stop_; scan = (scan + 1) % clouds_.size()) {
      TakeDown(scan, client_->Infer({.model = options_.model}, clouds_[scan]));
    }
  }

  void TakeDown(size_t scan, const absl::StatusOr<Segmentation>& answer) {
    std::string problem;
    double difference = 1;
    if (!answer.ok()) {
      problem = absl::StrCat("a request failed: ", answer.status().message());
    } else if (const auto reference = references_.find(answer->version); reference == references_.end()) {
      problem = absl::StrCat("an answer names version ", answer->version);
    } else {
      difference = Difference(answer->labels, reference->second[scan]);
      if (100 * difference > options_.tolerance) {
        problem = absl::StrFormat("%.2f%% of the labels of an answer are not those of version %d", 100 * difference,
                                  answer->version);
      }
    }
    absl::MutexLock lock(&mutex_);
    if (tally_.first_problem.empty()) tally_.first_problem = problem;
    if (!answer.ok()) {
      ++tally_.num_failed;
      return;
    }
    ++tally_.answers[answer->version];
    tally_.latencies.push_back(answer->round_trip);
    if (problem.empty()) {
      tally_.largest_difference = std::max(tally_.largest_difference, difference);
    } else {
      ++tally_.num_wrong;
    }
  }

  const CheckOptions& options_;
  const std::filesystem::path config_;
  const std::vector<PointCloud> clouds_;
  Client* const client_;
  References references_;
  std::atomic<bool> stop_{false};
  int num_reloads_ = 0;
  absl::Duration slowest_load_;
  absl::Mutex mutex_;
  Tally tally_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::vector<PointCloud>> ReadClouds(const CheckOptions& options) {
  const absl::StatusOr<std::vector<ScanJob>> jobs = PlanJobs({.inputs = options.paths});
  if (!jobs.ok()) return jobs.status();
  std::vector<PointCloud> clouds;
  for (const ScanJob& job : *jobs) {
    absl::StatusOr<PointCloud> cloud = ReadPointCloud(job.input, {.fields = options.fields});
    if (!cloud.ok()) return cloud.status();
    clouds.push_back(*std::move(cloud));
  }
  return clouds;
}

absl::Status CheckReloads(CheckOptions& options) {
  absl::StatusOr<std::vector<PointCloud>> clouds = ReadClouds(options);
  if (!clouds.ok()) return clouds.status();
  options.connection.num_channels = static_cast<int>(std::min<int64_t>(options.concurrency, 8));
  const absl::StatusOr<std::unique_ptr<Client>> client = options.connection.Connect();
  if (!client.ok()) return client.status();
  ReloadCheck check(options, *std::move(clouds), client->get());
  if (absl::Status status = check.TakeReferences(); !status.ok()) return status;
  const absl::Status status = check.Run();
  check.Print();
  return status.ok() ? check.Verdict() : status;
}

int Main(const std::vector<std::string>& words) {
  const CommandHelp help = {
      "", "--model NAME --repository DIR SCAN|FOLDER... [FLAGS]",
      "reloads a model while it serves requests, and checks every answer",
      "First asks each version of the model that is in service for the labels of the scans. Then callers send requests "
      "for the newest version, while this program lets one version after the other take over: it writes a "
      "version_policy to config.textproto and calls LoadModel. Every answer is compared with the labels of the version "
      "that it names.\n"
      "The exit code is 0 if every request got a right answer and every version gave an answer, else 1.",
      "  reload_check --model minkunet --repository models deploy/scans --duration 60s\n"};
  CheckOptions options;
  if (words.size() == 1 && words[0] == "--help") {
    std::cout << FormatHelp("reload_check", help, options.Flags());
    return kExitOk;
  }
  absl::Status usage = ParseFlags(words, options.Flags(), &options.paths);
  if (usage.ok() && options.model.empty()) usage = absl::InvalidArgumentError("--model is missing");
  if (usage.ok() && options.repository.empty()) usage = absl::InvalidArgumentError("--repository is missing");
  if (usage.ok() && options.paths.empty()) usage = absl::InvalidArgumentError("no scan given");
  if (!usage.ok()) {
    std::cerr << "reload_check: " << usage.message() << "; see --help\n";
    return kExitUsage;
  }
  const absl::Status status = CheckReloads(options);
  if (status.ok()) return kExitOk;
  std::cerr << "reload_check: " << status.message() << "\n";
  return kExitFailure;
}

}  // namespace
}  // namespace voxserve::client

int main(int argc, char** argv) { return voxserve::client::Main(std::vector<std::string>(argv + 1, argv + argc)); }
