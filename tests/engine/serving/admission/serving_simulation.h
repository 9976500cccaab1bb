#pragma once

// ServingSimulation runs a Batcher whose devices and clock are simulated, without threads. Requests arrive at random
// times drawn from a seed. A batch alone on a device takes per_batch + per_cloud * points / kPoints. Batches on several
// streams of a device share its speed. A simulation of several seconds runs in milliseconds.

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "engine/serving/admission/batcher.h"
#include "tests/engine/serving/admission/fake_model.h"

namespace voxserve {

class ServingSimulation {
 public:
  struct Options {
    int num_devices = 1;
    int streams_per_device = 1;
    // The work per second that two or more streams of a device do in all, divided by the work that one stream does.
    double overlap_gain = 1;
    absl::Duration per_batch = absl::Microseconds(1067);
    absl::Duration per_cloud = absl::Microseconds(3133);  // the time that one more cloud of kPoints points adds
    double noise = 0.05;                                  // standard deviation of the natural log of a batch's time
    double hiccup_probability = 0;                        // the probability that a batch takes 3 times as long
    int64_t max_queue_requests = 4096;
    ModelConfig::Batching batching;
    uint64_t seed = 1;
  };
  static constexpr int64_t kPoints = 124'000;

  // Requests that arrive independently of the answers.
  struct Traffic {
    double rate = 0;  // requests a second; a Poisson process
    absl::Duration timeout = absl::Milliseconds(50);
    double size_spread = 0;  // clouds have from kPoints * (1 - spread) to kPoints * (1 + spread) points
  };

  // A client that keeps `in_flight` requests under way. It sends its next request one `pause` after an answer. A
  // refusal counts as an answer, but the pause after a refusal is at least 5 ms.
  struct Client {
    std::string name;
    int in_flight = 1;
    absl::Duration pause;
    absl::Duration timeout = absl::Milliseconds(50);
    double size = 1;  // points of a cloud, in units of kPoints
    int priority = 0;
  };

  struct Counts {
    // Numbers of requests. met: answered within the deadline; late: answered after it; dropped: admitted, refused
    // later.
    int64_t sent = 0, refused = 0, met = 0, late = 0, dropped = 0;
    int64_t batches = 0, most_waiting = 0;
    absl::Duration longest_wait;     // of the requests that ran
    absl::Duration longest_latency;  // of the requests that met their deadline
    absl::Duration span;             // the simulated time in which these were counted

    int64_t ended() const { return met + late + dropped; }  // admitted requests that have ended
    // Returns the number of requests per second that met their deadline.
    double goodput() const { return static_cast<double>(met) / absl::ToDoubleSeconds(span); }
    double met_share() const { return static_cast<double>(met) / static_cast<double>(std::max<int64_t>(1, ended())); }
    std::string ToString() const {
      return absl::StrCat("sent ", sent, " refused ", refused, " met ", met, " late ", late, " dropped ", dropped,
                          " batches ", batches, " goodput ", goodput(), " of admitted ", met_share());
    }
  };

  explicit ServingSimulation(Options options)
      : options_(std::move(options)),
        random_(options_.seed),
        model_(FakeModel("m", options_.batching, options_.num_devices)),
        devices_(static_cast<size_t>(options_.num_devices)),
        batcher_({.max_queue_requests = options_.max_queue_requests,
                  .max_queue_bytes = int64_t{1} << 40,
                  .num_workers = std::vector<int>(devices_.size(), options_.streams_per_device),
                  .now = [this] { return clock_.now(); },
                  .has_timer = false}) {}

  // Makes all later batches take `slowdown` times as long.
  void SetSlowdown(double slowdown) { slowdown_ = slowdown; }
  LatencyFit& latency(size_t device) { return *model_->on_device[device].latency; }
  Batcher& batcher() { return batcher_; }

  // Gives the latency model the times of eight batches in all, as a warm-up does: four on each device.
  void Seed() {
    for (size_t i = 0; i < devices_.size(); ++i) {
      for (const int requests : {1, 1, 2, 4}) {
        latency(i).Observe({.points = kPoints * requests, .voxels = kPoints * requests * 3 / 4, .requests = requests},
                           options_.per_batch + requests * options_.per_cloud);
      }
    }
  }

