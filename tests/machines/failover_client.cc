// voxserve_failover_client: the C++ client under faults, for tests/machines.
//
//   voxserve_failover_client ADDRESS MODEL SCAN RATE [KEEPALIVE_SECONDS]
//
// One caller and four streams (two QUEUE, two LATEST) each send RATE requests a second, with parts of the scan that
// differ in length. It prints "ready" when it knows the right labels, stops when standard input ends, waits for every
// answer, and prints the outcomes of the calls and frames in JSON.

#include <unistd.h>

#include <atomic>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/cpp/api/client.h"
#include "client/cpp/io/point_cloud_reader.h"
#include "nlohmann/json.hpp"

namespace voxserve::client {
namespace {

constexpr size_t kNumParts = 4;
constexpr uint64_t kPointsOfPart = 200;  // points of the first part; each next part has as many more
constexpr absl::Duration kReopenFor = absl::Seconds(60);
constexpr int kNumChannels = 3;
constexpr int kStreamsOfPolicy = 2;

PointCloud PartOf(const PointCloud& scan, size_t part) {
  PointCloud cloud = scan;
  const uint64_t num_points = std::min<uint64_t>(scan.num_points(), kPointsOfPart * (part + 1));
  cloud.set_num_points(num_points);
  cloud.set_data(scan.data().substr(0, num_points * scan.point_step()));
  return cloud;
}

// Counts the results of the calls, or of the frames of one stream. Thread-safe.
class Tally {
 public:
  void AddSent(uint64_t id) {
    absl::MutexLock lock(&mutex_);
    results_.emplace(id, 0);
  }

  void Withdraw(uint64_t id) {
    absl::MutexLock lock(&mutex_);
    results_.erase(id);
    ++num_refused_;
  }

  void AddResult(uint64_t id, const absl::StatusOr<Segmentation>& result, const std::vector<uint16_t>& right) {
    const absl::Time now = absl::Now();
    absl::MutexLock lock(&mutex_);
    ++results_[id];
    if (!result.ok()) {
      const std::string reason = ErrorReason(result.status());
      ++errors_[reason.empty() ? absl::StatusCodeToString(result.status().code()) : reason];
      if (reason == kSuperseded) return;
      std::cerr << "frame or call " << id << ": " << result.status() << std::endl;
      return;
    }
    num_wrong_ += result->labels != right;
    ++num_right_;
    longest_ = std::max(longest_, result->round_trip);
    if (last_ != absl::InfinitePast()) gap_ = std::max(gap_, now - last_);
    last_ = now;
  }

  void AddReopening() {
    absl::MutexLock lock(&mutex_);
    ++num_reopened_;
  }

  nlohmann::json ToJson() const {
    absl::MutexLock lock(&mutex_);
    size_t num_lost = 0, num_twice = 0;
    for (const auto& [id, count] : results_) {
      num_lost += count == 0;
      num_twice += count > 1;
    }
    return {{"sent", results_.size()},
            {"answered", num_right_},
            {"wrong", num_wrong_},
            {"errors", errors_},
            {"refused", num_refused_},
            {"lost", num_lost},
            {"twice", num_twice},
            {"reopened", num_reopened_},
            {"longest_s", absl::ToDoubleSeconds(longest_)},
            {"gap_s", absl::ToDoubleSeconds(gap_)}};
  }

