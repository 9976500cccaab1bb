// Tests that gRPC's threads which read connections have the names of NamesOfReadingThreads. gRPC tells of a new call on
// the thread that has read it.

#include <gmock/gmock.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <pthread.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "server/grpc/grpc_version.h"

namespace voxserve::reading_threads_test {
namespace {

class Service final : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* /*context*/) override {
    std::array<char, 16> name = {};
    pthread_getname_np(pthread_self(), name.data(), name.size());
    {
      absl::MutexLock lock(&mutex_);
      names_.emplace_back(name.data());
    }
    class Reactor final : public grpc::ServerGenericBidiReactor {
     public:
      Reactor() { Finish(grpc::Status::OK); }
      void OnDone() override { delete this; }
    };
    return new Reactor;
  }

  std::vector<std::string> names() const {
    absl::MutexLock lock(&mutex_);
    return names_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<std::string> names_ ABSL_GUARDED_BY(mutex_);
};

TEST(ReadingThreadsTest, ACallComesOnOneOfThem) {
  Service service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  grpc::GenericStub stub(grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));
  constexpr int kCalls = 20;
  for (int i = 0; i < kCalls; ++i) {
    grpc::ClientContext context;
    const grpc::Slice slice("request");
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer answer;
    absl::Notification done;
    stub.UnaryCall(&context, "/any/Method", {}, &request, &answer,
                   [&](const grpc::Status& /*no answer*/) { done.Notify(); });
    done.WaitForNotification();
  }
  server->Shutdown();
  EXPECT_THAT(service.names(), testing::SizeIs(kCalls));
  EXPECT_THAT(service.names(), testing::Each(testing::AnyOfArray(NamesOfReadingThreads())));
}

}  // namespace
}  // namespace voxserve::reading_threads_test