  // Sends requests of `load` for the next `span` of simulated time, and returns the counts of that time. A request that
  // began earlier and ends within `span` counts as well.
  Counts Run(const Traffic& load, absl::Duration span) {
    counts_ = {.span = span};
    const absl::Time end = clock_.now() + span;
    absl::Time arrival = NextArrival(load);
    while (true) {
      absl::Time next = std::min(arrival, batcher_.NextExpiry());
      for (const Device& device : devices_) next = std::min(next, NextEnd(device));
      if (next >= end) break;
      MoveTo(next);
      batcher_.ExpireDue();
      if (next == arrival) {
        Send(load);
        arrival = NextArrival(load);
      }
      EndBatches();
      StartBatches();
    }
    MoveTo(end);
    return counts_;
  }

  // Simulates `outstanding` requests that are always under way: when a batch ends, each of its requests is replaced by
  // a new one at once. Deadlines are 10 s.
  Counts RunClosed(int outstanding, absl::Duration span) {
    closed_load_ = std::make_unique<Traffic>(Traffic{.timeout = absl::Seconds(10)});
    for (int i = 0; i < outstanding; ++i) Send(*closed_load_);
    StartBatches();
    const Counts counts = Run({.rate = 0}, span);
    closed_load_.reset();
    return counts;
  }

  // Simulates these clients for the next `span`. Returns the counts of each client. Requests without an answer at the
  // end of `span` count only as sent.
  std::vector<Counts> RunClients(const std::vector<Client>& clients, absl::Duration span) {
    std::vector<Counts> counts(clients.size(), {.span = span});
    clients_ = &clients;
    client_counts_ = &counts;
    for (size_t i = 0; i < clients.size(); ++i) {
      for (int k = 0; k < clients[i].in_flight; ++k) sends_.emplace(clock_.now() + k * absl::Microseconds(1), i);
    }
    const absl::Time end = clock_.now() + span;
    for (;;) {
      absl::Time next = batcher_.NextExpiry();
      if (!sends_.empty()) next = std::min(next, sends_.begin()->first);
      for (const Device& device : devices_) next = std::min(next, NextEnd(device));
      if (next >= end) break;
      MoveTo(next);
      batcher_.ExpireDue();
      while (!sends_.empty() && sends_.begin()->first <= clock_.now()) {
        const size_t client = sends_.begin()->second;
        sends_.erase(sends_.begin());
        SendFor(client);
      }
      EndBatches();
      StartBatches();
    }
    MoveTo(end);
    sends_.clear();
    clients_ = nullptr;
    client_counts_ = nullptr;
    return counts;
  }

 private:
  struct Running {
    Batch batch;
    double work = 0;  // the remaining work, in seconds of the device
  };
  struct Device {
    std::vector<Running> running;
  };

  double Rate(const Device& device) const {
    const double count = static_cast<double>(device.running.size());
    return (count > 1 ? options_.overlap_gain : 1) / count;
  }

  absl::Time NextArrival(const Traffic& load) {
    if (load.rate <= 0) return absl::InfiniteFuture();
    return clock_.now() + absl::Seconds(std::exponential_distribution<>(load.rate)(random_));
  }

  absl::Time NextEnd(const Device& device) const {
    absl::Time end = absl::InfiniteFuture();
    for (const Running& running : device.running) {
      end = std::min(end, clock_.now() + absl::Seconds(std::max(0.0, running.work) / Rate(device)));
    }
    return end;
  }

  void MoveTo(absl::Time time) {
    const double passed = absl::ToDoubleSeconds(time - clock_.now());
    for (Device& device : devices_) {
      if (device.running.empty()) continue;
      const double done = passed * Rate(device);
      for (Running& running : device.running) running.work -= done;
    }
    clock_.AdvanceTo(time);
  }

  void Send(const Traffic& load) {
    const double factor = 1 + load.size_spread * std::uniform_real_distribution<>(-1, 1)(random_);
    QueuedTask task;
    task.ticket = next_ticket_++;
    task.model = model_;
    task.task.model = "m";
    // Each point is one byte of a field that no network reads.
    task.task.cloud = CloudOf(static_cast<uint64_t>(kPoints * factor));
    const absl::Time deadline = clock_.now() + load.timeout;
    task.task.deadline = deadline;
    task.task.done = [this, deadline](const absl::StatusOr<InferResult>& result) {
      if (!result.ok()) {
        ++counts_.dropped;
      } else if (clock_.now() <= deadline) {
        ++counts_.met;
      } else {
        ++counts_.late;
      }
    };
    ++counts_.sent;
    counts_.refused += !batcher_.Push(task).ok();
  }

