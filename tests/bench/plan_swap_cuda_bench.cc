// Measures what a plan search and the swap to its plan cost the requests that are served meanwhile, and what a
// restarted server gains from the plan that it finds.
//
//   plan_swap_cuda_bench
//
// Clients, each with one request at a time, send one scan to the engine with the demo's model: before the search, while
// it runs, and after the swap. Then two processes start one after the other, the first with the plan that was kept, the
// second without one, and the times of their first requests are measured. Exits with 1 if a request failed or had a
// wrong number of labels, or if the plan was not swapped in or not found again. Tables are Markdown. Latencies are the
// client's, from Submit to the answer.

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <future>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "engine/runtime/cuda_devices.h"
#include "engine/serving/admission/engine_observer.h"
#include "engine/serving/engine.h"
#include "tests/bench/or_die.h"
#include "tests/bench/percentile.h"
#include "tests/engine/golden_scan.h"
#include "tests/engine/serving/test_engine.h"
#include "tests/support/test_device.h"

extern char** environ;

namespace voxserve::bench {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr char kModel[] = "minkunet";
constexpr char kScan[] = "pandaset_063";
constexpr int kNumClients = 4;
constexpr int kTuneScans = 4;
constexpr milliseconds kWarmUp(500);  // requests are served but not counted
constexpr milliseconds kPhase(3000);  // before the search, and after the swap
constexpr milliseconds kSearchLimit(60000);
constexpr size_t kAroundSwap = 100;     // requests before and after the swap
constexpr int kRequestsOnceWarm = 100;  // of a restarted server, after its first three requests

double Milliseconds(Clock::duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }

// Learns when a searched plan came into service. Read it after the search has ended.
class SwapObserver final : public EngineObserver {
 public:
  void OnPlan(std::string_view, int64_t, std::string_view, std::string_view source) override {
    if (source == "tuned") swap_ = Clock::now();
  }

  std::optional<Clock::time_point> swap() const { return swap_; }

 private:
  std::optional<Clock::time_point> swap_;
};

std::unique_ptr<Engine> StartEngine(const std::string& plan_dir, EngineObserver* observer) {
  std::unique_ptr<Engine> engine = OrDie(Engine::Create({.model_repository = Models(),
                                                         .devices = "cuda:0",
                                                         .plan_dir = plan_dir,
                                                         .engine_version = "bench",
                                                         .observer = observer}));
  engine->WaitUntilLoaded();
  return engine;
}

std::string PlanSource(const Engine& engine) { return OrDie(engine.GetModel(kModel, 0)).plan_source; }

struct Request {
  Clock::time_point start;
  Clock::duration latency{};
  bool has_failed = false;
  std::vector<StageTime> stages;
};

Request Send(Engine& engine, const PointCloud& cloud) {
  Request request{.start = Clock::now()};
  absl::StatusOr<InferResult> result = Infer(engine, {.model = kModel, .cloud = cloud});
  request.latency = Clock::now() - request.start;
  if (!result.ok()) {
    std::cerr << result.status() << std::endl;
    request.has_failed = true;
  } else if (result->labels().size() != cloud.num_points()) {
    std::cerr << result->labels().size() << " bytes of labels for " << cloud.num_points() << " points" << std::endl;
    request.has_failed = true;
  }
  if (result.ok()) request.stages = std::move(result->stages);
  return request;
}

std::string StagesOf(const Request& request) {
  return absl::StrJoin(request.stages, ", ", [](std::string* out, const StageTime& time) {
    absl::StrAppendFormat(out, "%s %.2f", std::string(NameOf(time.stage)), absl::ToDoubleMilliseconds(time.duration));
  });
}

// Clients that send their next request when the last one is answered, until Finish.
class Clients {
 public:
  Clients(Engine& engine, const PointCloud& cloud) : requests_(kNumClients) {
    for (std::vector<Request>& requests : requests_) {
      threads_.emplace_back([this, &engine, &cloud, &requests] {
        while (!is_stopping_) {
          requests.push_back(Send(engine, cloud));
          // If the engine refuses everything at once, the log must not fill.
          if (requests.back().has_failed) std::this_thread::sleep_for(milliseconds(10));
        }
      });
    }
  }
  ~Clients() { Stop(); }
  Clients(const Clients&) = delete;
  Clients& operator=(const Clients&) = delete;

  // Returns all requests in the order in which they were sent.
  std::vector<Request> Finish() {
    Stop();
    std::vector<Request> all;
    for (const std::vector<Request>& requests : requests_) all.insert(all.end(), requests.begin(), requests.end());
    std::sort(all.begin(), all.end(), [](const Request& a, const Request& b) { return a.start < b.start; });
    return all;
  }

