// Tests that gRPC's threads which read connections have the names of NamesOfReadingThreads. gRPC tells of a new call on
// the thread that has read it.

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <pthread.h>

#include <array>
#include <string>

#include "absl/synchronization/notification.h"
#include "server/grpc/grpc_version.h"
#include "tests/server/answering_server.h"

namespace voxserve::reading_threads_test {
namespace {

TEST(ReadingThreadsTest, ACallComesOnOneOfThem) {
  AnsweringServer server([](const grpc::CallbackServerContext& /*context*/) {
    std::array<char, 16> name = {};
    pthread_getname_np(pthread_self(), name.data(), name.size());
    return std::string(name.data());
  });
  ASSERT_TRUE(server.has_started());
  grpc::GenericStub stub(server.Connect());
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
  EXPECT_THAT(server.notes(), testing::SizeIs(kCalls));
  EXPECT_THAT(server.notes(), testing::Each(testing::AnyOfArray(NamesOfReadingThreads())));
}

}  // namespace
}  // namespace voxserve::reading_threads_test