  void SendFor(size_t index) {
    const Client& client = (*clients_)[index];
    QueuedTask task;
    task.ticket = next_ticket_++;
    task.model = model_;
    task.task.model = "m";
    task.task.client = client.name;
    task.task.priority = client.priority;
    task.task.cloud = CloudOf(static_cast<uint64_t>(kPoints * client.size));
    const absl::Time sent = clock_.now(), deadline = sent + client.timeout;
    task.task.deadline = deadline;
    task.task.done = [this, index, sent, deadline](const absl::StatusOr<InferResult>& result) {
      if (client_counts_ == nullptr) return;
      Counts& counts = (*client_counts_)[index];
      if (!result.ok()) {
        ++counts.dropped;
      } else if (clock_.now() <= deadline) {
        ++counts.met;
        counts.longest_latency = std::max(counts.longest_latency, clock_.now() - sent);
      } else {
        ++counts.late;
      }
      sends_.emplace(clock_.now() + (*clients_)[index].pause, index);
    };
    ++(*client_counts_)[index].sent;
    if (batcher_.Push(task).ok()) return;
    ++(*client_counts_)[index].refused;
    sends_.emplace(clock_.now() + std::max(client.pause, absl::Milliseconds(5)), index);
  }

  static PointCloud CloudOf(uint64_t num_points) {
    static const auto* const clouds = new std::vector<PointCloud>(MakeClouds());
    return (*clouds)[std::min(clouds->size() - 1, num_points * 100 / kPoints)];
  }
  // Makes one cloud of 0, 1, 2, ... hundredths of kPoints points each.
  static std::vector<PointCloud> MakeClouds() {
    std::vector<PointCloud> clouds;
    for (uint64_t i = 0; i <= 300; ++i) {
      const uint64_t num_points = i * kPoints / 100;
      clouds.push_back(*PointCloud::Create(
          {.num_points = num_points, .point_step = 1, .fields = {{.name = "x", .type = PointFieldType::kUint8}}},
          std::string(num_points, '\0')));
    }
    return clouds;
  }

  void EndBatches() {
    for (size_t i = 0; i < devices_.size(); ++i) {
      std::vector<Running>& running = devices_[i].running;
      for (size_t k = 0; k < running.size();) {
        if (running[k].work > 1e-9) {
          ++k;
          continue;
        }
        const Batch batch = std::move(running[k].batch);
        running.erase(running.begin() + static_cast<std::ptrdiff_t>(k));
        for (const QueuedTask& task : batch.tasks) task.task.done(InferResult());
        batcher_.Finished(batch, {batch.load.points * 3 / 4});
        if (closed_load_) {
          for (size_t task = 0; task < batch.tasks.size(); ++task) Send(*closed_load_);
        }
      }
    }
  }

  void StartBatches() {
    // Gives batches to the least busy devices first, as Pop does.
    for (int stream = 0; stream < options_.streams_per_device; ++stream) {
      for (size_t i = 0; i < devices_.size(); ++i) {
        if (devices_[i].running.size() > static_cast<size_t>(stream)) continue;
        Batch batch = batcher_.TryPop(i);
        if (batch.tasks.empty()) continue;
        ++counts_.batches;
        for (const QueuedTask& task : batch.tasks) {
          counts_.longest_wait = std::max(counts_.longest_wait, clock_.now() - task.enqueued);
        }
        const double points = static_cast<double>(batch.load.points) / kPoints;
        double seconds = absl::ToDoubleSeconds(options_.per_batch + points * options_.per_cloud) * slowdown_;
        seconds *= std::exp(std::normal_distribution<>(0, options_.noise)(random_));
        if (std::uniform_real_distribution<>()(random_) < options_.hiccup_probability) seconds *= 3;
        devices_[i].running.push_back({.batch = std::move(batch), .work = seconds});
      }
    }
  }

  const Options options_;
  std::mt19937_64 random_;
  FakeClock clock_;
  std::shared_ptr<ServedModel> model_;
  std::vector<Device> devices_;
  double slowdown_ = 1;
  uint64_t next_ticket_ = 1;
  Counts counts_;
  std::unique_ptr<Traffic> closed_load_;
  // Points to the clients while RunClients runs.
  const std::vector<Client>* clients_ = nullptr;
  std::vector<Counts>* client_counts_ = nullptr;
  std::multimap<absl::Time, size_t> sends_;  // maps the time of the next request to the index of its client
  Batcher batcher_;
};

}  // namespace voxserve
