// Tests Client when FakeServer fails: calls that change nothing on the server are repeated, and streams are reopened.

#include <netinet/in.h>
#include <sys/socket.h>

#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/cpp/api/client.h"
#include "client/cpp/api/reopening.h"
#include "client/cpp/api/service_config.h"
#include "gmock/gmock.h"
#include "tests/client/api/clouds.h"
#include "tests/client/fake_server.h"
#include "tests/support/await_true.h"

namespace voxserve::client::failover_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kLong = absl::Seconds(120);  // longer than any step of a test takes

std::string Message(const absl::Status& status) { return std::string(status.message()); }

int PortOf(const FakeServer& server) { return std::stoi(server.address().substr(server.address().rfind(':') + 1)); }

// Breaks all connections of this process to a server at this port.
void BreakConnections(int port) {
  std::vector<int> descriptors;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    descriptors.push_back(std::stoi(entry.path().filename()));
  }
  for (const int descriptor : descriptors) {
    sockaddr_in6 peer = {};  // the port is at the same place in an address of IPv4
    socklen_t size = sizeof(peer);
    if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &size) == 0 && ntohs(peer.sin6_port) == port) {
      shutdown(descriptor, SHUT_RDWR);
    }
  }
}

// Records the outcome of each frame of a stream, and how the stream was reopened and ended.
class Record {
 public:
  StreamCallbacks Callbacks() {
    return {.on_result =
                [this](FrameOutcome frame) {
                  absl::MutexLock lock(&mutex_);
                  EXPECT_FALSE(end_.has_value()) << "a result after the end";
                  order_.push_back(frame.frame_id);
                  EXPECT_TRUE(statuses_.emplace(frame.frame_id, frame.result.status()).second)
                      << "two results for frame " << frame.frame_id;
                },
            .on_reopen =
                [this](absl::Status why) {
                  absl::MutexLock lock(&mutex_);
                  reopened_.push_back(std::move(why));
                },
            .on_end =
                [this](absl::Status status) {
                  absl::MutexLock lock(&mutex_);
                  EXPECT_FALSE(end_.has_value()) << "a second end";
                  end_ = std::move(status);
                }};
  }

  std::vector<uint64_t> order() const {
    absl::MutexLock lock(&mutex_);
    return order_;
  }
  absl::Status StatusOf(uint64_t frame_id) const {
    absl::MutexLock lock(&mutex_);
    const auto found = statuses_.find(frame_id);
    return found == statuses_.end() ? absl::UnknownError("no result") : found->second;
  }
  size_t num_results() const {
    absl::MutexLock lock(&mutex_);
    return statuses_.size();
  }
  std::vector<absl::Status> reopened() const {
    absl::MutexLock lock(&mutex_);
    return reopened_;
  }
  std::optional<absl::Status> end() const {
    absl::MutexLock lock(&mutex_);
    return end_;
  }
  bool AwaitResults(size_t count) const {
    return support::AwaitTrue([&] { return num_results() >= count; });
  }
  absl::Status AwaitEnd() const {
    EXPECT_TRUE(support::AwaitTrue([&] { return end().has_value(); }));
    return end().value_or(absl::UnknownError("no end"));
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<uint64_t> order_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, absl::Status> statuses_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Status> reopened_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
};

class FailoverTest : public testing::Test {
 protected:
  std::unique_ptr<Client> Connect(Options options = {}) {
    if (options.address == Options().address) options.address = server_->address();
    auto client = Client::Create(std::move(options));
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }

  std::unique_ptr<Stream> Open(StreamOptions options) {
    if (options.model.empty()) options.model = "segmenter";
    if (options.reopen_for == absl::ZeroDuration()) options.reopen_for = kLong;
    auto stream = client_->OpenStream(options, record_.Callbacks());
    EXPECT_TRUE(stream.ok()) << stream.status();
    return *std::move(stream);
  }

