// Tests Acceptor in front of a real grpc::Server, and the behaviour of gRPC 1.51.1 on which Acceptor relies.

#include <gmock/gmock.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "server/acceptor/acceptor.h"
#include "server/sockets/listen.h"
#include "server/sockets/peer.h"
#include "tests/server/acceptor/raw_client.h"

namespace voxserve::acceptor_grpc_test {
namespace {

using testing::StartsWith;

// Makes HTTP/2 frames without a library. Call makes a whole call: HEADERS with literal fields, and DATA with one empty
// message that ends the stream. Settings, which come first on a connection, are a frame of their own.
std::string Frame(char type, char flags, char stream, const std::string& payload) {
  const auto size = static_cast<char>(payload.size());
  return std::string({0, 0, size, type, flags, 0, 0, 0, stream}) + payload;
}

std::string Field(const std::string& name, const std::string& value) {
  return absl::StrCat(std::string(1, '\0'), std::string(1, static_cast<char>(name.size())), name,
                      std::string(1, static_cast<char>(value.size())), value);
}

std::string Settings() { return Frame(4, 0, 0, ""); }

std::string Call(const std::string& method) {
  const std::string fields = Field(":method", "POST") + Field(":scheme", "http") + Field(":path", method) +
                             Field(":authority", "test") + Field("te", "trailers") +
                             Field("content-type", "application/grpc");
  return Frame(1, 4, 1, fields) + Frame(0, 1, 1, std::string(5, '\0'));
}

// Answers "/echo" with the bytes of its request, and "/wait" when the call is cancelled. Thread-safe.
class Service final : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    {
      absl::MutexLock lock(&mutex_);
      peers_.push_back(context->peer());
    }
    return new Reactor(this, context->method() == "/wait");
  }

  // Waits for `num_calls` calls and returns the last one's peer. Returns "" if they do not arrive in time.
  std::string AwaitPeer(size_t num_calls) {
    absl::MutexLock lock(&mutex_);
    const auto is_reached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return peers_.size() >= num_calls; };
    return mutex_.AwaitWithTimeout(absl::Condition(&is_reached), kLong) ? peers_.back() : "";
  }

  bool AwaitCancelled(int64_t count) {
    absl::MutexLock lock(&mutex_);
    const auto is_reached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return num_cancelled_ >= count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&is_reached), kLong);
  }

 private:
  class Reactor final : public grpc::ServerGenericBidiReactor {
   public:
    Reactor(Service* service, bool waits) : service_(service), waits_(waits) {
      if (!waits_) StartRead(&message_);
    }
    void OnReadDone(bool ok) override {
      if (!ok) return Finish(grpc::Status(grpc::StatusCode::INTERNAL, "no message"));
      StartWriteAndFinish(&message_, {}, grpc::Status::OK);
    }
    void OnCancel() override {
      if (!waits_) return;
      {
        absl::MutexLock lock(&service_->mutex_);
        ++service_->num_cancelled_;
      }
      Finish(grpc::Status::CANCELLED);
    }
    void OnDone() override { delete this; }

   private:
    Service* const service_;
    const bool waits_;
    grpc::ByteBuffer message_;
  };

  mutable absl::Mutex mutex_;
  std::vector<std::string> peers_ ABSL_GUARDED_BY(mutex_);
  int64_t num_cancelled_ ABSL_GUARDED_BY(mutex_) = 0;
};

class AcceptorGrpcTest : public testing::Test {
 protected:
  void StartWith(Acceptor::Options options, const std::vector<std::pair<std::string, int>>& channel_arguments = {}) {
    auto acceptor = Acceptor::Listen(watcher_.Watching(std::move(options)));
    ASSERT_TRUE(acceptor.ok()) << acceptor.status();
    acceptor_ = *std::move(acceptor);
    grpc::ServerBuilder builder;
    auto external = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, grpc::InsecureServerCredentials());
    for (const auto& [name, value] : channel_arguments) builder.AddChannelArgument(name, value);
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    acceptor_->Start(std::move(external));
  }

  void TearDown() override {
    if (acceptor_) acceptor_->Stop();
    if (server_) server_->Shutdown(absl::ToChronoTime(absl::Now()));
    server_.reset();
  }

  int port() const { return acceptor_->port(); }

  // Returns a channel that has its own connection.
  std::shared_ptr<grpc::Channel> ChannelTo(const std::string& host) const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(absl::StrCat(host, ":", port()), grpc::InsecureChannelCredentials(), arguments);
  }

  // A call that runs in the background.
  struct Pending {
    grpc::ClientContext context;
    grpc::ByteBuffer request;
    grpc::ByteBuffer answer;
    grpc::Status status;
    absl::Notification done;
  };

  static std::unique_ptr<Pending> StartCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method) {
    auto pending = std::make_unique<Pending>();
    const grpc::Slice slice("hello");
    pending->request = grpc::ByteBuffer(&slice, 1);
    pending->context.set_deadline(absl::ToChronoTime(absl::Now() + kLong));
    grpc::GenericStub stub(channel);
    stub.UnaryCall(&pending->context, method, {}, &pending->request, &pending->answer,
                   [raw = pending.get()](grpc::Status status) {
                     raw->status = std::move(status);
                     raw->done.Notify();
                   });
    return pending;
  }

  static grpc::Status Echo(const std::shared_ptr<grpc::Channel>& channel) {
    const auto pending = StartCall(channel, "/echo");
    pending->done.WaitForNotification();  // this wait ends, since the call has a deadline
    if (pending->status.ok()) {
      grpc::Slice answer;
      EXPECT_TRUE(pending->answer.DumpToSingleSlice(&answer).ok());
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(answer.begin()), answer.size()), "hello");
    }
    return pending->status;
  }

  Watcher watcher_;
  Service service_;
  std::unique_ptr<Acceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(AcceptorGrpcTest, ServesOverIpv4AndCloseTakesItsPeer) {
  StartWith({.host = "127.0.0.1"});
  auto channel = ChannelTo("127.0.0.1");
  const grpc::Status status = Echo(channel);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const std::string peer = service_.AwaitPeer(1);
  EXPECT_THAT(peer, StartsWith("ipv4:127.0.0.1:"));
  EXPECT_EQ(ClientOf(peer), "127.0.0.1");
  EXPECT_TRUE(acceptor_->Close(peer, connection_reason::kUnfinishedCalls));
  EXPECT_TRUE(watcher_.AwaitOpen(0));
}

