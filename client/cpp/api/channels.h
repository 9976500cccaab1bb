#pragma once

// Private to the library: holds a client's connections and explains their failures. Thread-safe.

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

// Returns DEADLINE_EXCEEDED (CLIENT_TIMEOUT). missing: "no answer from" or "no connection to".
absl::Status TimeoutError(absl::string_view missing, absl::string_view address, absl::Duration timeout);

class Channels {
 public:
  // INVALID_ARGUMENT for options, or a file of TLS, that cannot be used.
  static absl::StatusOr<std::shared_ptr<Channels>> Create(Options options);

  const Options& options() const { return options_; }
  const std::vector<std::shared_ptr<grpc::Channel>>& all() const { return channels_; }
  // Returns the channel to AdminAddress(), or null if there is none.
  const std::shared_ptr<grpc::Channel>& admin() const { return admin_; }
  // Returns the index of a channel in all(). The channels take turns.
  size_t NextIndex() { return next_.fetch_add(1, std::memory_order_relaxed) % channels_.size(); }

  // Sets a call's deadline (infinite: none) and its token.
  void Prepare(absl::Duration timeout, grpc::ClientContext* context) const;

  // RESOURCE_EXHAUSTED, MESSAGE_TOO_LARGE: a cloud that no message holds.
  absl::Status CheckSize(const PointCloud& cloud) const;

  // Explains a status that gRPC itself, not the server, has returned.
  absl::Status Explain(const grpc::Status& grpc_status, grpc::Channel& channel, absl::Duration timeout) const;

 private:
  Channels(Options options, const std::shared_ptr<grpc::ChannelCredentials>& credentials);

  const Options options_;
  const std::vector<std::shared_ptr<grpc::Channel>> channels_;
  const std::shared_ptr<grpc::Channel> admin_;
  std::atomic<uint64_t> next_{0};
};

}  // namespace voxserve::client
