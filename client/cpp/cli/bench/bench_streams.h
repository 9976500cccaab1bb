#pragma once

// StreamLoad sends the frames of `voxserve-client bench --streams`: vehicles with the same frame rate, each with a
// stream of its own. One schedule serves the vehicles in turns, so their frames are spread evenly over time.

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/cli/bench/bench_load.h"

namespace voxserve::client {

class StreamLoad : public ScheduledLoad {
 public:
  // Opens the streams; returns the error of the first that fails. scans and recorder must outlive the load. Each stream
  // begins at another scan. A frame's stamp is the time at which the frame, or the last of its parts, is due. With
  // poses, the sweeps are reset when a stream comes to the first scan.
  static absl::StatusOr<std::unique_ptr<StreamLoad>> Open(const BenchOptions& options,
                                                          const std::shared_ptr<Channels>& channels,
                                                          const std::vector<BenchScan>* scans, BenchRecorder* recorder);
  ~StreamLoad() override;

  int64_t num_under_way() const override;
  // Return the number of streams that ended with an error, and the error of the first of them.
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