 private:
  mutable absl::Mutex mutex_;
  std::map<uint64_t, int> results_ ABSL_GUARDED_BY(mutex_);  // by call or frame
  std::map<std::string, int> errors_ ABSL_GUARDED_BY(mutex_);
  size_t num_right_ ABSL_GUARDED_BY(mutex_) = 0, num_wrong_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t num_refused_ ABSL_GUARDED_BY(mutex_) = 0, num_reopened_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration longest_ ABSL_GUARDED_BY(mutex_), gap_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

struct Load {
  Client* client = nullptr;
  std::string model;
  absl::Duration pause;
  std::vector<PointCloud> parts;
  std::vector<std::vector<uint16_t>> right;  // the labels of each part
  std::atomic<bool> stops = false;
};

void Call(Load* load, Tally* tally) {
  for (uint64_t id = 0; !load->stops; ++id) {
    tally->AddSent(id);
    tally->AddResult(id, load->client->Infer({.model = load->model}, load->parts[id % kNumParts]),
                     load->right[id % kNumParts]);
    absl::SleepFor(load->pause);
  }
}

void Drive(Load* load, StreamPolicy policy, Tally* tally) {
  absl::Notification ended;
  auto stream = load->client->OpenStream(
      {.model = load->model, .policy = policy, .max_unsent_frames = 1024, .reopen_for = kReopenFor},
      {.on_result =
           [&](FrameOutcome frame) {
             tally->AddResult(frame.frame_id, frame.result, load->right[frame.frame_id % kNumParts]);
           },
       .on_reopen =
           [&](absl::Status why) {
             std::cerr << "reopens after " << why << std::endl;
             tally->AddReopening();
           },
       .on_end =
           [&](absl::Status status) {
             if (!status.ok()) std::cerr << "a stream ended with " << status << std::endl;
             ended.Notify();
           }});
  if (!stream.ok()) {
    std::cerr << stream.status() << std::endl;
    return;
  }
  for (uint64_t id = 0; !load->stops; ++id) {
    tally->AddSent(id);
    if (!(*stream)->Send(id, load->parts[id % kNumParts]).ok()) tally->Withdraw(id);
    absl::SleepFor(load->pause);
  }
  (*stream)->CloseSends();
  ended.WaitForNotificationWithTimeout(kReopenFor);
}

int Main(int argc, char** argv) {
  double rate = 0, keepalive = 10;
  if (argc < 5 || argc > 6 || !absl::SimpleAtod(argv[4], &rate) || rate <= 0 ||
      (argc == 6 && !absl::SimpleAtod(argv[5], &keepalive))) {
    std::cerr << "usage: voxserve_failover_client ADDRESS MODEL SCAN RATE [KEEPALIVE_SECONDS]\n";
    return 2;
  }
  const auto client =
      Client::Create({.address = argv[1], .num_channels = kNumChannels, .keepalive = absl::Seconds(keepalive)});
  const auto scan = ReadPointCloud(argv[3]);
  if (!client.ok() || !scan.ok()) {
    std::cerr << client.status() << " " << scan.status() << std::endl;
    return 1;
  }
  Load load;
  load.client = client->get();
  load.model = argv[2];
  load.pause = absl::Seconds(1 / rate);
  for (size_t part = 0; part < kNumParts; ++part) {
    load.parts.push_back(PartOf(*scan, part));
    const auto result = load.client->Infer({.model = load.model}, load.parts.back());
    if (!result.ok()) {
      std::cerr << result.status() << std::endl;
      return 1;
    }
    load.right.push_back(result->labels);
  }
  std::cout << "ready" << std::endl;
  std::map<std::string, Tally> tallies;
  std::vector<std::thread> threads;
  threads.emplace_back(Call, &load, &tallies["calls"]);
  for (int i = 0; i < kStreamsOfPolicy; ++i) {
    threads.emplace_back(Drive, &load, StreamPolicy::kQueue, &tallies[absl::StrCat("queue ", i)]);
    threads.emplace_back(Drive, &load, StreamPolicy::kLatest, &tallies[absl::StrCat("latest ", i)]);
  }
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) continue;
  load.stops = true;
  for (std::thread& thread : threads) thread.join();
  nlohmann::json summary;
  for (const auto& [name, tally] : tallies) summary[name] = tally.ToJson();
  std::cout << summary << std::endl;
  return 0;
}

}  // namespace
}  // namespace voxserve::client

int main(int argc, char** argv) { return voxserve::client::Main(argc, argv); }
