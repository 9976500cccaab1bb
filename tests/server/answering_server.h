#pragma once

// AnsweringServer is a gRPC server of this process at 127.0.0.1 that ends every call with OK. Of each call it keeps
// what a function of the test returns. Thread-safe. The destructor stops the server.

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace voxserve {

class AnsweringServer {
 public:
  // Called on gRPC's thread when a call begins.
  using Note = std::function<std::string(const grpc::CallbackServerContext& context)>;

  explicit AnsweringServer(Note note) : service_(std::move(note)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
  }
  ~AnsweringServer() {
    if (server_ != nullptr) server_->Shutdown();
  }

  bool has_started() const { return server_ != nullptr; }
  std::shared_ptr<grpc::Channel> Connect() const {
    return grpc::CreateChannel(absl::StrCat("127.0.0.1:", port_), grpc::InsecureChannelCredentials());
  }
  std::vector<std::string> notes() const { return service_.notes(); }

 private:
  class Service final : public grpc::CallbackGenericService {
   public:
    explicit Service(Note note) : note_(std::move(note)) {}

    grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
      {
        absl::MutexLock lock(&mutex_);
        notes_.push_back(note_(*context));
      }
      class Reactor final : public grpc::ServerGenericBidiReactor {
       public:
        Reactor() { Finish(grpc::Status::OK); }
        void OnDone() override { delete this; }
      };
      return new Reactor;
    }

    std::vector<std::string> notes() const {
      absl::MutexLock lock(&mutex_);
      return notes_;
    }

   private:
    const Note note_;
    mutable absl::Mutex mutex_;
    std::vector<std::string> notes_ ABSL_GUARDED_BY(mutex_);
  };

  Service service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace voxserve
