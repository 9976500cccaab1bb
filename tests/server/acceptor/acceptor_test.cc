// Tests which connections Acceptor passes on to gRPC, and when. FakeGrpc takes gRPC's place and keeps the connections;
// acceptor_grpc_test.cc uses the real gRPC.

#include "server/acceptor/acceptor.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "engine/base/steady_time.h"
#include "server/sockets/descriptor_limit.h"
#include "tests/server/acceptor/acceptor_fixture.h"
#include "tests/support/await_true.h"
#include "tests/support/failing_heap.h"

namespace voxserve::acceptor_test {
namespace {

using testing::_;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using testing::ResultOf;
using testing::UnorderedElementsAre;

TEST_F(AcceptorTest, HandsOverWithEveryByteStillToBeRead) {
  StartWith({});
  RawClient client = RawClient::To(port());
  client.Send(std::string(kPreface) + "more");
  ASSERT_TRUE(keeper_.Await(1));
  std::string bytes(64, '\0');
  bytes.resize(static_cast<size_t>(recv(keeper_.at(0), bytes.data(), bytes.size(), 0)));
  EXPECT_EQ(bytes, std::string(kPreface) + "more");
  ASSERT_EQ(send(keeper_.at(0), "answer", 6, 0), 6);
  EXPECT_EQ(client.Receive(6), "answer");
}

// Fails each allocation of the acceptor's thread in turn, counted from a connection's arrival.
TEST_F(AcceptorTest, AFailedAllocationCostsOneConnectionAndNoPlace) {
  std::atomic<int64_t> fails_at{-1};
  absl::Mutex mutex;
  std::map<std::string, int> gone;
  StartWith({.max_connections = 4,
             .max_client_connections = 4,
             .is_welcome =
                 [&](const std::string& /*client*/) {
                   support::FailAllocation(fails_at.exchange(-1));
                   return true;
                 },
             .on_gone =
                 [&](const std::string& peer) {
                   absl::MutexLock lock(&mutex);
                   ++gone[peer];
                 }});
  const auto is_ended = [](const RawClient& client) {
    char byte = 0;
    const ssize_t size = recv(client.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return size == 0 || (size < 0 && errno != EAGAIN);
  };
  int num_lost = 0;
  std::vector<std::string> kept;
  std::map<std::string, int> num_uses;  // of each port
  for (int i = 0; i < 60; ++i) {
    fails_at = i;
    const size_t before = keeper_.size();
    RawClient client = RawClient::To(port());
    ++num_uses[client.peer()];
    client.Send(kPreface);
    ASSERT_TRUE(support::AwaitTrue([&] { return keeper_.size() > before || is_ended(client); })) << i;
    if (keeper_.size() > before) {
      kept.push_back(client.peer());
    } else {
      ++num_lost;
    }
    client.Reset();
    EXPECT_TRUE(support::AwaitTrue([&] { return acceptor_->open_connections() == 0; })) << i;
  }
  EXPECT_GT(num_lost, 5);
  EXPECT_GT(kept.size(), 5);
  for (const std::string& peer : kept) {
    if (num_uses[peer] > 1) continue;  // the system gave the port to several connections, whose ends count together
    EXPECT_TRUE(support::AwaitTrue([&] {
      absl::MutexLock lock(&mutex);
      return gone[peer] > 0;
    })) << peer;
    absl::MutexLock lock(&mutex);
    EXPECT_EQ(gone[peer], 1) << peer;
  }
  std::vector<RawClient> clients;
  for (int i = 0; i < 4; ++i) clients.push_back(Established());  // every place is free
  EXPECT_EQ(acceptor_->open_connections(), 4);
}

TEST_F(AcceptorTest, CountsWhatHasComeOverEachConnection) {
  StartWith({});
  RawClient waiting = RawClient::To(port());
  waiting.Send(kPreface.substr(0, 5));
  const RawClient quiet = Established();
  RawClient client = Established();
  client.Send(std::string(100'000, 'x'));
  const auto wanted = static_cast<int64_t>(kPreface.size());
  std::map<std::string, SocketTraffic> traffic;
  for (int i = 0; i < 1000 && traffic[client.peer()].received < wanted + 100'000; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
    traffic = acceptor_->TakeTraffic();
  }
  const auto received = [](const SocketTraffic& one) { return one.received; };
  EXPECT_THAT(traffic, UnorderedElementsAre(Pair(quiet.peer(), ResultOf(received, wanted)),
                                            Pair(client.peer(), ResultOf(received, wanted + 100'000))));
  EXPECT_EQ(acceptor_->TakeReceivedBytes(client.peer()), wanted + 100'000);
  EXPECT_EQ(acceptor_->TakeReceivedBytes(client.peer()), 0) << "each byte is taken once";
  EXPECT_EQ(acceptor_->TakeReceivedBytes(quiet.peer()), wanted);
  EXPECT_EQ(acceptor_->TakeReceivedBytes("ipv4:127.0.0.1:1"), 0) << "no such connection";
}

TEST_F(AcceptorTest, TellsReadBytesFromThoseThatWait) {
  StartWith({});
  RawClient client = Established();
  client.Send(std::string(1000, 'x'));
  const auto sent = static_cast<int64_t>(kPreface.size()) + 1000;
  EXPECT_TRUE(support::AwaitTrue([&] { return acceptor_->TakeTraffic()[client.peer()].received == sent; }));
  EXPECT_EQ(acceptor_->TakeTraffic()[client.peer()].read, 0);
  std::string bytes(300, '\0');
  ASSERT_EQ(recv(keeper_.at(0), bytes.data(), bytes.size(), 0), 300);
  EXPECT_EQ(acceptor_->TakeTraffic()[client.peer()].read, 300);
  EXPECT_EQ(acceptor_->TakeTraffic()[client.peer()].sent, 0);
  ASSERT_EQ(send(keeper_.at(0), "answer", 6, 0), 6);
  EXPECT_TRUE(support::AwaitTrue([&] { return acceptor_->TakeTraffic()[client.peer()].sent == 6; }));
}

TEST_F(AcceptorTest, TellsTheLastTrafficOfAConnectionOnce) {
  StartWith({});
  const RawClient quiet = Established();
  RawClient client = Established();
  client.Send(std::string(1000, 'x'));
  const auto sent = static_cast<int64_t>(kPreface.size()) + 1000;
  EXPECT_TRUE(support::AwaitTrue([&] { return acceptor_->TakeTraffic()[client.peer()].received == sent; }));
  keeper_.LetGo(1);
  EXPECT_TRUE(watcher_.AwaitOpen(1));
  EXPECT_EQ(acceptor_->TakeTraffic()[client.peer()].received, sent);
  EXPECT_THAT(acceptor_->TakeTraffic(), ElementsAre(Pair(quiet.peer(), _)));
}

TEST_F(AcceptorTest, SetsWhatGrpcSetsOnItsOwnConnections) {
  StartWith({.unacknowledged_timeout = absl::Milliseconds(4321)});
  const RawClient client = Established();
  int value = 0;
  socklen_t size = sizeof(value);
  ASSERT_EQ(getsockopt(keeper_.at(0), IPPROTO_TCP, TCP_NODELAY, &value, &size), 0);
  EXPECT_NE(value, 0);
  ASSERT_EQ(getsockopt(keeper_.at(0), IPPROTO_TCP, TCP_USER_TIMEOUT, &value, &size), 0);
  EXPECT_EQ(value, 4321);
  EXPECT_NE(fcntl(keeper_.at(0), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(fcntl(keeper_.at(0), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(AcceptorTest, FirstBytesMayComeInParts) {
  StartWith({});
  RawClient client = RawClient::To(port());
  for (size_t i = 0; i < kPreface.size(); ++i) {
    EXPECT_EQ(keeper_.size(), 0);
    client.Send(kPreface.substr(i, 1));
    if (i % 8 == 0) absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_TRUE(keeper_.Await(1));
  EXPECT_EQ(watcher_.closed(), 0);
}

TEST_F(AcceptorTest, SilentConnectionsEndInTimeAndHoldNobodyUp) {
  StartWith({.first_bytes_timeout = absl::Milliseconds(300)});
  std::vector<RawClient> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(RawClient::To(port()));
  RawClient partial = RawClient::To(port());
  partial.Send(kPreface.substr(0, 10));
  RawClient sound = Established();
  for (RawClient& client : silent) EXPECT_TRUE(client.IsEndedWithin());
  EXPECT_TRUE(partial.IsEndedWithin());
  EXPECT_TRUE(watcher_.AwaitClosed(connection_reason::kNoFirstBytes, 21));
  EXPECT_TRUE(watcher_.AwaitOpen(1));
  EXPECT_FALSE(sound.IsEndedWithin(absl::Milliseconds(400)));
  EXPECT_EQ(watcher_.closed(), 21);
}

TEST_F(AcceptorTest, ConnectionsThatEndWithoutACallAreCountedByHowFarTheyCame) {
  StartWith({});
  RawClient scan = RawClient::To(port());
  scan.Close();
  RawClient half = RawClient::To(port());
  half.Send(kPreface.substr(0, 7));
  half.Reset();
  EXPECT_TRUE(watcher_.AwaitUnused(unused_connection::kNoFirstBytes, 2));
  const RawClient silent = Established();
  keeper_.LetGo(0);
  EXPECT_TRUE(watcher_.AwaitUnused(unused_connection::kNoCall, 1));
  const RawClient calling = Established();
  acceptor_->OnCall(calling.peer());
  acceptor_->OnCall("ipv4:127.0.0.1:1");  // no such connection
  keeper_.LetGo(1);
  const RawClient closed = Established();
  acceptor_->Close(closed.peer(), connection_reason::kUnfinishedCalls);
  EXPECT_TRUE(watcher_.AwaitOpen(0));
  EXPECT_EQ(watcher_.unused(), 3);
  const RawClient last = Established();
  acceptor_->Stop();
  acceptor_->EndAll();
  EXPECT_EQ(watcher_.unused(), 3) << "the server ended it";
}

TEST_F(AcceptorTest, WithTlsOtherFirstBytesEndTheConnection) {
  StartWith({.has_tls = true});
  for (const std::string& bytes : {std::string(kPreface), std::string("GET / HTTP/1.1\r\n"), std::string("\x16\x02"),
                                   std::string("\x16\x03\x01\x01\x01\x02"), std::string("\x17")}) {
    RawClient client = RawClient::To(port());
    client.Send(bytes);
    EXPECT_TRUE(client.IsEndedWithin());
  }
  EXPECT_TRUE(watcher_.AwaitClosed(connection_reason::kNotTls, 5));
  RawClient incomplete = RawClient::To(port());
  incomplete.Send("\x16\x03\x01\x01\x01");
  EXPECT_FALSE(incomplete.IsEndedWithin(absl::Milliseconds(100)));
}

TEST_F(AcceptorTest, OtherFirstBytesEndTheConnection) {
  StartWith({});
  for (const std::string& bytes : {std::string("GET / HTTP/1.1\r\n"), std::string("\x16\x03\x01"), std::string("x"),
                                   std::string(kPreface.substr(0, 23)) + "x", std::string(1, '\0')}) {
    RawClient client = RawClient::To(port());
    client.Send(bytes);
    EXPECT_TRUE(client.IsEndedWithin());
  }
  EXPECT_TRUE(watcher_.AwaitClosed(connection_reason::kNotHttp2, 5));
  EXPECT_EQ(keeper_.size(), 0);
  EXPECT_TRUE(watcher_.AwaitOpen(0));
}

TEST_F(AcceptorTest, ClientsThatLeaveBeforeTheirFirstBytesCountNoLonger) {
  StartWith({});
  RawClient left = RawClient::To(port());
  RawClient reset = RawClient::To(port());
  ASSERT_TRUE(watcher_.AwaitOpen(2));
  left.Close();
  reset.Reset();
  EXPECT_TRUE(watcher_.AwaitOpen(0));
  EXPECT_EQ(watcher_.closed(), 0);
}

TEST_F(AcceptorTest, ConnectionsAreBoundedInAll) {
  StartWith({.max_connections = 4, .max_client_connections = 3});
  std::vector<RawClient> established;
  for (const char* from : {"127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"}) {
    established.push_back(Established(from));
  }
  RawClient further = RawClient::To(port(), "127.0.0.5");
  EXPECT_TRUE(further.IsEndedWithin());
  EXPECT_TRUE(watcher_.AwaitClosed(connection_reason::kConnectionLimit, 1));
  EXPECT_EQ(acceptor_->open_connections(), 4);

  established[0].Close();
  keeper_.LetGo(0);
  ASSERT_TRUE(watcher_.AwaitOpen(3));
  const RawClient next = Established("127.0.0.5");
  EXPECT_EQ(acceptor_->open_connections(), 4);
}

// Idle connections give way at once in these tests, unless a client is no larger than another.
constexpr SharedPlaces::Options kAtOnce = {.over_share_idle = absl::ZeroDuration()};

TEST_F(AcceptorTest, IdleConnectionsOfTheLargestClientGiveWay) {
  std::string busy;
  absl::Mutex mutex;
  StartWith({.max_connections = 6,
             .max_client_connections = 3,
             .idle_since =
                 [&](const std::string& peer) {
                   absl::MutexLock lock(&mutex);
                   return peer == busy ? absl::InfiniteFuture() : absl::InfinitePast();
                 },
             .places = kAtOnce});
  std::vector<RawClient> large, small;
  for (int i = 0; i < 3; ++i) large.push_back(Established("127.0.0.1"));
  for (int i = 0; i < 3; ++i) small.push_back(Established(absl::StrCat("127.0.0.", 2 + i)));
  {
    absl::MutexLock lock(&mutex);
    busy = large[0].peer();
  }
  const RawClient next = Established("127.0.0.9");
  EXPECT_TRUE(large[1].IsEndedWithin());
  EXPECT_FALSE(large[0].IsEndedWithin(absl::Milliseconds(50)));
  EXPECT_FALSE(large[2].IsEndedWithin(absl::Milliseconds(50)));
  EXPECT_TRUE(watcher_.AwaitClosed(connection_reason::kConnectionLimit, 1));
  EXPECT_EQ(acceptor_->open_connections(), 6);
  // A client that would have as many connections as the largest client gets no more.
  RawClient further = RawClient::To(port(), "127.0.0.9");
  EXPECT_TRUE(further.IsEndedWithin());
  EXPECT_TRUE(watcher_.AwaitClosed(connection_reason::kConnectionLimit, 2));
  for (RawClient& client : small) EXPECT_FALSE(client.IsEndedWithin(absl::Milliseconds(50)));
}

TEST_F(AcceptorTest, ConnectionsInUseNeverGiveWay) {
  StartWith({.max_connections = 4,
             .max_client_connections = 4,
             .idle_since = [](const std::string&) { return absl::InfiniteFuture(); },
             .places = {.over_share_idle = absl::ZeroDuration(), .any_idle = absl::ZeroDuration()}});
  std::vector<RawClient> large;
  for (int i = 0; i < 4; ++i) large.push_back(Established("127.0.0.1"));
  RawClient other = RawClient::To(port(), "127.0.0.2");
  EXPECT_TRUE(other.IsEndedWithin());
  EXPECT_TRUE(watcher_.AwaitClosed(connection_reason::kConnectionLimit, 1));
  for (RawClient& client : large) EXPECT_FALSE(client.IsEndedWithin(absl::Milliseconds(50)));
}

TEST_F(AcceptorTest, AConnectionThatWasOfUseGivesWayLater) {
  StartWith({.max_connections = 3, .max_client_connections = 3, .places = kAtOnce});
  std::vector<RawClient> large;
  for (int i = 0; i < 3; ++i) large.push_back(Established("127.0.0.1"));
  acceptor_->SetInUse(large[0].peer(), SteadyNow() + absl::Hours(1));
  acceptor_->SetInUse("ipv4:127.0.0.1:1", SteadyNow());
  const RawClient next = Established("127.0.0.9");
  EXPECT_TRUE(large[1].IsEndedWithin());
  EXPECT_FALSE(large[0].IsEndedWithin(absl::Milliseconds(50)));
}

// Whoever keeps opening connections that say nothing must not displace one that is about to say something.
TEST_F(AcceptorTest, SilentConnectionsOfALargeClientDisplaceNobodyElse) {
  StartWith({.max_connections = 4, .max_client_connections = 4, .places = kAtOnce});
  std::vector<RawClient> silent;
  for (int i = 0; i < 4; ++i) silent.push_back(RawClient::To(port(), "127.0.0.1"));
  ASSERT_TRUE(watcher_.AwaitOpen(4));
  RawClient slow = RawClient::To(port(), "127.0.0.2");
  ASSERT_TRUE(watcher_.AwaitClosed(connection_reason::kConnectionLimit, 1));
  for (int i = 0; i < 3; ++i) silent.push_back(RawClient::To(port(), "127.0.0.1"));
  ASSERT_TRUE(watcher_.AwaitClosed(connection_reason::kConnectionLimit, 4));
  slow.Send(kPreface);
  EXPECT_TRUE(keeper_.Await(1));
  EXPECT_FALSE(slow.IsEndedWithin(absl::Milliseconds(50)));
}

TEST_F(AcceptorTest, TellsOfEveryConnectionThatGrpcHadWhenItHasEnded) {
  absl::Mutex mutex;
  std::vector<std::string> gone;
  StartWith({.on_gone = [&](const std::string& peer) {
    absl::MutexLock lock(&mutex);
    EXPECT_FALSE(acceptor_->IsOpen(peer));
    gone.push_back(peer);
  }});
  RawClient client = Established();
  RawClient silent = RawClient::To(port());
  ASSERT_TRUE(watcher_.AwaitOpen(2));
  EXPECT_TRUE(acceptor_->IsOpen(client.peer()));
  const std::string peer = client.peer();
  silent.Reset();
  client.Reset();
  absl::MutexLock lock(&mutex);
  const auto is_told = [&gone] { return !gone.empty(); };
  EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&is_told), kLong));
  EXPECT_EQ(gone, std::vector<std::string>{peer});
}

TEST_F(AcceptorTest, ConnectionsOfAClientAreBounded) {
  StartWith({.max_connections = 100, .max_client_connections = 2});
  const RawClient first = Established();
  const RawClient second = Established();
  RawClient third = RawClient::To(port());
  EXPECT_TRUE(third.IsEndedWithin());
  EXPECT_TRUE(watcher_.AwaitClosed(connection_reason::kClientLimit, 1));
  const RawClient other = Established("127.0.0.2");
  EXPECT_TRUE(watcher_.AwaitOpen(3));
}

TEST_F(AcceptorTest, SilentConnectionsGiveWay) {
  StartWith(
      {.max_connections = 4, .max_client_connections = 2, .first_bytes_timeout = absl::Hours(1), .places = kAtOnce});
  // If two connections belong to one client, the older one is closed.
  RawClient older = RawClient::To(port());
  ASSERT_TRUE(watcher_.AwaitOpen(1));
  RawClient newer = RawClient::To(port());
  ASSERT_TRUE(watcher_.AwaitOpen(2));
  const RawClient sound = Established();
  EXPECT_TRUE(older.IsEndedWithin());
  EXPECT_FALSE(newer.IsEndedWithin(absl::Milliseconds(50)));
  EXPECT_TRUE(watcher_.AwaitClosed(connection_reason::kClientLimit, 1));
  // At the limit of all connections, the oldest of the largest client is closed.
  const RawClient third = Established("127.0.0.3");
  const RawClient fourth = Established("127.0.0.4");
  const RawClient fifth = Established("127.0.0.5");
  EXPECT_TRUE(newer.IsEndedWithin());
  EXPECT_TRUE(watcher_.AwaitClosed(connection_reason::kConnectionLimit, 1));
  EXPECT_EQ(acceptor_->open_connections(), 4);
}

TEST_F(AcceptorTest, DefaultLimitsComeFromTheDescriptorLimit) {
  {
    const LoweredDescriptorLimit lowered(1024);
    StartWith({});
    EXPECT_EQ(acceptor_->max_connections(), (1024 - 256) / 2);
    EXPECT_EQ(acceptor_->max_client_connections(), (1024 - 256) / 2 / 4);
  }
  {
    const LoweredDescriptorLimit lowered(100);
    StartWith({});
    EXPECT_EQ(acceptor_->max_connections(), (100 - 25) / 2);
  }
  StartWith({});
  EXPECT_LE(acceptor_->max_connections(), 10'000);
  EXPECT_LT(acceptor_->max_connections() * 2, DescriptorLimit());
}

TEST_F(AcceptorTest, AHalfClosedClientStaysAndGetsItsAnswer) {
  StartWith({.first_bytes_timeout = absl::Milliseconds(100)});
  RawClient client = RawClient::To(port());
  client.Send(std::string(kPreface) + "request");
  client.EndSending();
  ASSERT_TRUE(keeper_.Await(1));
  EXPECT_FALSE(watcher_.AwaitOpen(0, absl::Milliseconds(300)));
  ASSERT_EQ(send(keeper_.at(0), "answer", 6, 0), 6);
  EXPECT_EQ(client.Receive(6), "answer");
  keeper_.LetGo(0);
  EXPECT_TRUE(watcher_.AwaitOpen(0));
}

TEST_F(AcceptorTest, EndsAreSeenFromBothSides) {
  StartWith({});
  RawClient resets = Established();
  RawClient stays = Established();
  ASSERT_TRUE(watcher_.AwaitOpen(2));
  resets.Reset();
  EXPECT_TRUE(watcher_.AwaitOpen(1));
  keeper_.LetGo(1);
  EXPECT_TRUE(watcher_.AwaitOpen(0));
  EXPECT_TRUE(stays.IsEndedWithin());
  EXPECT_EQ(watcher_.closed(), 0);
}

TEST_F(AcceptorTest, CloseEndsTheConnectionOfThePeerAlone) {
  StartWith({});
  RawClient first = Established();
  RawClient second = Established();
  RawClient silent = RawClient::To(port());
  ASSERT_TRUE(watcher_.AwaitOpen(3));
  EXPECT_TRUE(acceptor_->Close(first.peer(), connection_reason::kUnfinishedCalls));
  EXPECT_FALSE(acceptor_->Close("ipv4:127.0.0.1:1", connection_reason::kUnfinishedCalls));
  EXPECT_FALSE(acceptor_->Close("", connection_reason::kUnfinishedCalls));
  EXPECT_TRUE(first.IsEndedWithin());
  char byte = 0;
  EXPECT_LE(recv(keeper_.at(0), &byte, 1, 0), 0) << "gRPC reads nothing more, not even what had come";
  EXPECT_TRUE(watcher_.AwaitOpen(2));
  EXPECT_FALSE(acceptor_->Close(first.peer(), connection_reason::kUnfinishedCalls));
  EXPECT_TRUE(acceptor_->Close(silent.peer(), connection_reason::kUnfinishedCalls));
  EXPECT_TRUE(silent.IsEndedWithin());
  EXPECT_FALSE(second.IsEndedWithin(absl::Milliseconds(50)));
  EXPECT_EQ(watcher_.closed(connection_reason::kUnfinishedCalls), 2);
}

TEST_F(AcceptorTest, StopKeepsWhatGrpcHas) {
  StartWith({});
  RawClient established = Established();
  RawClient silent = RawClient::To(port());
  ASSERT_TRUE(watcher_.AwaitOpen(2));
  const int port_before = port();
  acceptor_->Stop();
  EXPECT_TRUE(silent.IsEndedWithin());
  EXPECT_EQ(acceptor_->open_connections(), 1);
  EXPECT_FALSE(RawClient().Connect(port_before));
  ASSERT_EQ(send(keeper_.at(0), "answer", 6, 0), 6);
  EXPECT_EQ(established.Receive(6), "answer");
  EXPECT_TRUE(acceptor_->Close(established.peer(), "DRAINING"));
  EXPECT_TRUE(established.IsEndedWithin());
  acceptor_->Stop();
  EXPECT_TRUE(watcher_.AwaitOpen(0));
}

TEST_F(AcceptorTest, WithoutStartItListensAndEnds) {
  auto acceptor = Acceptor::Listen({.host = "127.0.0.1"});
  ASSERT_TRUE(acceptor.ok());
  const int port = (*acceptor)->port();
  EXPECT_TRUE(RawClient().Connect(port));
  (*acceptor)->Stop();
  EXPECT_FALSE(RawClient().Connect(port));
  acceptor->reset();
}

TEST_F(AcceptorTest, APortInUseIsAnErrorThatSaysWhatToDo) {
  StartWith({});
  const absl::Status status = Acceptor::Listen({.host = "127.0.0.1", .port = port()}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("cannot listen for gRPC on 127.0.0.1:"), HasSubstr(": Address already in use"),
                    HasSubstr("--port chooses another port")));
}

// Opens descriptors until the process has reached its limit, and returns them.
std::vector<Descriptor> TakeAllDescriptors() {
  std::vector<Descriptor> fillers;
  for (int descriptor = 0; (descriptor = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) {
    fillers.emplace_back(descriptor);
  }
  return fillers;
}

std::vector<RawClient> Unconnected(int count) { return std::vector<RawClient>(static_cast<size_t>(count)); }

TEST_F(AcceptorTest, WithoutDescriptorsConnectionsAreRefusedAndServiceResumes) {
  StartWith({.max_connections = 1000, .max_client_connections = 1000});
  const RawClient before = Established();
  std::vector<RawClient> clients = Unconnected(150);
  RawClient later;
  {
    const LoweredDescriptorLimit lowered(static_cast<rlim_t>(NumOpenDescriptors() + 50));
    std::vector<Descriptor> fillers = TakeAllDescriptors();
    for (RawClient& client : clients) ASSERT_TRUE(client.Connect(port()));
    for (RawClient& client : clients) EXPECT_TRUE(client.IsEndedWithin());
    EXPECT_TRUE(watcher_.AwaitClosed(connection_reason::kNoDescriptors, 150));
    EXPECT_EQ(acceptor_->open_connections(), 1);

    // One free descriptor is enough to accept a connection, but not enough to pass it on.
    fillers.pop_back();
    ASSERT_TRUE(later.Connect(port()));
    ASSERT_TRUE(watcher_.AwaitOpen(2));
    later.Send(kPreface);
    EXPECT_TRUE(later.IsEndedWithin());
    EXPECT_TRUE(watcher_.AwaitClosed(connection_reason::kNoDescriptors, 151));
  }
  const RawClient after = Established();
  EXPECT_EQ(watcher_.closed(), 151);
  EXPECT_TRUE(watcher_.AwaitOpen(2));
}

TEST_F(AcceptorTest, WithoutASpareDescriptorConnectionsWaitAndNothingSpins) {
  StartWith({});
  std::vector<RawClient> clients = Unconnected(5);
  {
    // With this limit no descriptor can be opened, not even after the acceptor has closed its spare one.
    const LoweredDescriptorLimit lowered(3);
    for (RawClient& client : clients) {
      ASSERT_TRUE(client.Connect(port()));
      client.Send(kPreface);
    }
    timespec start = {};
    timespec end = {};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
    EXPECT_FALSE(keeper_.Await(1, absl::Milliseconds(500)));
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    EXPECT_LT(absl::DurationFromTimespec(end) - absl::DurationFromTimespec(start), absl::Milliseconds(100));
  }
  EXPECT_TRUE(keeper_.Await(5));
  EXPECT_EQ(watcher_.closed(), 0);
}

TEST_F(AcceptorTest, ManyShortConnectionsLeakNoDescriptor) {
  StartWith({});
  const int64_t before = NumOpenDescriptors();
  for (int i = 0; i < 2000; ++i) {
    RawClient client = RawClient::To(port());
    if (i % 3 != 0) client.Send(i % 3 == 1 ? kPreface.substr(0, 5) : "x");
    client.Reset();
  }
  Established().Reset();  // the last connection: all earlier ones have been accepted
  keeper_.LetGo(0);
  EXPECT_TRUE(watcher_.AwaitOpen(0));
  EXPECT_EQ(NumOpenDescriptors(), before);
  EXPECT_EQ(acceptor_->open_connections(), 0);
}

}  // namespace
}  // namespace voxserve::acceptor_test
