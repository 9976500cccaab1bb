#include "client/cpp/api/client.h"

#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "tests/client/api/clouds.h"
#include "tests/client/fake_server.h"
#include "tests/support/await_true.h"

namespace voxserve::client::client_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

class ClientTest : public testing::Test {
 protected:
  std::unique_ptr<Client> Connect(Options options = {}) {
    options.address = options.admin_address = server_.address();
    auto client = Client::Create(options);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }

  FakeServer server_;
};

TEST_F(ClientTest, LabelsEveryPoint) {
  const auto client = Connect();
  const auto result = client->Infer({.model = "segmenter", .request_id = "scan-7"},
                                    Cloud({0.5f, 1.5f, 2.5f, std::numeric_limits<float>::quiet_NaN(), -4.0f}));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->labels, ElementsAre(0, 1, 2, 255, 1));
  EXPECT_EQ(result->bytes_per_label, 1);
  EXPECT_EQ(result->model, "segmenter");
  EXPECT_EQ(result->version, 2);
  EXPECT_EQ(result->device, "cpu");
  EXPECT_EQ(result->request_id, "scan-7");
  EXPECT_EQ(result->ignore_label, 255);
  EXPECT_EQ(result->num_classes, 3);
  EXPECT_EQ(result->counts.used(), 4u);
  EXPECT_EQ(result->counts.invalid(), 1u);
  ASSERT_EQ(result->stages.size(), 2u);
  EXPECT_EQ(result->stages[1].name, "features");
  EXPECT_EQ(result->stages[1].duration, absl::Microseconds(2500));
  EXPECT_GT(result->round_trip, absl::ZeroDuration());
  EXPECT_TRUE(result->scores.empty());
}

TEST_F(ClientTest, SendsTheCloudAsItIs) {
  const auto client = Connect();
  PointCloud cloud = Cloud({1, 2});
  cloud.set_frame_id("lidar");
  ASSERT_TRUE(client->Infer({.model = "segmenter", .version = 1}, cloud).ok());
  EXPECT_EQ(server_.last_request().cloud().SerializeAsString(), cloud.SerializeAsString());
  EXPECT_EQ(server_.last_request().version(), 1);
}

TEST_F(ClientTest, SendsTheTraceparentOfEachCall) {
  std::string traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  const auto client = Connect({.traceparent = [&] { return traceparent; }});
  ASSERT_TRUE(client->Infer({.model = "segmenter"}, Cloud({1})).ok());
  EXPECT_EQ(server_.last_traceparent(), traceparent);
  for (const char* none : {"", "two words", "line\n", "\xff"}) {
    traceparent = none;
    ASSERT_TRUE(client->Infer({.model = "segmenter"}, Cloud({1})).ok()) << none;
    EXPECT_EQ(server_.last_traceparent(), "");
  }
  traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-b7ad6b7169203331-00";
  absl::Notification ended;
  const auto stream =
      client->OpenStream({.model = "segmenter"}, {.on_end = [&](const absl::Status&) { ended.Notify(); }});
  ASSERT_TRUE(stream.ok()) << stream.status();
  (*stream)->CloseSends();
  ASSERT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_EQ(server_.last_traceparent(), traceparent);
}

TEST_F(ClientTest, LabelsNoPoints) {
  const auto result = Connect()->Infer({.model = "segmenter"}, Cloud({}));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->labels.empty());
}

TEST_F(ClientTest, ReadsTwoByteLabels) {
  const auto result = Connect()->Infer({.model = "wide"}, Cloud({0, 1, 2}));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->labels, ElementsAre(300, 301, 302));
  EXPECT_EQ(result->bytes_per_label, 2);
}

TEST_F(ClientTest, ReturnsScoresWhenAsked) {
  const auto result = Connect()->Infer({.model = "segmenter", .return_scores = true}, Cloud({1, 2}));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->scores, ElementsAre(-1, 1, -1, -1, -1, 1));
}