  std::unique_ptr<FakeServer> server_ = std::make_unique<FakeServer>();
  std::unique_ptr<Client> client_ = Connect();
  Record record_;
};

TEST_F(FailoverTest, ACallThatChangesNothingIsMadeAgain) {
  server_->RefuseCalls(2);
  const auto result = client_->Infer({.model = "segmenter", .timeout = kLong}, CloudOf(1));
  EXPECT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(server_->num_infer_calls(), 3u);
}

TEST_F(FailoverTest, AWholeScanIsSentAgain) {
  server_->RefuseCalls(1);
  constexpr uint64_t kPoints = 150'000;  // 2.4 MB: more than gRPC's own buffer for retries holds
  const auto result = client_->Infer({.model = "segmenter", .timeout = kLong}, CloudOf(kPoints));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->labels.size(), kPoints);
  EXPECT_EQ(server_->num_infer_calls(), 2u);
}

TEST_F(FailoverTest, TheLastErrorIsTold) {
  server_->RefuseCalls(3);
  const auto result = client_->Infer({.model = "segmenter", .timeout = kLong}, CloudOf(1));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(result.status()), HasSubstr("refused by the test"));
  EXPECT_EQ(server_->num_infer_calls(), 3u);
}

TEST_F(FailoverTest, NoRetriesWhereNoneAreWanted) {
  server_->RefuseCalls(1);
  const auto result = Connect({.max_attempts = 1})->Infer({.model = "segmenter", .timeout = kLong}, CloudOf(1));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(server_->num_infer_calls(), 1u);
}

TEST_F(FailoverTest, AnOverloadedServerIsNotAskedAgain) {
  const auto result = client_->Infer({.model = "full", .timeout = kLong}, CloudOf(1));
  EXPECT_EQ(ErrorReason(result.status()), "QUEUE_FULL");
  EXPECT_EQ(server_->num_infer_calls(), 1u);
}

TEST_F(FailoverTest, CallsAreBalancedAndFindTheServerThatIsLeft) {
  auto other = std::make_unique<FakeServer>();
  const auto client = Connect({.address = absl::StrCat("ipv4:", server_->address(), ",", other->address())});
  const auto ask = [&] { return client->Infer({.model = "segmenter", .timeout = kLong}, CloudOf(1)).status(); };
  EXPECT_TRUE(support::AwaitTrue([&] {  // one connection may be ready before the other
    EXPECT_TRUE(ask().ok());
    return server_->num_infer_calls() > 0 && other->num_infer_calls() > 0;
  }));
  const size_t before = server_->num_infer_calls();
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(ask().ok());
  EXPECT_EQ(server_->num_infer_calls() - before, 10u);
  other.reset();
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(ask().ok());
}

TEST(ServiceConfigTest, SaysWhatGrpcMayDo) {
  EXPECT_EQ(ServiceConfig("localhost:8500", 1), "{}");
  const std::string several = ServiceConfig("dns:///servers:8500", 4);
  EXPECT_THAT(several, HasSubstr("weighted_round_robin"));
  EXPECT_THAT(several, HasSubstr("\"maxAttempts\": 4"));
  EXPECT_THAT(ServiceConfig("localhost:8500", 2), testing::Not(HasSubstr("round_robin")));
}

TEST(FailoverOptionsTest, NamesTheOptionThatIsWrong) {
  for (const auto& [options, text] : std::vector<std::pair<Options, std::string>>{
           {{.max_attempts = 0}, "max_attempts is 0, must be 1 to 5"},
           {{.max_attempts = 6}, "max_attempts is 6"},
           {{.keepalive = absl::Milliseconds(1999)}, "keepalive is 1.999s, must be 2s to 24h, or infinite"},
           {{.keepalive = absl::Hours(25)}, "keepalive is 25h"}}) {
    const auto client = Client::Create(options);
    EXPECT_EQ(client.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Message(client.status()), HasSubstr(text));
  }
  EXPECT_TRUE(Client::Create({.keepalive = absl::InfiniteDuration()}).ok());
  const auto stream =
      (*Client::Create({}))->OpenStream({.model = "m", .reopen_for = absl::Seconds(-1)}, StreamCallbacks());
  EXPECT_THAT(Message(stream.status()), HasSubstr("reopen_for is -1s, must not be negative"));
}

