#include "client/cpp/cli/bench/bench_recorder.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/cpp/api/error.h"

namespace voxserve::client {
namespace {

// Requests are recorded soon after their end, so records are out of order by at most this time.
constexpr absl::Duration kMaxDisorder = absl::Seconds(1);

}  // namespace

std::string NameAnswerer(absl::string_view model, int64_t version, absl::string_view device) {
  return absl::StrCat(model, " version ", version, device.empty() ? "" : " on ", device);
}

size_t BenchRecorder::IndexOf(absl::string_view name, std::vector<std::string>* names) {
  const auto found = std::find(names->begin(), names->end(), name);
  if (found != names->end()) return static_cast<size_t>(found - names->begin());
  names->emplace_back(name);
  return names->size() - 1;
}

void BenchRecorder::AddAnswer(const BenchRequest& request, absl::Time ended, absl::string_view answered_by,
                              const std::vector<Stage>& stages) {
  absl::MutexLock lock(&mutex_);
  Record record = {request, ended, 0, IndexOf(answered_by, &names_), {}};
  for (const Stage& stage : stages) {
    const size_t index = IndexOf(stage.name, &stage_names_);
    if (record.stages.size() <= index) record.stages.resize(index + 1);
    record.stages[index] += static_cast<float>(absl::ToDoubleMicroseconds(stage.duration));
  }
  ++num_ok_;
  Add(std::move(record));
}

void BenchRecorder::AddFailure(const BenchRequest& request, absl::Time ended, const absl::Status& status) {
  const Outcome outcome = {absl::StatusCodeToString(status.code()), ErrorReason(status), IsFromServer(status)};
  absl::MutexLock lock(&mutex_);
  if (outcome.reason == kSuperseded) {
    ++num_superseded_;
  } else if (first_failure_.ok()) {
    first_failure_ = status;
  }
  auto found = std::find_if(outcomes_.begin() + 1, outcomes_.end(), [&](const Outcome& other) {
    return other.code == outcome.code && other.reason == outcome.reason &&
           other.is_from_server == outcome.is_from_server;
  });
  if (found == outcomes_.end()) found = outcomes_.insert(outcomes_.end(), outcome);
  Add({request, ended, static_cast<size_t>(found - outcomes_.begin()), 0, {}});
}

void BenchRecorder::Add(Record record) {
  last_ended_ = std::max(last_ended_, record.ended);
  records_.push_back(std::move(record));
}

WindowSummary BenchRecorder::Window(absl::Time since, absl::Time until) const {
  std::vector<absl::Duration> latencies;
  {
    absl::MutexLock lock(&mutex_);
    for (auto record = records_.rbegin(); record != records_.rend(); ++record) {
      if (record->ended < since - kMaxDisorder) break;
      if (record->outcome == 0 && record->ended >= since && record->ended < until) {
        latencies.push_back(record->ended - record->request.due);
      }
    }
  }
  const double seconds = absl::ToDoubleSeconds(until - since);
  const LatencySummary summary = SummariseLatencies(std::move(latencies));
  return {seconds > 0 ? static_cast<double>(summary.count) / seconds : 0, summary.p99};
}

uint64_t BenchRecorder::num_ok() const {
  absl::MutexLock lock(&mutex_);
  return num_ok_;
}

uint64_t BenchRecorder::num_failed() const {
  absl::MutexLock lock(&mutex_);
  return records_.size() - num_ok_ - num_superseded_;
}

absl::Time BenchRecorder::last_ended() const {
  absl::MutexLock lock(&mutex_);
  return last_ended_;
}

absl::Status BenchRecorder::first_failure() const {
  absl::MutexLock lock(&mutex_);
  return first_failure_;
}

BenchSummary BenchRecorder::Summarise(absl::Time since, absl::Time until, size_t num_streams) const {
  absl::MutexLock lock(&mutex_);
  BenchSummary summary;
  summary.measured = until - since;
  const double seconds = absl::ToDoubleSeconds(summary.measured);
  summary.ok_per_second.resize(static_cast<size_t>(std::max<int64_t>(0, summary.measured / absl::Seconds(1))));
  summary.streams.resize(num_streams);
  std::vector<absl::Duration> ok, refused, behind;
  std::vector<std::vector<absl::Duration>> by_outcome(outcomes_.size()), by_stream(num_streams);
  std::vector<double> stages(stage_names_.size());  // in microseconds
  std::vector<uint64_t> answered_by(names_.size());
  uint64_t num_ended_ok = 0, num_points = 0;
  for (const Record& record : records_) {
    const absl::Duration latency = record.ended - record.request.due;
    if (record.outcome == 0 && record.ended >= since && record.ended < until) {
      ++num_ended_ok;
      num_points += record.request.num_points;
      const size_t second = static_cast<size_t>((record.ended - since) / absl::Seconds(1));
      if (second < summary.ok_per_second.size()) ++summary.ok_per_second[second];
    }
    if (record.request.due < since || record.request.due >= until) continue;
    ++summary.num_requests;
    by_outcome[record.outcome].push_back(latency);
    const Outcome& outcome = outcomes_[record.outcome];
    const bool is_superseded = outcome.reason == kSuperseded;
    summary.num_superseded += is_superseded;
    if (outcome.reason == kNotSent) {
      ++summary.num_not_sent;
    } else {
      behind.push_back(record.request.sent - record.request.due);
    }
    if (record.outcome == 0) {
      ok.push_back(latency);
      ++answered_by[record.answered_by];
      for (size_t i = 0; i < record.stages.size(); ++i) stages[i] += record.stages[i];
    } else if (outcome.is_from_server && !is_superseded) {
      refused.push_back(latency);
    }
    if (record.request.stream >= num_streams) continue;
    StreamSummary& stream = summary.streams[record.request.stream];
    ++stream.num_frames;
    stream.num_answered += record.outcome == 0;
    stream.num_superseded += is_superseded;
    stream.num_failed += record.outcome != 0 && !is_superseded;
    if (record.outcome == 0) by_stream[record.request.stream].push_back(latency);
  }
  if (seconds > 0) {
    summary.scans_per_second = static_cast<double>(num_ended_ok) / seconds;
    summary.points_per_second = static_cast<double>(num_points) / seconds;
  }
  summary.ok = SummariseLatencies(std::move(ok));
  summary.refused = SummariseLatencies(std::move(refused));
  summary.behind = SummariseLatencies(std::move(behind));
  for (size_t i = 1; i < outcomes_.size(); ++i) {
    if (by_outcome[i].empty() || outcomes_[i].reason == kSuperseded) continue;
    const LatencySummary latency = SummariseLatencies(std::move(by_outcome[i]));
    summary.failures.push_back(
        {outcomes_[i].code, outcomes_[i].reason, outcomes_[i].is_from_server, latency.count, latency.p50, latency.p99});
  }
  std::stable_sort(summary.failures.begin(), summary.failures.end(),
                   [](const BenchOutcome& a, const BenchOutcome& b) { return a.count > b.count; });
  for (size_t i = 0; i < stages.size() && summary.ok.count > 0; ++i) {
    summary.stages.emplace_back(stage_names_[i], absl::Microseconds(stages[i]) / static_cast<double>(summary.ok.count));
  }
  for (size_t i = 0; i < names_.size(); ++i) {
    if (answered_by[i] > 0) summary.answered_by[names_[i]] = answered_by[i];
  }
  for (size_t i = 0; i < num_streams; ++i) {
    const LatencySummary age = SummariseLatencies(std::move(by_stream[i]));
    summary.streams[i].age_p50 = age.p50;
    summary.streams[i].age_p99 = age.p99;
  }
  return summary;
}

}  // namespace voxserve::client
