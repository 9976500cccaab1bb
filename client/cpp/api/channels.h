#pragma once

// Channels, private to the library, holds a client's gRPC channels and explains their failures. Client and its streams
// share it. Thread-safe.

#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>

#include <atomic>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cpp/api/options.h"
#include "client/cpp/api/point_cloud.h"

namespace voxserve::client {

// Returns INVALID_ARGUMENT unless the timeout is positive.
absl::Status CheckTimeout(absl::Duration timeout);

// AnswerMemory bounds the memory of answers that are under way. gRPC 1.51.1 compares an answer with max_message_bytes
// only once it has all of it, whatever its size. At the end of a quota, though, it gives up a call, with
// RESOURCE_EXHAUSTED "Buffers full". So the quota follows the number of calls: each has its answer and what gRPC reads
// ahead. Thread-safe.
class AnswerMemory {
 public:
  explicit AnswerMemory(int64_t max_message_bytes);

  const grpc::ResourceQuota& quota() const { return quota_; }
  void AddCalls(int number) ABSL_LOCKS_EXCLUDED(mutex_);  // negative: they have ended

 private:
  const int64_t max_message_bytes_;
  absl::Mutex mutex_;
  int64_t num_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  grpc::ResourceQuota quota_{"voxserve.client"};
};

class Channels;

// CallContext is the context of one call: with the call's deadline (infinite timeout: none), token and traceparent. The
// call may use memory for its answer until the context is destroyed, which may be after Channels is.
class CallContext : public grpc::ClientContext {
 public:
  CallContext(const Channels& channels, absl::Duration timeout);
  ~CallContext();

 private:
  const std::shared_ptr<AnswerMemory> memory_;
};

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

  const std::shared_ptr<AnswerMemory>& answer_memory() const { return answer_memory_; }

  // Returns RESOURCE_EXHAUSTED (MESSAGE_TOO_LARGE) if the cloud does not fit in a message.
  absl::Status CheckSize(const PointCloud& cloud) const;

  // Converts the status of a call that had this timeout. A status that the server made has a reason, and is returned
  // with its code, message and details. All others are gRPC's own: failed connections, timeouts and too large messages
  // get a reason of error.h and a clear message, and UNIMPLEMENTED gets a clear message.
  absl::Status Explain(const grpc::Status& grpc_status, grpc::Channel& channel, absl::Duration timeout) const;

 private:
  Channels(Options options, const std::shared_ptr<grpc::ChannelCredentials>& credentials);

  const Options options_;
  const std::shared_ptr<AnswerMemory> answer_memory_;
  const std::vector<std::shared_ptr<grpc::Channel>> channels_;
  const std::shared_ptr<grpc::Channel> admin_;
  std::atomic<uint64_t> next_{0};
};

}  // namespace voxserve::client
