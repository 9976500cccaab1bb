#pragma once

// UnreadingClient is a client that makes Infer calls and never reads the answers, for tests of flow control.

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve {

// Makes Infer calls over one connection and does not read their answers. HTTP/2's flow control lets the server send
// 64 KiB of each answer. The destructor cancels all calls. Not thread-safe.
class UnreadingClient {
 public:
  explicit UnreadingClient(int port) : stub_(Connect(port)) {}

  ~UnreadingClient() {
    CancelAll();
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  // Begins a call and sends its request. Returns false if the connection is gone.
  bool Send(const v1::InferRequest& request, absl::Duration timeout = absl::InfiniteDuration()) {
    grpc::Slice bytes(request.SerializeAsString());
    if (!Begin(timeout)) return false;
    calls_.back()->WriteLast(grpc::ByteBuffer(&bytes, 1), grpc::WriteOptions(), nullptr);
    return Await();
  }

  // Begins a call without sending its request. Returns false if the connection is gone.
  bool Begin(absl::Duration timeout = absl::InfiniteDuration(), const std::string& method = "Infer") {
    contexts_.push_back(std::make_unique<grpc::ClientContext>());
    contexts_.back()->set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    calls_.push_back(stub_.PrepareCall(contexts_.back().get(), "/voxserve.v1.InferenceService/" + method, &queue_));
    calls_.back()->StartCall(nullptr);
    return Await();
  }

  // Also forgets calls that have ended. A later gRPC than 1.51 counts those that are not forgotten as open.
  void CancelAll() {
    for (const auto& context : contexts_) context->TryCancel();
    calls_.clear();
    contexts_.clear();
  }

 private:
  static std::shared_ptr<grpc::Channel> Connect(int port) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // The probe would make gRPC enlarge the window.
    return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials(), arguments);
  }

  bool Await() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts_;
  std::vector<std::unique_ptr<grpc::GenericClientAsyncReaderWriter>> calls_;
};

}  // namespace voxserve