TEST_F(AcceptorGrpcTest, ServesOverIpv6AndCloseTakesItsPeer) {
  if (!ListenOn("::1", 0).ok()) GTEST_SKIP() << "this machine has no IPv6";
  StartWith({.host = "0.0.0.0"});
  auto channel = ChannelTo("[::1]");
  const grpc::Status status = Echo(channel);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const std::string peer = service_.AwaitPeer(1);
  EXPECT_THAT(peer, StartsWith("ipv6:%5B::1%5D:"));
  EXPECT_EQ(ClientOf(peer), "::1");
  EXPECT_TRUE(acceptor_->Close(peer, connection_reason::kUnfinishedCalls));
  EXPECT_TRUE(watcher_.AwaitOpen(0));
}

TEST_F(AcceptorGrpcTest, Ipv4ThroughASocketOfBothFamiliesIsWrittenAsIpv4) {
  StartWith({.host = "0.0.0.0"});
  auto channel = ChannelTo("127.0.0.1");
  ASSERT_TRUE(Echo(channel).ok());
  const std::string peer = service_.AwaitPeer(1);
  EXPECT_THAT(peer, StartsWith("ipv4:127.0.0.1:"));
  EXPECT_TRUE(acceptor_->Close(peer, connection_reason::kUnfinishedCalls));
}

