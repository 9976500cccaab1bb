// Tests DecodeStreamConfig (a stream's config from its message) and CheckStreamConfig (whether a model can serve it).

#include "server/services/stream_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "engine/base/error_reason.h"
#include "server/codec/codec.h"

namespace voxserve::stream_config_test {
namespace {

using testing::HasSubstr;

TEST(StreamConfigTest, HasDefaults) {
  v1::StreamConfig message;
  message.set_model("m");
  const absl::StatusOr<StreamSession::Config> config = DecodeStreamConfig(message);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model, "m");
  EXPECT_EQ(config->policy, StreamPolicy::kLatest);
  EXPECT_EQ(config->frame_timeout, absl::InfiniteDuration());
  EXPECT_EQ(config->max_queued_frames, 4);
  EXPECT_FALSE(config->sweeps.has_value());
  EXPECT_FALSE(config->sample.has_value());
}

TEST(StreamConfigTest, TakesWhatTheClientSays) {
  v1::StreamConfig message;
  message.set_version(7);
  message.set_return_scores(true);
  message.set_priority(2);
  message.set_policy(v1::STREAM_POLICY_QUEUE);
  message.mutable_frame_timeout()->set_seconds(1);
  message.mutable_frame_timeout()->set_nanos(500'000'000);
  message.set_max_queued_frames(64);
  message.mutable_sweeps()->set_num_sweeps(10);
  message.mutable_sweeps()->set_age_feature("age");
  absl::StatusOr<StreamSession::Config> config = DecodeStreamConfig(message);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->version, 7);
  EXPECT_TRUE(config->return_scores);
  EXPECT_EQ(config->priority, 2);
  EXPECT_EQ(config->policy, StreamPolicy::kQueue);
  EXPECT_EQ(config->frame_timeout, absl::Milliseconds(1500));
  EXPECT_EQ(config->max_queued_frames, 64);
  ASSERT_TRUE(config->sweeps.has_value());
  EXPECT_EQ(config->sweeps->num_sweeps, 10);
  EXPECT_EQ(config->sweeps->max_age, absl::Seconds(2));
  EXPECT_EQ(config->age_feature, "age");

  message.mutable_sweeps()->mutable_max_age()->set_nanos(1);
  config = DecodeStreamConfig(message);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->sweeps->max_age, absl::Nanoseconds(1));
}

TEST(StreamConfigTest, TakesASampleOfEveryFrame) {
  v1::StreamConfig message;
  message.mutable_sample()->set_num_points(9);
  message.mutable_sample()->set_seed(5);
  const absl::StatusOr<StreamSession::Config> config = DecodeStreamConfig(message);
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_TRUE(config->sample.has_value());
  EXPECT_EQ(config->sample->num_points, 9u);
  EXPECT_EQ(config->sample->seed, 5u);

  message.mutable_sample()->set_use(static_cast<v1::FarthestPointSample::Use>(9));
  EXPECT_EQ(ReasonOf(DecodeStreamConfig(message).status()), "BAD_SAMPLE");
}