TEST_F(ClientTest, ReturnsSampledPointsWhenAsked) {
  const auto client = Connect();
  const auto at_index = client->Infer(
      {.model = "segmenter", .sample = FarthestPoints{.num_points = 2, .start_index = 3}}, Cloud({0, 1, 2, 3}));
  ASSERT_TRUE(at_index.ok()) << at_index.status();
  EXPECT_THAT(at_index->sampled_points, ElementsAre(3, 0));
  EXPECT_EQ(server_.last_request().sample().start_index(), 3u);
  EXPECT_EQ(server_.last_request().sample().use(), v1::FarthestPointSample::USE_RETURN);
  const auto by_seed = client->Infer(
      {.model = "segmenter",
       .sample = FarthestPoints{.num_points = 3, .seed = ~uint64_t{0}, .use = FarthestPoints::Use::kNetwork}},
      Cloud({0, 1, 2, 3}));
  ASSERT_TRUE(by_seed.ok()) << by_seed.status();
  EXPECT_THAT(by_seed->sampled_points, ElementsAre(1, 2, 3));
  EXPECT_EQ(by_seed->counts.unsampled(), 1u);
  EXPECT_EQ(server_.last_request().sample().seed(), ~uint64_t{0});
  EXPECT_EQ(server_.last_request().sample().use(), v1::FarthestPointSample::USE_NETWORK);
  const auto without = client->Infer({.model = "segmenter"}, Cloud({0, 1}));
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_THAT(without->sampled_points, testing::IsEmpty());
  EXPECT_FALSE(server_.last_request().has_sample());
}

TEST_F(ClientTest, SampledPointsThatWereNotAskedForAreMalformed) {
  const auto client = Connect();
  const auto more = client->Infer({.model = "sampler", .sample = FarthestPoints{.num_points = 2}}, Cloud({0, 1, 2}));
  EXPECT_EQ(ErrorReason(more.status()), kMalformedResponse);
  EXPECT_THAT(Message(more.status()), HasSubstr("3 sampled points in place of 2"));
  const auto unasked = client->Infer({.model = "sampler"}, Cloud({0, 1, 2}));
  EXPECT_EQ(ErrorReason(unasked.status()), kMalformedResponse);
  const auto beyond = client->Infer({.model = "far", .sample = FarthestPoints{.num_points = 2}}, Cloud({0, 1, 2}));
  EXPECT_EQ(ErrorReason(beyond.status()), kMalformedResponse);
  EXPECT_THAT(Message(beyond.status()), HasSubstr("point 3 sampled of 3"));
}

TEST_F(ClientTest, SendsAndReceivesMoreThanFourMegabytes) {
  const uint64_t num_points = 1'000'000;  // 16 MB of points, 12 MB of scores
  const auto result = Connect()->Infer({.model = "segmenter", .return_scores = true}, CloudOf(num_points));
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->labels.size(), num_points);
  for (uint64_t i = 0; i < num_points; ++i) ASSERT_EQ(result->labels[i], i % 1000 % 3);
  EXPECT_EQ(result->scores.size(), 3 * num_points);
}

TEST_F(ClientTest, RefusesWhatNoMessageHoldsWithoutSendingIt) {
  const auto client = Connect({.max_message_bytes = 1 << 16});
  const auto result = client->Infer({.model = "segmenter"}, CloudOf(5000));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(result.status()), kMessageTooLarge);
  EXPECT_THAT(Message(result.status()), testing::AllOf(HasSubstr("80000 bytes"), HasSubstr("65536")));
  EXPECT_EQ(server_.num_connections(), 0u);
}

TEST_F(ClientTest, ExplainsAnAnswerThatIsTooLarge) {
  const auto client = Connect({.max_message_bytes = 1 << 16});
  // The request has 24 kB of points. The answer has 6 kB of labels and 72 kB of scores, more than 64 KiB together.
  std::vector<float> points(6000);
  const auto result = client->Infer({.model = "segmenter", .return_scores = true},
                                    PointCloudFromFloats({"x"}, points.data(), points.size()));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(result.status()), kMessageTooLarge);
  EXPECT_THAT(Message(result.status()), HasSubstr("max_message_bytes"));
}

