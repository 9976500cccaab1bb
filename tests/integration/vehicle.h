#pragma once

// Vehicle is a client of InferStream for tests. It sends the messages that a test asks for. A thread of its own reads
// and keeps all results. One thread of the test may call the methods.

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "tests/integration/service_client.h"

namespace voxserve {

inline v1::StreamConfig StreamConfigOf(const std::string& model,
                                       v1::StreamPolicy policy = v1::STREAM_POLICY_UNSPECIFIED) {
  v1::StreamConfig config;
  config.set_model(model);
  config.set_policy(policy);
  return config;
}

inline v1::StreamFrame StreamFrameOf(uint64_t frame_id, int64_t num_points) {
  v1::StreamFrame frame;
  frame.set_frame_id(frame_id);
  *frame.mutable_cloud() = std::move(*RequestOf("", num_points).mutable_cloud());
  return frame;
}

// Returns a part of a frame, with the points of RequestOf.
inline v1::FramePart FramePartOf(uint64_t frame_id, uint32_t index, int64_t num_points, bool is_last = false) {
  v1::FramePart part;
  part.set_frame_id(frame_id);
  part.set_index(index);
  part.set_is_last(is_last);
  *part.mutable_cloud() = std::move(*RequestOf("", num_points).mutable_cloud());
  return part;
}

class Vehicle {
 public:
  // Opens a stream without sending its configuration. `client` must outlive this object.
  explicit Vehicle(ServiceClient* client, absl::Duration timeout = absl::Seconds(60)) {
    context_.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
    stream_ = client->inference->InferStream(&context_);
  }
  // Opens a stream, sends its configuration and starts the reading thread.
  Vehicle(ServiceClient* client, const v1::StreamConfig& config) : Vehicle(client) {
    Send(config);
    StartReading();
  }
  ~Vehicle() {
    context_.TryCancel();
    End();
  }

  void StartReading() {
    reader_ = std::thread([this] { Read(); });
  }
  void Cancel() { context_.TryCancel(); }

  // Sends a message. Blocks while the server does not read. Returns false if the stream has ended.
  bool Send(const v1::InferStreamRequest& request) { return stream_->Write(request); }
  bool Send(const v1::StreamConfig& config) {
    v1::InferStreamRequest request;
    *request.mutable_config() = config;
    return Send(request);
  }
  bool Send(v1::StreamFrame frame) {
    v1::InferStreamRequest request;
    *request.mutable_frame() = std::move(frame);
    return Send(request);
  }
  bool Send(v1::FramePart part) {
    v1::InferStreamRequest request;
    *request.mutable_part() = std::move(part);
    return Send(request);
  }
  bool Send(uint64_t frame_id, int64_t num_points) { return Send(StreamFrameOf(frame_id, num_points)); }
  void CloseSends() { stream_->WritesDone(); }

  // Blocks until `count` results have arrived, and returns true. Returns false if the stream ends before that.
  bool AwaitResults(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto is_there = [&]()
                              ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return results_.size() >= count || has_ended_; };
    mutex_.Await(absl::Condition(&is_there));
    return results_.size() >= count;
  }
  // Blocks until the server says that it is going away, and returns true. Returns false if the stream ends before that.
  bool AwaitGoingAway() {
    absl::MutexLock lock(&mutex_);
    const auto is_there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return num_going_away_ > 0 || has_ended_; };
    mutex_.Await(absl::Condition(&is_there));
    return num_going_away_ > 0;
  }

  // Reads all results until the stream ends, and returns its status.
  const grpc::Status& End() {
    if (!reader_.joinable() && !is_over_) StartReading();
    if (reader_.joinable()) reader_.join();
    is_over_ = true;
    return status_;
  }

  // Returns the results in the order of their arrival.
  std::vector<v1::FrameResult> results() const {
    absl::MutexLock lock(&mutex_);
    return results_;
  }
  // Returns the frame ids of the results in the order of their arrival.
  std::vector<uint64_t> order() const {
    std::vector<uint64_t> ids;
    for (const v1::FrameResult& result : results()) ids.push_back(result.frame_id());
    return ids;
  }
  // Returns for each frame id "OK" or the reason of its error. If several frames had one id, the last one counts.
  std::map<uint64_t, std::string> outcomes() const {
    std::map<uint64_t, std::string> outcomes;
    for (const v1::FrameResult& result : results()) outcomes.insert_or_assign(result.frame_id(), OutcomeOf(result));
    return outcomes;
  }
  int num_going_away() const {
    absl::MutexLock lock(&mutex_);
    return num_going_away_;
  }

  static grpc::Status StatusOf(const v1::FrameResult& result) {
    return {static_cast<grpc::StatusCode>(result.status().code()), result.status().message(),
            result.status().SerializeAsString()};
  }
  static std::string OutcomeOf(const v1::FrameResult& result) {
    if (!result.has_status()) return "OK";
    return ReasonOf(StatusOf(result));
  }

 private:
  void Read() {
    v1::InferStreamResponse response;
    while (stream_->Read(&response)) {
      absl::MutexLock lock(&mutex_);
      if (response.has_going_away()) ++num_going_away_;
      if (response.has_result()) results_.push_back(response.result());
    }
    status_ = stream_->Finish();
    absl::MutexLock lock(&mutex_);
    has_ended_ = true;
  }

  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::InferStreamRequest, v1::InferStreamResponse>> stream_;
  std::thread reader_;
  bool is_over_ = false;
  grpc::Status status_;

  mutable absl::Mutex mutex_;
  std::vector<v1::FrameResult> results_ ABSL_GUARDED_BY(mutex_);
  int num_going_away_ ABSL_GUARDED_BY(mutex_) = 0;
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace voxserve