TEST(FailoverOptionsTest, SeveralServersHaveNoCommonPortOfOperators) {
  for (const std::string address : {"dns:///servers:8500", "ipv4:10.0.0.1:8500,10.0.0.2:8500"}) {
    EXPECT_EQ(Options({.address = address}).AdminAddress(), "");
  }
}

TEST_F(FailoverTest, FramesWithoutAResultAreSentAgainInOrder) {
  server_->EndStreams(1, {.num_frames = 4, .num_answers = 2});
  const auto stream = Open({.version = 7, .policy = StreamPolicy::kQueue});
  for (uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(stream->Send(i, CloudOf(1)).ok());
  stream->CloseSends();
  EXPECT_TRUE(record_.AwaitEnd().ok()) << record_.AwaitEnd();
  EXPECT_THAT(record_.order(), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  for (uint64_t i = 0; i < 8; ++i) EXPECT_TRUE(record_.StatusOf(i).ok()) << record_.StatusOf(i);
  EXPECT_THAT(server_->all_frame_ids(), ElementsAre(0, 1, 2, 3, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(server_->num_streams(), 2u);
  EXPECT_EQ(server_->last_stream_config().version(), 7);
  ASSERT_EQ(record_.reopened().size(), 1u);
  EXPECT_EQ(ErrorReason(record_.reopened()[0]), kConnectionLost);
}

TEST_F(FailoverTest, TheNextServerGetsAllPartsOfAFrame) {
  server_->EndStreams(1, {.num_frames = 2});
  const auto stream = Open({.policy = StreamPolicy::kQueue});
  ASSERT_TRUE(stream->SendPart(5, CloudOf(1), /*is_last=*/false).ok());
  ASSERT_TRUE(stream->SendPart(5, CloudOf(2), /*is_last=*/false).ok());  // ends the server's first stream
  EXPECT_TRUE(support::AwaitTrue([&] { return server_->parts().size() == 4; })) << "both again";
  ASSERT_TRUE(stream->SendPart(5, CloudOf(3), /*is_last=*/true).ok());
  ASSERT_TRUE(stream->Send(6, CloudOf(1)).ok());
  stream->CloseSends();
  EXPECT_TRUE(record_.AwaitEnd().ok()) << record_.AwaitEnd();
  EXPECT_THAT(record_.order(), ElementsAre(5, 6));
  EXPECT_TRUE(record_.StatusOf(5).ok()) << record_.StatusOf(5);
  std::vector<uint32_t> indices;
  for (const v1::FramePart& part : server_->parts()) indices.push_back(part.index());
  EXPECT_THAT(indices, ElementsAre(0, 1, 0, 1, 2));
  EXPECT_EQ(record_.reopened().size(), 1u);
}

TEST_F(FailoverTest, AServerThatGoesAwayTakesTheRestOfAFrameAndAnotherTheNextOne) {
  const auto stream = Open({.model = "departing", .policy = StreamPolicy::kQueue});
  for (uint64_t frame = 1; frame <= 3; ++frame) {
    ASSERT_TRUE(stream->SendPart(frame, CloudOf(1), /*is_last=*/false).ok());
    ASSERT_TRUE(support::AwaitTrue([&] { return server_->parts().size() == 2 * frame - 1; }));
    ASSERT_TRUE(stream->SendPart(frame, CloudOf(2), /*is_last=*/true).ok());
    ASSERT_TRUE(record_.AwaitResults(frame));
    EXPECT_TRUE(record_.StatusOf(frame).ok()) << record_.StatusOf(frame);
  }
  stream->CloseSends();
  EXPECT_TRUE(record_.AwaitEnd().ok()) << record_.AwaitEnd();
  EXPECT_EQ(server_->parts().size(), 6u) << "no part was sent twice";
}

TEST_F(FailoverTest, UnderLatestTheNewestFrameIsSentAgain) {
  server_->EndStreams(1, {.num_frames = 3});
  const auto stream = Open({});
  for (uint64_t i = 1; i <= 3; ++i) {
    ASSERT_TRUE(stream->Send(i, CloudOf(1)).ok());
    // Frame 3 ends the server's first stream, so the test does not wait for it.
    ASSERT_TRUE(i == 3 || support::AwaitTrue([&] { return server_->all_frame_ids().size() == i; }));
  }
  EXPECT_TRUE(record_.AwaitResults(3));
  for (uint64_t i = 1; i <= 2; ++i) EXPECT_EQ(ErrorReason(record_.StatusOf(i)), kSuperseded) << i;
  EXPECT_TRUE(record_.StatusOf(3).ok()) << record_.StatusOf(3);
  EXPECT_THAT(server_->all_frame_ids(), ElementsAre(1, 2, 3, 3));
}

TEST_F(FailoverTest, AServerThatGoesAwayIsFollowedByAnother) {
  server_->EndStreams(4, {.num_frames = 2, .num_answers = 1, .drains = true});
  const auto stream = Open({.policy = StreamPolicy::kQueue});
  for (uint64_t i = 0; i < 6; ++i) ASSERT_TRUE(stream->Send(i, CloudOf(1)).ok());
  stream->CloseSends();
  EXPECT_TRUE(record_.AwaitEnd().ok()) << record_.AwaitEnd();
  EXPECT_THAT(record_.order(), ElementsAre(0, 1, 2, 3, 4, 5));
  for (uint64_t i = 0; i < 6; ++i) EXPECT_TRUE(record_.StatusOf(i).ok()) << record_.StatusOf(i);
  ASSERT_EQ(record_.reopened().size(), 4u);
  for (const absl::Status& why : record_.reopened()) EXPECT_EQ(ErrorReason(why), "DRAINING");
}

TEST_F(FailoverTest, AFrameThatMayEndServersIsGivenUp) {
  server_->EndStreams(3, {.num_frames = 1});
  const auto stream = Open({.policy = StreamPolicy::kQueue});
  ASSERT_TRUE(stream->Send(0, CloudOf(1)).ok());
  EXPECT_TRUE(record_.AwaitResults(1));
  EXPECT_EQ(ErrorReason(record_.StatusOf(0)), kConnectionLost) << record_.StatusOf(0);
  ASSERT_TRUE(stream->Send(1, CloudOf(1)).ok());
  EXPECT_TRUE(record_.AwaitResults(2));
  EXPECT_TRUE(record_.StatusOf(1).ok()) << record_.StatusOf(1);
  EXPECT_THAT(server_->all_frame_ids(), ElementsAre(0, 0, 0, 1));
}

TEST_F(FailoverTest, AnotherServerTakesOver) {
  const auto stream = Open({.policy = StreamPolicy::kQueue});
  ASSERT_TRUE(stream->Send(0, CloudOf(1)).ok());
  EXPECT_TRUE(record_.AwaitResults(1));
  const int port = PortOf(*server_);
  server_.reset();
  ASSERT_TRUE(stream->Send(1, CloudOf(1)).ok());
  const FakeServer replacement(port);
  EXPECT_TRUE(record_.AwaitResults(2));
  EXPECT_TRUE(record_.StatusOf(1).ok()) << record_.StatusOf(1);
  stream->CloseSends();
  EXPECT_TRUE(record_.AwaitEnd().ok()) << record_.AwaitEnd();
  EXPECT_THAT(replacement.all_frame_ids(), ElementsAre(1));
}

// A stream that loses its connection is opened again on another one, which breaks at the same moment. gRPC then begins
// the call anew by itself. When that goes wrong depends on the threads' timing, so there are many streams and rounds.
TEST_F(FailoverTest, StreamsThatAreOpenedOnABreakingConnectionSendAllFrames) {
  constexpr size_t kStreams = 32, kRounds = 50;
  // Without pings: the server would end the connection of a client that only pings.
  const auto client = Connect({.num_channels = 4, .keepalive = absl::InfiniteDuration()});
  std::deque<Record> records(kStreams);
  std::vector<std::unique_ptr<Stream>> streams;
  for (Record& record : records) {
    auto stream = client->OpenStream({.model = "segmenter", .policy = StreamPolicy::kQueue, .reopen_for = kLong},
                                     record.Callbacks());
    ASSERT_TRUE(stream.ok()) << stream.status();
    streams.push_back(*std::move(stream));
  }
  for (size_t round = 0; round < kRounds; ++round) {
    for (const auto& stream : streams) ASSERT_TRUE(stream->Send(round, CloudOf(1)).ok());
    for (const Record& record : records) ASSERT_TRUE(record.AwaitResults(round + 1)) << "in round " << round;
    BreakConnections(PortOf(*server_));
  }
  for (const Record& record : records) {
    for (size_t round = 0; round < kRounds; ++round) EXPECT_TRUE(record.StatusOf(round).ok()) << record.StatusOf(round);
  }
}

TEST_F(FailoverTest, ItGivesUpAfterItsTime) {
  const auto stream = Open({.policy = StreamPolicy::kQueue, .reopen_for = absl::Seconds(1)});
  ASSERT_TRUE(stream->Send(0, CloudOf(1)).ok());
  EXPECT_TRUE(record_.AwaitResults(1));
  server_.reset();
  ASSERT_TRUE(support::AwaitTrue([&] { return !record_.reopened().empty() || record_.end(); }));
  const absl::Status sent = stream->Send(1, CloudOf(1));
  EXPECT_EQ(record_.AwaitEnd().code(), absl::StatusCode::kUnavailable);
  if (sent.ok()) {
    EXPECT_EQ(record_.StatusOf(1), record_.AwaitEnd());
  }
  EXPECT_EQ(ErrorReason(stream->Send(2, CloudOf(1))), kStreamEnded);
}

TEST_F(FailoverTest, QueueRefusesMoreThanMayWaitForTheNextServer) {
  const auto stream = Open({.policy = StreamPolicy::kQueue, .max_unsent_frames = 2});
  ASSERT_TRUE(stream->Send(0, CloudOf(1)).ok());
  EXPECT_TRUE(record_.AwaitResults(1));
  server_.reset();
  ASSERT_TRUE(support::AwaitTrue([&] { return record_.reopened().size() >= 2; }));
  absl::Status status;
  for (uint64_t i = 1; i < 50 && status.ok(); ++i) status = stream->Send(i, CloudOf(1));
  EXPECT_EQ(ErrorReason(status), kTooManyUnsent) << status;
  EXPECT_EQ(ErrorReason(stream->Send(1, CloudOf(1))), kDuplicateFrame);
}

TEST_F(FailoverTest, AFinishedStreamNeedsNoOtherServer) {
  server_->EndStreams(1, {.num_frames = 1, .num_answers = 1});
  const auto stream = Open({.policy = StreamPolicy::kQueue});
  ASSERT_TRUE(stream->Send(0, CloudOf(1)).ok());
  stream->CloseSends();
  EXPECT_TRUE(record_.AwaitEnd().ok()) << record_.AwaitEnd();
  EXPECT_EQ(server_->num_streams(), 1u);
  EXPECT_THAT(record_.reopened(), IsEmpty());
}

TEST_F(FailoverTest, OtherErrorsEndIt) {
  for (const auto& [model, reason] : std::vector<std::pair<std::string, std::string>>{
           {"missing", "MODEL_NOT_FOUND"}, {"stranger", std::string(kMalformedResponse)}}) {
    Record record;
    auto stream = client_->OpenStream({.model = model, .reopen_for = kLong}, record.Callbacks());
    ASSERT_TRUE(stream.ok());
    (*stream)->Send(0, CloudOf(1)).IgnoreError();
    EXPECT_EQ(ErrorReason(record.AwaitEnd()), reason);
    EXPECT_THAT(record.reopened(), IsEmpty());
  }
}

TEST_F(FailoverTest, ItsDeadlineHoldsForAllCalls) {
  const auto stream = Open({.policy = StreamPolicy::kQueue, .timeout = absl::Seconds(5)});
  ASSERT_TRUE(stream->Send(0, CloudOf(1)).ok());
  EXPECT_TRUE(record_.AwaitResults(1));
  server_.reset();
  ASSERT_TRUE(stream->Send(1, CloudOf(1)).ok());
  const absl::Status end = record_.AwaitEnd();
  EXPECT_EQ(end.code(), absl::StatusCode::kDeadlineExceeded) << end;
  EXPECT_EQ(ErrorReason(end), kClientTimeout);
  EXPECT_EQ(record_.StatusOf(1), end);
  EXPECT_GE(record_.reopened().size(), 2u);
}

TEST_F(FailoverTest, ItCanBeEndedWhileItLooksForAServer) {
  for (const bool cancels : {true, false}) {
    Record record;
    auto server = std::make_unique<FakeServer>();
    const auto client = Connect({.address = server->address()});
    auto stream = client->OpenStream({.model = "segmenter", .reopen_for = kLong}, record.Callbacks());
    ASSERT_TRUE(stream.ok());
    ASSERT_TRUE((*stream)->Send(0, CloudOf(1)).ok());
    EXPECT_TRUE(record.AwaitResults(1));
    server.reset();
    ASSERT_TRUE(support::AwaitTrue([&] { return record.reopened().size() >= 3; }));
    ASSERT_TRUE((*stream)->Send(1, CloudOf(1)).ok());
    if (cancels) (*stream)->Cancel();
    stream->reset();
    ASSERT_TRUE(record.end().has_value());
    EXPECT_EQ(record.end()->code(), absl::StatusCode::kCancelled) << *record.end();
    EXPECT_EQ(record.StatusOf(1).code(), absl::StatusCode::kCancelled);
  }
}

TEST(ReopeningTest, WaitsLongerEachTimeAndGivesUp) {
  const absl::Status lost = WithReason(absl::UnavailableError("lost"), kConnectionLost);
  const absl::Time start = absl::UnixEpoch();
  Reopening reopening(absl::Seconds(5));
  reopening.Begin(start);
  absl::Time now = start;
  std::vector<absl::Duration> delays;
  while (const auto delay = reopening.Delay(lost, now)) {
    delays.push_back(*delay);
    now += *delay;
    reopening.Begin(now);
  }
  const auto ms = [](int value) { return absl::Milliseconds(value); };
  EXPECT_THAT(delays, ElementsAre(ms(0), ms(100), ms(200), ms(400), ms(800), ms(1000), ms(1000), ms(1000)));
  reopening.Hear();
  EXPECT_EQ(reopening.Delay(lost, now), absl::ZeroDuration());
  now += absl::Seconds(1);
  reopening.Begin(now);
  EXPECT_EQ(reopening.Delay(lost, now + absl::Hours(1)), absl::ZeroDuration()) << "a call that was open for long";
}

TEST(ReopeningTest, OnlyWhereAnotherServerMayHelp) {
  Reopening wanted(absl::Seconds(5));
  wanted.Begin(absl::UnixEpoch());
  for (const absl::Status& status : {absl::OkStatus(), absl::NotFoundError(""), absl::DeadlineExceededError(""),
                                     absl::CancelledError(""), WithReason(absl::UnavailableError(""), kTlsFailed)}) {
    EXPECT_EQ(wanted.Delay(status, absl::UnixEpoch()), std::nullopt) << status;
  }
  Reopening unwanted(absl::ZeroDuration());
  unwanted.Begin(absl::UnixEpoch());
  EXPECT_EQ(unwanted.Delay(absl::UnavailableError(""), absl::UnixEpoch()), std::nullopt);
}

}  // namespace
}  // namespace voxserve::client::failover_test
