#pragma once

// Streams of `voxserve-client bench`: vehicles with one frame rate that take turns at a schedule.

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/cli/bench/bench_load.h"

namespace voxserve::client {

class StreamLoad : public ScheduledLoad {
 public:
  // scans and recorder outlive it. Each stream starts at another scan. A frame's stamp is the time at which it was due;
  // a new round of the scans resets the sweeps.
  static absl::StatusOr<std::unique_ptr<StreamLoad>> Open(const BenchOptions& options,
                                                          const std::shared_ptr<Channels>& channels,
                                                          const std::vector<BenchScan>* scans, BenchRecorder* recorder);
  ~StreamLoad() override;

  int64_t num_under_way() const override;
  // Streams that ended with an error, and that of the first.
  size_t num_broken() const;
  absl::Status first_error() const;

 protected:
  void SendDue(absl::Time due) override;
  void AwaitAll() override;

 private:
  class Vehicle;

  StreamLoad(const ArrivalSchedule& schedule, absl::Duration timeout);

  const absl::Duration timeout_;
  std::vector<std::unique_ptr<Vehicle>> vehicles_;
  uint64_t num_sent_ = 0;
};

}  // namespace voxserve::client
