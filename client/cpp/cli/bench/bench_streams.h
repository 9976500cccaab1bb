#pragma once

// The streams of `voxserve-client bench`: vehicles with the same frame rate, which share one schedule in turns.

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/cli/bench/bench_load.h"

namespace voxserve::client {

class StreamLoad : public ScheduledLoad {
 public:
  // scans and recorder must outlive it. Each stream begins at another scan. A frame's stamp is the time at which it is
  // due. The sweeps are reset when a stream begins the scans again.
  static absl::StatusOr<std::unique_ptr<StreamLoad>> Open(const BenchOptions& options,
                                                          const std::shared_ptr<Channels>& channels,
                                                          const std::vector<BenchScan>* scans, BenchRecorder* recorder);
  ~StreamLoad() override;

  int64_t num_under_way() const override;
  // Return the number of streams that ended with an error, and the first one's error.
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
