#pragma once

// Private to the library: a client's connections, and explanations of their failures. Thread-safe.

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/cpp/api/options.h"
#include "client/cpp/api/point_cloud.h"

namespace voxserve::client {

// Returns INVALID_ARGUMENT unless the timeout is positive.
absl::Status CheckTimeout(absl::Duration timeout);

// Sets the call's deadline; none for an infinite timeout.
void SetTimeout(absl::Duration timeout, grpc::ClientContext* context);

class Channels {
 public:
  // options must be valid.
  explicit Channels(Options options);

  const Options& options() const { return options_; }
  const std::vector<std::shared_ptr<grpc::Channel>>& all() const { return channels_; }
  // Returns an index into all(), in turn.
  size_t NextIndex() { return next_.fetch_add(1, std::memory_order_relaxed) % channels_.size(); }

  // Returns RESOURCE_EXHAUSTED (MESSAGE_TOO_LARGE) for a cloud that does not fit a message.
  absl::Status CheckSize(const PointCloud& cloud) const;

  // Explains a status that gRPC itself, not the server, has returned.
  absl::Status Explain(const grpc::Status& grpc_status, grpc::Channel& channel, absl::Duration timeout) const;

 private:
  const Options options_;
  const std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::atomic<uint64_t> next_{0};
};

}  // namespace voxserve::client