TEST_F(AcceptorGrpcTest, CloseEndsACallInItsMiddleAndNoOther) {
  StartWith({.host = "127.0.0.1"});
  auto bad = ChannelTo("127.0.0.1");
  auto good = ChannelTo("127.0.0.1");
  const auto waiting = StartCall(bad, "/wait");
  const std::string peer = service_.AwaitPeer(1);
  ASSERT_TRUE(Echo(good).ok());
  ASSERT_TRUE(watcher_.AwaitOpen(2));
  EXPECT_TRUE(acceptor_->Close(peer, connection_reason::kUnfinishedCalls));
  ASSERT_TRUE(waiting->done.WaitForNotificationWithTimeout(kLong));
  EXPECT_EQ(waiting->status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(service_.AwaitCancelled(1));
  EXPECT_TRUE(watcher_.AwaitOpen(1));
  EXPECT_TRUE(Echo(good).ok());
  EXPECT_EQ(watcher_.closed(connection_reason::kUnfinishedCalls), 1);
}

TEST_F(AcceptorGrpcTest, SilentConnectionsHoldNoCallUp) {
  StartWith({.host = "127.0.0.1", .max_connections = 100, .max_client_connections = 90});
  std::vector<RawClient> silent;
  for (int i = 0; i < 150; ++i) silent.push_back(RawClient::To(port()));
  const grpc::Status status = Echo(ChannelTo("127.0.0.1"));
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(AcceptorGrpcTest, GrpcShutsDownWhatItLetsGo) {
  StartWith({.host = "127.0.0.1"}, {{GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 300}});
  RawClient no_settings = RawClient::To(port());  // stays open
  no_settings.Send(kPreface);
  ASSERT_TRUE(watcher_.AwaitOpen(1));
  EXPECT_TRUE(watcher_.AwaitOpen(0));
  EXPECT_TRUE(no_settings.IsEndedWithin());
  EXPECT_EQ(watcher_.closed(), 0);
}

TEST_F(AcceptorGrpcTest, GrpcEndsIdleConnections) {
  StartWith({.host = "127.0.0.1"}, {{GRPC_ARG_MAX_CONNECTION_IDLE_MS, 300}});
  RawClient idle = RawClient::To(port());
  idle.Send(std::string(kPreface) + Settings());
  ASSERT_TRUE(watcher_.AwaitOpen(1));
  EXPECT_TRUE(watcher_.AwaitOpen(0));
}

TEST_F(AcceptorGrpcTest, AnswersABareCall) {
  StartWith({.host = "127.0.0.1"});
  RawClient client = RawClient::To(port());
  client.Send(std::string(kPreface) + Settings() + Call("/echo"));
  EXPECT_EQ(service_.AwaitPeer(1), client.peer());
  EXPECT_THAT(client.Receive(200, absl::Seconds(1)), testing::HasSubstr("application/grpc"));
}

TEST_F(AcceptorGrpcTest, GrpcCancelsTheCallsOfAHalfClosedClient) {
  StartWith({.host = "127.0.0.1"});
  RawClient client = RawClient::To(port());
  client.Send(std::string(kPreface) + Settings() + Call("/wait"));
  ASSERT_NE(service_.AwaitPeer(1), "");
  client.EndSending();
  EXPECT_TRUE(service_.AwaitCancelled(1));
  EXPECT_TRUE(watcher_.AwaitOpen(0));
}

TEST_F(AcceptorGrpcTest, ManyShortConnectionsLeakNoDescriptor) {
  StartWith({.host = "127.0.0.1"});
  ASSERT_TRUE(Echo(ChannelTo("127.0.0.1")).ok());  // lets gRPC open the descriptors that it opens only once
  ASSERT_TRUE(watcher_.AwaitOpen(0));
  const int64_t before = NumOpenDescriptors();
  for (int i = 0; i < 2000; ++i) {
    RawClient client = RawClient::To(port());
    client.Send(std::string(kPreface) + Settings() + (i % 2 == 0 ? Call("/wait") : ""));
    if (i % 4 < 2) client.EndSending();
    client.Reset();
  }
  EXPECT_TRUE(Echo(ChannelTo("127.0.0.1")).ok());  // the last connection: all earlier ones have been accepted
  EXPECT_TRUE(watcher_.AwaitOpen(0));
  // gRPC closes a connection's descriptors only when the connection's calls have ended.
  const absl::Time deadline = absl::Now() + kLong;
  while (NumOpenDescriptors() > before && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(20));
  EXPECT_LE(NumOpenDescriptors(), before);  // less: the first call may still have had descriptors at `before`
  EXPECT_EQ(watcher_.closed(), 0);
}

// gRPC reuses numbers of descriptors, and its records of descriptors, while duplicates of old descriptors still end.
TEST_F(AcceptorGrpcTest, ConnectionsThatEndFromAllSidesDisturbNoOther) {
  StartWith({.host = "127.0.0.1"});
  auto sound = ChannelTo("127.0.0.1");
  ASSERT_TRUE(Echo(sound).ok());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this, i] {
      for (int j = 0; j < 200; ++j) {
        RawClient client = RawClient::To(port(), absl::StrCat("127.0.0.", 2 + i));
        client.Send(std::string(kPreface) + Settings() + Call(j % 2 == 0 ? "/wait" : "/echo"));
        if (j % 3 == 0) client.Receive(9);
        if (j % 4 == 0) acceptor_->Close(client.peer(), connection_reason::kUnfinishedCalls);
        if (j % 4 == 1) client.Reset();
      }
    });
  }
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Echo(sound).ok());
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(watcher_.AwaitOpen(1));
  EXPECT_TRUE(Echo(sound).ok());
}

TEST_F(AcceptorGrpcTest, ServiceResumesAfterDescriptorsRanOut) {
  StartWith({.host = "127.0.0.1", .max_connections = 5000, .max_client_connections = 5000});
  auto channel = ChannelTo("127.0.0.1");
  ASSERT_TRUE(Echo(channel).ok());
  std::vector<RawClient> clients(300);
  {
    const LoweredDescriptorLimit lowered(static_cast<rlim_t>(NumOpenDescriptors() + 60));
    for (RawClient& client : clients) {
      ASSERT_TRUE(client.Connect(port()));
      client.Send(std::string(kPreface) + Settings());
    }
    EXPECT_TRUE(watcher_.AwaitClosed(connection_reason::kNoDescriptors, 200));
    EXPECT_TRUE(Echo(channel).ok());
  }
  EXPECT_TRUE(Echo(ChannelTo("127.0.0.1")).ok());
  clients.clear();
  EXPECT_TRUE(watcher_.AwaitOpen(1));
  EXPECT_TRUE(Echo(ChannelTo("127.0.0.1")).ok());
}

TEST_F(AcceptorGrpcTest, AfterStopCallsOfOpenConnectionsAreServed) {
  StartWith({.host = "127.0.0.1"});
  auto channel = ChannelTo("127.0.0.1");
  ASSERT_TRUE(Echo(channel).ok());
  acceptor_->Stop();
  EXPECT_TRUE(Echo(channel).ok());
  EXPECT_FALSE(RawClient().Connect(port()));
  server_->Shutdown(absl::ToChronoTime(absl::Now() + kLong));
  EXPECT_TRUE(watcher_.AwaitOpen(0));
}

}  // namespace
}  // namespace voxserve::acceptor_grpc_test