TEST_F(ClientTest, PassesTheServersErrorsOn) {
  const auto result = Connect()->Infer({.model = "full"}, Cloud({1}));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(result.status().message(), "the queue is full");
  EXPECT_EQ(ErrorReason(result.status()), "QUEUE_FULL");
  EXPECT_EQ(RetryDelay(result.status()), absl::Milliseconds(250));
}

TEST_F(ClientTest, AModelThatLoadsIsNotAMissingServer) {
  const auto result = Connect()->Infer({.model = "loading"}, Cloud({1}));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(result.status()), "MODEL_LOADING");
  EXPECT_EQ(RetryDelay(result.status()), absl::InfiniteDuration());
}

TEST_F(ClientTest, NoServerAtTheAddress) {
  const std::string address = UnusedAddress();
  const auto client = Client::Create({.address = address});
  ASSERT_TRUE(client.ok()) << client.status();
  const absl::Status infer = (*client)->Infer({.model = "segmenter"}, Cloud({1})).status();
  for (const absl::Status& status : {infer, (*client)->ListModels().status(), (*client)->GetModel("segmenter").status(),
                                     (*client)->CheckHealth().status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(ErrorReason(status), kNoServer);
    EXPECT_THAT(Message(status), HasSubstr("no server at " + address));
  }
}

TEST_F(ClientTest, FindsAServerThatStartsLater) {
  const std::string address = UnusedAddress();
  const auto client = Client::Create({.address = address});
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ(ErrorReason((*client)->ListModels().status()), kNoServer);
  const FakeServer server(std::stoi(address.substr(address.rfind(':') + 1)));
  absl::Status status;
  EXPECT_TRUE(support::AwaitTrue([&] {
    status = (*client)->ListModels().status();
    return !absl::IsUnavailable(status);
  }));
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(ClientTest, GivesUpAtTheDeadlineAndSoDoesTheServer) {
  const auto client = Connect();
  const auto result = client->Infer({.model = "slow", .timeout = absl::Milliseconds(100)}, Cloud({1}));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ErrorReason(result.status()), kClientTimeout);
  EXPECT_THAT(Message(result.status()), HasSubstr("no answer from " + server_.address() + " within 100ms"));
}

TEST_F(ClientTest, TheDefaultTimeoutHoldsWhereTheCallNamesNone) {
  const auto client = Connect({.default_timeout = absl::Milliseconds(100)});
  EXPECT_EQ(client->Infer({.model = "slow"}, Cloud({1})).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(ClientTest, RefusesAnAnswerThatContradictsTheRequest) {
  const auto result = Connect()->Infer({.model = "liar"}, Cloud({1, 2, 3}));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ErrorReason(result.status()), kMalformedResponse);
  EXPECT_THAT(Message(result.status()), HasSubstr("2 bytes of labels for 3 points"));
}

TEST_F(ClientTest, RefusesCallsThatNameNoModelOrNoTime) {
  const auto client = Connect();
  EXPECT_EQ(client->Infer({}, Cloud({1})).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client->Infer({.model = "segmenter", .timeout = absl::ZeroDuration()}, Cloud({1})).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ClientTest, RunsCallsSideBySide) {
  const auto client = Connect({.num_channels = 2});
  constexpr int kCalls = 40;
  absl::BlockingCounter done(kCalls);
  std::atomic<int> num_right{0};
  for (int i = 0; i < kCalls; ++i) {
    client->InferAsync({.model = "segmenter"}, Cloud({static_cast<float>(i)}),
                       [&, i](absl::StatusOr<Segmentation> result) {
                         if (result.ok() && result->labels == std::vector<uint16_t>{static_cast<uint16_t>(i % 3)}) {
                           ++num_right;
                         }
                         done.DecrementCount();
                       });
  }
  done.Wait();
  EXPECT_EQ(num_right, kCalls);
}

TEST_F(ClientTest, AsynchronousCallsFailAsTheOthersDo) {
  const auto client = Connect();
  for (const auto& [model, code] :
       std::vector<std::pair<std::string, absl::StatusCode>>{{"", absl::StatusCode::kInvalidArgument},
                                                             {"full", absl::StatusCode::kResourceExhausted},
                                                             {"none", absl::StatusCode::kNotFound}}) {
    absl::Notification done;
    client->InferAsync({.model = model}, Cloud({1}), [&, code = code](absl::StatusOr<Segmentation> result) {
      EXPECT_EQ(result.status().code(), code) << result.status();
      done.Notify();
    });
    done.WaitForNotification();
  }
}

TEST_F(ClientTest, ItsEndCancelsWhatIsUnderWay) {
  auto client = Connect();
  absl::StatusOr<Segmentation> outcome = absl::UnknownError("not called");
  client->InferAsync({.model = "slow", .timeout = absl::InfiniteDuration()}, Cloud({1}),
                     [&](absl::StatusOr<Segmentation> result) { outcome = std::move(result); });
  client.reset();
  EXPECT_EQ(outcome.status().code(), absl::StatusCode::kCancelled) << outcome.status();
}

// gRPC ends the process if one of its own threads destroys the last channel.
TEST_F(ClientTest, WhatACallbackOwnsMayOutliveTheClient) {
  auto client = Connect();
  absl::Notification is_gone, was_answered, was_destroyed;
  const auto destroy = [&](int* owned) {
    is_gone.WaitForNotification();
    delete owned;
    was_destroyed.Notify();
  };
  client->InferAsync(
      {.model = "segmenter"}, Cloud({1}),
      [&, owned = std::shared_ptr<int>(new int(1), destroy)](const absl::StatusOr<Segmentation>& result) {
        EXPECT_TRUE(result.ok()) << result.status();
        was_answered.Notify();
      });
  was_answered.WaitForNotification();
  client.reset();
  is_gone.Notify();
  was_destroyed.WaitForNotification();
  EXPECT_TRUE(Connect()->Infer({.model = "segmenter"}, Cloud({1})).ok());
}

TEST_F(ClientTest, ChannelsAreConnectionsOfTheirOwn) {
  const auto client = Connect({.num_channels = 3});
  for (int i = 0; i < 9; ++i) ASSERT_TRUE(client->Infer({.model = "segmenter"}, Cloud({1})).ok());
  EXPECT_EQ(server_.num_connections(), 3u);
  const auto single = Connect();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(single->Infer({.model = "segmenter"}, Cloud({1})).ok());
  EXPECT_EQ(server_.num_connections(), 4u);
}

TEST_F(ClientTest, ListsAndDescribesModels) {
  const auto client = Connect();
  const auto models = client->ListModels();
  ASSERT_TRUE(models.ok()) << models.status();
  ASSERT_EQ(models->size(), 3u);
  EXPECT_THAT((*models)[0].problems(), ElementsAre(HasSubstr("conv1"), HasSubstr("conv2")));
  const auto model = client->GetModel("segmenter", 1);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->version(), 1);
  EXPECT_EQ(model->classes(1).name(), "car");
  EXPECT_EQ(ErrorReason(client->GetModel("missing").status()), "MODEL_NOT_FOUND");
}

TEST_F(ClientTest, LoadsAndUnloadsModels) {
  const auto client = Connect();
  EXPECT_THAT(client->LoadModel("segmenter").value(), ElementsAre(1, 2));
  EXPECT_THAT(client->LoadModel("segmenter", 7).value(), ElementsAre(7));
  EXPECT_THAT(client->UnloadModel("segmenter", 2).value(), ElementsAre(2));
  const absl::Status broken = client->LoadModel("broken").status();
  EXPECT_EQ(broken.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorReason(broken), "BAD_MODEL");
  EXPECT_EQ(ErrorReason(client->UnloadModel("missing").status()), "MODEL_NOT_FOUND");
  EXPECT_EQ(ErrorReason(client->LoadModel("slow", 0, absl::Milliseconds(100)).status()), "CLIENT_TIMEOUT");
  EXPECT_EQ(client->UnloadModel("segmenter", 0, absl::ZeroDuration()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ClientTest, TellsWhetherTheServerServes) {
  const auto client = Connect();
  server_.SetServing(true);
  EXPECT_EQ(*client->CheckHealth(), Health::kServing);
  server_.SetServing(false);
  EXPECT_EQ(*client->CheckHealth(), Health::kNotServing);
}

TEST(ClientOptionsTest, NamesTheOptionThatIsWrong) {
  for (const auto& [options, name] :
       std::vector<std::pair<Options, std::string>>{{{.address = ""}, "address"},
                                                    {{.num_channels = 0}, "num_channels"},
                                                    {{.num_channels = 1000}, "num_channels"},
                                                    {{.max_message_bytes = 100}, "max_message_bytes"},
                                                    {{.max_message_bytes = int64_t{1} << 40}, "max_message_bytes"},
                                                    {{.default_timeout = absl::ZeroDuration()}, "default_timeout"}}) {
    const auto client = Client::Create(options);
    EXPECT_EQ(client.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Message(client.status()), HasSubstr(name));
  }
}

TEST(ClientOptionsTest, NamesTheIdentityThatCannotBeUsed) {
  const std::string missing = "/no/such/file";
  for (const auto& [options, text] : std::vector<std::pair<Options, std::string>>{
           {{.tls_ca = missing}, "tls_ca: /no/such/file cannot be read: No such file"},
           {{.tls_certificate = missing}, "tls_certificate and tls_key need each other"},
           {{.tls_key = missing}, "tls_certificate and tls_key need each other"},
           {{.tls_certificate = missing, .tls_key = missing}, "tls_certificate needs tls_ca"},
           {{.token = "two words"}, "no header can carry"},
           {{.token = "line\n"}, "no header can carry"},
           {{.address = "truck-7:8500", .token = "secret"}, "token needs tls_ca"},
           {{.address = "127.example.com:8500", .token = "secret"}, "token needs tls_ca"},
           {{.admin_address = "truck-7:8501", .token = "secret"}, "token needs tls_ca"}}) {
    const auto client = Client::Create(options);
    EXPECT_EQ(client.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(Message(client.status()), HasSubstr(text));
  }
}

TEST(ClientOptionsTest, TheAdminAddressIsThePortAbove) {
  EXPECT_EQ(Options().AdminAddress(), "localhost:8501");
  EXPECT_EQ(Options({.address = "[::1]:9000"}).AdminAddress(), "[::1]:9001");
  EXPECT_EQ(Options({.address = "a:1", .admin_address = "b:2"}).AdminAddress(), "b:2");
  for (const std::string address : {"unix:/tmp/x", "host", "host:65535", "dns:///name", "host:+8500", "host: 8500"}) {
    EXPECT_EQ(Options({.address = address}).AdminAddress(), "");
    const auto client = *Client::Create({.address = address});
    EXPECT_THAT(Message(client->LoadModel("m").status()), HasSubstr("admin_address is needed"));
    EXPECT_THAT(Message(client->TunePlan({.model = "m"}, {}).status()), HasSubstr("admin_address is needed"));
  }
}

TEST(ErrorTest, AStatusWithoutDetailsHasNoReason) {
  EXPECT_EQ(ErrorReason(absl::OkStatus()), "");
  EXPECT_EQ(ErrorReason(absl::InternalError("x")), "");
  EXPECT_EQ(RetryDelay(absl::InternalError("x")), absl::InfiniteDuration());
  EXPECT_EQ(ErrorReason(WithReason(absl::InternalError("x"), "WHY")), "WHY");
}

}  // namespace
}  // namespace voxserve::client::client_test