 private:
  void Stop() {
    is_stopping_ = true;
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

  std::atomic<bool> is_stopping_{false};
  std::vector<std::vector<Request>> requests_;  // by client
  std::vector<std::thread> threads_;
};

int64_t NumFailed(absl::Span<const Request> requests) {
  return std::count_if(requests.begin(), requests.end(), [](const Request& request) { return request.has_failed; });
}

void PrintPhase(const std::string& name, absl::Span<const Request> requests) {
  std::vector<double> ms;
  for (const Request& request : requests) ms.push_back(Milliseconds(request.latency));
  const auto quantile = [&](double share) { return ms.empty() ? 0 : Percentile(ms, share); };
  absl::PrintF("| %s | %d | %d | %.2f | %.2f | %.2f |\n", name, requests.size(), NumFailed(requests), quantile(0.5),
               quantile(0.99), quantile(1));
}

// Searches a plan on the requests that are served. Cancels the search if it takes too long.
absl::StatusOr<TuneResult> Tune(Engine& engine) {
  const auto promise = std::make_shared<std::promise<absl::StatusOr<TuneResult>>>();
  std::future<absl::StatusOr<TuneResult>> future = promise->get_future();
  const uint64_t ticket =
      engine.Tune({.model = kModel, .num_scans = kTuneScans, .done = [promise](absl::StatusOr<TuneResult> result) {
                     promise->set_value(std::move(result));
                   }});
  if (future.wait_for(kSearchLimit) != std::future_status::ready) {
    std::cerr << "the search has not ended within its limit" << std::endl;
    engine.CancelTune(ticket);
  }
  return future.get();
}

// Returns true if nothing failed.
bool ServeThroughSearch(const std::string& plan_dir, const PointCloud& cloud) {
  SwapObserver observer;
  const std::unique_ptr<Engine> engine = StartEngine(plan_dir, &observer);
  const std::string source_before = PlanSource(*engine);
  Clients clients(*engine, cloud);
  std::this_thread::sleep_for(kWarmUp);
  const Clock::time_point begin = Clock::now();
  std::this_thread::sleep_for(kPhase);
  const Clock::time_point search = Clock::now();
  const absl::StatusOr<TuneResult> found = Tune(*engine);
  const Clock::time_point search_end = Clock::now();
  std::this_thread::sleep_for(kPhase);
  const std::vector<Request> requests = clients.Finish();

  const auto sent_by = [&](Clock::time_point time) {
    const auto first_later = std::partition_point(requests.begin(), requests.end(),
                                                  [&](const Request& request) { return request.start < time; });
    return static_cast<size_t>(first_later - requests.begin());
  };
  const absl::Span<const Request> all(requests);
  const size_t first = sent_by(begin), first_of_search = sent_by(search), first_after = sent_by(search_end);
  absl::PrintF("%d clients in closed loop, %s, %d points; a request belongs to the phase in which it was sent.\n\n",
               kNumClients, kScan, cloud.num_points());
  std::puts("| phase | requests | failed | p50 ms | p99 ms | max ms |\n|---|--:|--:|--:|--:|--:|");
  PrintPhase(absl::StrCat("before (plan: ", source_before, ")"), all.subspan(first, first_of_search - first));
  PrintPhase("during the search", all.subspan(first_of_search, first_after - first_of_search));
  PrintPhase(absl::StrCat("after the swap (plan: ", PlanSource(*engine), ")"), all.subspan(first_after));
  if (observer.swap()) {
    const size_t next = sent_by(*observer.swap()), from = next - std::min(next, kAroundSwap);
    PrintPhase("around the swap", all.subspan(from, next + kAroundSwap - from));
  }
  const int64_t num_failed = NumFailed(all);
  absl::PrintF("\n%d requests in all, %d failed.\n", all.size(), num_failed);
  if (!found.ok()) {
    std::cerr << found.status() << std::endl;
    return false;
  }
  absl::PrintF("The search took %.2f s on %d scans.\n", absl::ToDoubleSeconds(found->search_time), found->num_scans);
  for (const TuneBucket& bucket : found->buckets) {
    absl::PrintF("From %d voxels on: default %.3f ms, tuned %.3f ms on the device.\n", bucket.min_voxels,
                 absl::ToDoubleMilliseconds(bucket.default_time), absl::ToDoubleMilliseconds(bucket.tuned_time));
  }
  return num_failed == 0 && observer.swap().has_value();
}

// Returns the cloud without up to a tenth of its points, which depend on the seed.
PointCloud Thinned(const PointCloud& cloud, unsigned seed) {
  std::mt19937 random(seed);
  const double share = std::uniform_real_distribution<double>(0, 0.1)(random);
  std::bernoulli_distribution is_left_out(share);
  PointCloudLayout layout = cloud.layout();
  std::string bytes;
  layout.num_points = layout.row_step = 0;
  layout.height = 1;
  for (uint64_t i = 0; i < cloud.num_points(); ++i) {
    if (is_left_out(random)) continue;
    bytes += cloud.bytes().substr(i * layout.point_step, layout.point_step);
    ++layout.num_points;
  }
  return OrDie(PointCloud::Create(layout, std::move(bytes)));
}

double MedianMs(absl::Span<const Request> requests) {
  std::vector<double> ms;
  for (const Request& request : requests) ms.push_back(Milliseconds(request.latency));
  return Percentile(ms, 0.5);
}

// Runs as a restarted server, in its own process, into which nothing of CUDA is loaded yet. Prints its row.
int Restarted(const std::string& plan_dir, std::string_view wanted_source) {
  const PointCloud cloud = OrDie(LoadGoldenScan(kScan)).cloud;
  const Clock::time_point start = Clock::now();
  const std::unique_ptr<Engine> engine = StartEngine(plan_dir, nullptr);
  const Clock::duration until_ready = Clock::now() - start;
  const std::string source = PlanSource(*engine);
  std::vector<Request> requests;
  for (int i = 0; i < 3 + kRequestsOnceWarm; ++i) requests.push_back(Send(*engine, cloud));
  const double same_ms = MedianMs(absl::MakeSpan(requests).subspan(3));
  std::vector<Request> others;
  for (int i = 0; i < kRequestsOnceWarm; ++i) others.push_back(Send(*engine, Thinned(cloud, static_cast<unsigned>(i))));
  absl::PrintF("| %s | %.0f | %.2f | %.2f | %.2f | %.2f | %.2f | %s |\n", source, Milliseconds(until_ready),
               Milliseconds(requests[0].latency), Milliseconds(requests[1].latency), Milliseconds(requests[2].latency),
               same_ms, MedianMs(others), StagesOf(requests[0]));
  if (source != wanted_source) std::cerr << "plan_source is " << source << ", not " << wanted_source << std::endl;
  return NumFailed(requests) == 0 && source == wanted_source ? 0 : 1;
}

bool Restart(std::string plan_dir, std::string wanted_source) {
  std::fflush(stdout);
  std::string program = std::filesystem::read_symlink("/proc/self/exe").string(), mode = "--restarted";
  char* const argv[] = {program.data(), mode.data(), plan_dir.data(), wanted_source.data(), nullptr};
  pid_t process = 0;
  if (const int error = posix_spawn(&process, program.c_str(), nullptr, nullptr, argv, environ); error != 0) {
    std::cerr << program << ": " << std::strerror(error) << std::endl;
    return false;
  }
  int status = 0;
  return waitpid(process, &status, 0) == process && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int Main(int argc, char** argv) {
  if (argc == 4 && std::strcmp(argv[1], "--restarted") == 0) return Restarted(argv[2], argv[3]);
  if (argc != 1) {
    std::fprintf(stderr, "usage: %s\n", argv[0]);
    return 2;
  }
  if (!support::HasDevice(support::Device::kCuda)) {
    std::puts("skipped: no CUDA device here");
    return 0;
  }
  absl::PrintF("%s, CUDA %s\n\n", ListCudaDevices().front().name, CudaVersion());
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / absl::StrCat("voxserve_plan_swap_bench_", getpid());
  const std::string plan_dir = (folder / "kept").string(), empty_plan_dir = (folder / "empty").string();
  std::filesystem::create_directories(plan_dir);
  std::filesystem::create_directories(empty_plan_dir);

  bool is_good = ServeThroughSearch(plan_dir, OrDie(LoadGoldenScan(kScan)).cloud);
  std::puts(
      "\nA restarted server, one client:\n\n| plan | start ms | 1st ms | 2nd ms | 3rd ms | median of 100 more ms "
      "| of 100 other scans ms | the 1st's stages, ms |\n"
      "|---|--:|--:|--:|--:|--:|--:|---|");
  is_good = Restart(plan_dir, "plan_dir") && is_good;
  is_good = Restart(empty_plan_dir, "default") && is_good;
  std::filesystem::remove_all(folder);
  return is_good ? 0 : 1;
}

}  // namespace
}  // namespace voxserve::bench

int main(int argc, char** argv) { return voxserve::bench::Main(argc, argv); }
