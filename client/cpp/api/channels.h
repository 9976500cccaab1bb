#pragma once

// Channels, private to the library, holds a client's gRPC channels and explains their failures. Client and its streams
// share it. Thread-safe.

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cpp/api/options.h"
#include "client/cpp/api/point_cloud.h"

namespace voxserve::client {

// Returns INVALID_ARGUMENT unless the timeout is positive.
absl::Status CheckTimeout(absl::Duration timeout);

class Channels {
 public:
  // Returns INVALID_ARGUMENT if an option or a TLS file cannot be used. Connects lazily.
  static absl::StatusOr<std::shared_ptr<Channels>> Create(Options options);

  const Options& options() const { return options_; }
  const std::vector<std::shared_ptr<grpc::Channel>>& all() const { return channels_; }
  // Returns the channel to Options::AdminAddress(); null if that is empty.
  const std::shared_ptr<grpc::Channel>& admin() const { return admin_; }
  // Returns the index in all() of the channel that the next call should use. The channels take turns.
  size_t NextIndex() { return next_.fetch_add(1, std::memory_order_relaxed) % channels_.size(); }

  // Sets a call's deadline (infinite timeout: none), token and traceparent.
  void Prepare(absl::Duration timeout, grpc::ClientContext* context) const;

  // Returns RESOURCE_EXHAUSTED (MESSAGE_TOO_LARGE) if the cloud does not fit in a message.
  absl::Status CheckSize(const PointCloud& cloud) const;

  // Converts the status of a call that had this timeout. A status that the server made has a reason, and is returned
  // with its code, message and details. All others are gRPC's own: failed connections, timeouts and too large messages
  // get a reason of error.h and a clear message, and UNIMPLEMENTED gets a clear message.
  absl::Status Explain(const grpc::Status& grpc_status, grpc::Channel& channel, absl::Duration timeout) const;

 private:
  Channels(Options options, const std::shared_ptr<grpc::ChannelCredentials>& credentials);

  const Options options_;
  const std::vector<std::shared_ptr<grpc::Channel>> channels_;
  const std::shared_ptr<grpc::Channel> admin_;
  std::atomic<uint64_t> next_{0};
};

}  // namespace voxserve::client