TEST(StreamConfigTest, RefusesWhatIsOutOfRange) {
  const struct {
    std::function<void(v1::StreamConfig&)> spoil;
    const char* text;
  } cases[] = {
      {[](v1::StreamConfig& c) { c.set_policy(static_cast<v1::StreamPolicy>(9)); }, "policy is 9"},
      {[](v1::StreamConfig& c) { c.set_max_queued_frames(65); }, "max_queued_frames is 65"},
      {[](v1::StreamConfig& c) { c.set_max_queued_frames(UINT32_MAX); }, "max_queued_frames is 4294967295"},
      {[](v1::StreamConfig& c) { c.mutable_frame_timeout(); }, "frame_timeout is 0 s"},
      {[](v1::StreamConfig& c) { c.mutable_frame_timeout()->set_seconds(-1); }, "frame_timeout is -1 s"},
      {[](v1::StreamConfig& c) { c.mutable_frame_timeout()->set_nanos(-1); }, "-1 ns"},
      {[](v1::StreamConfig& c) { c.mutable_frame_timeout()->set_nanos(1'000'000'000); }, "1000000000 ns"},
      {[](v1::StreamConfig& c) { c.mutable_frame_timeout()->set_seconds(INT64_MAX); }, "frame_timeout"},
      {[](v1::StreamConfig& c) { c.mutable_sweeps(); }, "num_sweeps is 0"},
      {[](v1::StreamConfig& c) { c.mutable_sweeps()->set_num_sweeps(65); }, "num_sweeps is 65"},
      {[](v1::StreamConfig& c) {
         c.mutable_sweeps()->set_num_sweeps(2);
         c.mutable_sweeps()->mutable_max_age()->set_seconds(-2);
       },
       "sweeps.max_age is -2 s"},
      {[](v1::StreamConfig& c) {
         c.mutable_sweeps()->set_num_sweeps(2);
         c.mutable_sweeps()->mutable_max_age()->set_seconds(60);
         c.mutable_sweeps()->mutable_max_age()->set_nanos(1);
       },
       "must be at most 1m"},
      {[](v1::StreamConfig& c) {
         c.mutable_sweeps()->set_num_sweeps(2);
         c.mutable_sample()->set_num_points(9);
       },
       "a sample is taken of whole scans"},
  };
  for (const auto& [spoil, text] : cases) {
    v1::StreamConfig message;
    spoil(message);
    const absl::Status status = DecodeStreamConfig(message).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(ReasonOf(status), "BAD_STREAM") << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
}

// Returns a model with two priority levels and without scores. Its axes are z, y and x, its features x, y, intensity
// and age.
ModelVersionInfo ReadyModel() {
  return {.name = "m",
          .version = 3,
          .state = ModelState::kReady,
          .axes = {"z", "y", "x"},
          .features = {{.name = "x"}, {.name = "y"}, {.name = "intensity"}, {.name = "age"}},
          .priority_levels = 2};
}

TEST(StreamConfigTest, WhatAModelServesIsFine) {
  ModelVersionInfo model = ReadyModel();
  StreamSession::Config config;
  config.priority = 1;
  EXPECT_TRUE(CheckStreamConfig(model, config).ok());
  config.sweeps.emplace();
  EXPECT_TRUE(CheckStreamConfig(model, config).ok()) << "without an age";
  config.age_feature = std::string("age");
  EXPECT_TRUE(CheckStreamConfig(model, config).ok());
  model.has_scores = true;
  config.return_scores = true;
  EXPECT_TRUE(CheckStreamConfig(model, config).ok());
}

TEST(StreamConfigTest, WhatNoFrameWouldGetIsRefused) {
  const struct {
    std::function<void(ModelVersionInfo&, StreamSession::Config&)> spoil;
    absl::StatusCode code;
    const char* reason;
    const char* text;
  } cases[] = {
      {[](ModelVersionInfo& m, StreamSession::Config&) { m.state = ModelState::kLoading; },
       absl::StatusCode::kUnavailable, "MODEL_LOADING", "still loading"},
      {[](ModelVersionInfo&, StreamSession::Config& c) { c.priority = 2; }, absl::StatusCode::kInvalidArgument,
       "BAD_PRIORITY", "priority is 2; model \"m\" has 2 levels, from 0"},
      {[](ModelVersionInfo&, StreamSession::Config& c) { c.return_scores = true; }, absl::StatusCode::kInvalidArgument,
       "UNSUPPORTED_OUTPUT", "no scores per point"},
      {[](ModelVersionInfo&, StreamSession::Config& c) { c.tensors = {"a"}; }, absl::StatusCode::kInvalidArgument,
       "UNSUPPORTED_OUTPUT", "no tensor \"a\"; it has none"},
      {[](ModelVersionInfo&, StreamSession::Config& c) { c.age_feature = std::string("lag"); },
       absl::StatusCode::kInvalidArgument, "BAD_STREAM",
       "is \"lag\"; model \"m\" version 3 has the features intensity, age"},
      {[](ModelVersionInfo&, StreamSession::Config& c) { c.age_feature = std::string("x"); },
       absl::StatusCode::kInvalidArgument, "BAD_STREAM", "is \"x\"; model"},
      {[](ModelVersionInfo& m, StreamSession::Config& c) {
         m.features = {{.name = "x"}};
         c.age_feature = std::string("x");
       },
       absl::StatusCode::kInvalidArgument, "BAD_STREAM", "no features but its axes"},
      {[](ModelVersionInfo& m, StreamSession::Config&) {
         m.axes = {"row", "column"};
       },
       absl::StatusCode::kInvalidArgument, "BAD_STREAM", "are row, column"},
  };
  for (const auto& [spoil, code, reason, text] : cases) {
    ModelVersionInfo model = ReadyModel();
    StreamSession::Config config;
    config.sweeps.emplace();
    spoil(model, config);
    const absl::Status status = CheckStreamConfig(model, config);
    EXPECT_EQ(status.code(), code) << text;
    EXPECT_EQ(ReasonOf(status), reason) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
}

TEST(StreamConfigTest, APriorityBeyondAllLevelsStaysSo) {
  EXPECT_EQ(PriorityOf(0), 0);
  EXPECT_EQ(PriorityOf(3), 3);
  EXPECT_EQ(PriorityOf(UINT32_MAX), std::numeric_limits<int>::max());
}

TEST(StreamConfigTest, APoseKeepsItsNumbers) {
  v1::Pose message;
  message.set_x(1);
  message.set_y(2);
  message.set_z(3);
  message.set_qw(4);
  message.set_qx(5);
  message.set_qy(6);
  message.set_qz(7);
  const Pose pose = DecodePose(message);
  EXPECT_EQ(pose.x, 1);
  EXPECT_EQ(pose.y, 2);
  EXPECT_EQ(pose.z, 3);
  EXPECT_EQ(pose.qw, 4);
  EXPECT_EQ(pose.qx, 5);
  EXPECT_EQ(pose.qy, 6);
  EXPECT_EQ(pose.qz, 7);
}

}  // namespace
}  // namespace voxserve::stream_config_test
