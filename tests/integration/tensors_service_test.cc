// Tests requests that send voxels and get tensors, through a real gRPC server and the real engine. The calls are the
// C++ client's and raw messages. The network has 4 dimensions: a voxel is 4 int32 coordinates and 2 float features.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "client/cpp/api/client.h"
#include "client/cpp/api/voxels.h"
#include "tests/integration/engine_server.h"
#include "tests/integration/vehicle.h"

namespace voxserve::tensors_service_test {
namespace {

using grpc::StatusCode;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kVoxels[] = R"(name: "tensors"
dimension: 4
nodes {
  name: "voxels"
  voxelize {
    voxel_size: [1, 1, 1, 1]
    rounding: ROUNDING_FLOOR
    origin: ORIGIN_ZERO
    reduce: REDUCE_FIRST
    features { name: "f0" unit: "1" }
    features { name: "f1" unit: "1" }
  }
}
nodes { name: "head" inputs: ["voxels"] linear { out_channels: 1 } }
nodes {
  name: "coarse"
  inputs: ["head"]
  pool { reduce: REDUCE_MAX kind: KIND_STRIDED kernel_size: [2, 2, 2, 2] stride: [2, 2, 2, 2] rule: RULE_FLOOR }
}
nodes { name: "best" inputs: ["head"] global_pool { reduce: REDUCE_MAX } }
outputs { kind: KIND_TENSOR node: "coarse" name: "coarse" }
outputs { kind: KIND_TENSOR node: "best" name: "best" }
outputs { kind: KIND_TENSOR node: "voxels" name: "input" }
)";

using Site = std::array<int32_t, 4>;

// The network's node head computes 2 f0 - f1, which is 1, 6 and 4 for these voxels.
const std::vector<int32_t> kCoordinates = {-3, 7, 0, 5,  //
                                           -4, 6, 1, 4,  //
                                           0,  0, 0, 0};
const std::vector<float> kFeatures = {1, 1, 3, 0, 2.5f, 1};

std::map<Site, std::vector<float>> BySite(const client::Tensor& tensor) {
  const size_t channels = tensor.shape.back();
  std::map<Site, std::vector<float>> rows;
  for (size_t i = 0; i < tensor.shape[0]; ++i) {
    Site site = {};
    std::copy_n(tensor.coordinates().begin() + static_cast<std::ptrdiff_t>(4 * i), 4, site.begin());
    const auto row = tensor.floats().subspan(i * channels, channels);
    EXPECT_TRUE(rows.emplace(site, std::vector<float>(row.begin(), row.end())).second);
  }
  return rows;
}

class TensorsServiceTest : public EngineServerTest {
 protected:
  void SetUp() override {
    EngineServerTest::SetUp();
    support::TestModel model;
    model.graph = kVoxels;
    model.weights = {{"head.weight", support::FloatTensor({1, 2}, {2, -1})}};
    model.WriteTo(folder_.path() / "tensors");
    Start(folder_.path().string());
    auto caller = client::Client::Create({.address = absl::StrCat("localhost:", server_->grpc_port())});
    ASSERT_TRUE(caller.ok()) << caller.status();
    caller_ = *std::move(caller);
  }

  static client::PointCloud Voxels() { return *client::PointCloudFromVoxels(kCoordinates, 4, kFeatures, 2); }
  static v1::InferRequest RawRequest() {
    v1::InferRequest request;
    request.set_model("tensors");
    *request.mutable_cloud() = Voxels();
    return request;
  }

  std::unique_ptr<client::Client> caller_;
};

TEST_F(TensorsServiceTest, AllOfAModelThatHasNothingElse) {
  const auto answer = caller_->InferTensors({.model = "tensors"}, Voxels());
  ASSERT_TRUE(answer.ok()) << answer.status();
  ASSERT_EQ(answer->tensors.size(), 3u);
  const client::Tensor& coarse = *answer->FindTensor("coarse");
  EXPECT_EQ(coarse.kind, v1::TENSOR_ROWS_SITES);
  EXPECT_THAT(coarse.shape, ElementsAre(2, 1));
  EXPECT_THAT(coarse.unit, ElementsAre(2, 2, 2, 2));
  EXPECT_EQ(BySite(coarse), (std::map<Site, std::vector<float>>{{{-2, 3, 0, 2}, {6}}, {{0, 0, 0, 0}, {4}}}));
  const client::Tensor& best = *answer->FindTensor("best");
  EXPECT_EQ(best.kind, v1::TENSOR_ROWS_SAMPLES);
  EXPECT_THAT(best.floats(), ElementsAre(6));
  EXPECT_THAT(best.coordinates(), IsEmpty());
  EXPECT_EQ(BySite(*answer->FindTensor("input")),
            (std::map<Site, std::vector<float>>{
                {{-3, 7, 0, 5}, {1, 1}}, {{-4, 6, 1, 4}, {3, 0}}, {{0, 0, 0, 0}, {2.5f, 1}}}));
  EXPECT_EQ(answer->FindTensor("nobody"), nullptr);
  EXPECT_EQ(answer->counts.voxels(), 3u);
}

TEST_F(TensorsServiceTest, ThoseThatAreNamedInHalfPrecision) {
  const auto answer = caller_->InferTensors(
      {.model = "tensors", .tensors = {.names = {"best", "best"}, .type = v1::ELEMENT_TYPE_FLOAT16}}, Voxels());
  ASSERT_TRUE(answer.ok()) << answer.status();
  ASSERT_EQ(answer->tensors.size(), 1u);
  EXPECT_THAT(answer->tensors[0].float16s(), ElementsAre(0x4600)) << "6 is 2^2 * 1.5";
  EXPECT_THAT(answer->tensors[0].floats(), IsEmpty());
}

TEST_F(TensorsServiceTest, ACloudWithoutPointsHasNoSites) {
  const auto answer = caller_->InferTensors({.model = "tensors"}, *client::PointCloudFromVoxels({}, 4, {}, 2));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_THAT(answer->FindTensor("coarse")->shape, ElementsAre(0, 1));
  EXPECT_THAT(answer->FindTensor("best")->shape, ElementsAre(1, 1));
}

TEST_F(TensorsServiceTest, UnknownNamesAndTypesAreRefused) {
  v1::InferRequest request = RawRequest();
  request.add_outputs("coarse");
  request.add_outputs("nobody");
  EXPECT_THAT(ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "UNSUPPORTED_OUTPUT"),
              HasSubstr("model \"tensors\" has no tensor \"nobody\"; it has coarse, best, input"));
  request = RawRequest();
  request.set_tensor_type(static_cast<v1::ElementType>(7));
  EXPECT_THAT(ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "UNSUPPORTED_OUTPUT"),
              HasSubstr("tensor_type is 7, must be FLOAT32 (1) or FLOAT16 (2)"));
  request = RawRequest();
  request.set_return_scores(true);
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "UNSUPPORTED_OUTPUT");
  v1::StreamConfig config = StreamConfigOf("tensors");
  config.add_outputs("nobody");
  Vehicle vehicle(client_.get(), config);
  EXPECT_EQ(ReasonOf(vehicle.End()), "UNSUPPORTED_OUTPUT");
}

TEST_F(TensorsServiceTest, NamesThatNoTensorCanHaveAreRefused) {
  const struct {
    std::string name;
    const char* reason;
  } cases[] = {
      {"", "UNSUPPORTED_OUTPUT"},
      {std::string(257, 'a'), "MALFORMED_MESSAGE"},
      {"be\xff"
       "t",
       "MALFORMED_MESSAGE"},
  };
  for (const auto& [name, reason] : cases) {
    SCOPED_TRACE(name);
    v1::InferRequest request = RawRequest();
    request.add_outputs(name);
    ExpectRefused(request, StatusCode::INVALID_ARGUMENT, reason);
    v1::StreamConfig config = StreamConfigOf("tensors");
    config.add_outputs(name);
    Vehicle vehicle(client_.get(), config);
    EXPECT_EQ(vehicle.End().error_code(), StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(ReasonOf(vehicle.End()), reason);
  }
  for (const int type : {-1, 3}) {
    v1::InferRequest request = RawRequest();
    request.set_tensor_type(static_cast<v1::ElementType>(type));
    EXPECT_THAT(ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "UNSUPPORTED_OUTPUT"),
                HasSubstr(absl::StrCat("tensor_type is ", type)));
    v1::StreamConfig config = StreamConfigOf("tensors");
    config.set_tensor_type(static_cast<v1::ElementType>(type));
    Vehicle vehicle(client_.get(), config);
    EXPECT_EQ(ReasonOf(vehicle.End()), "UNSUPPORTED_OUTPUT");
  }
}

TEST_F(TensorsServiceTest, ANameThatStandsOftenIsAnsweredOnce) {
  v1::InferRequest request = RawRequest();
  for (int i = 0; i < 2000; ++i) request.add_outputs("best");
  EXPECT_EQ(InferOk(request).tensors_size(), 1);
  for (int i = 0; i < 100; ++i) request.add_outputs("best");
  EXPECT_THAT(ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "MALFORMED_MESSAGE"), HasSubstr("2048"));
}

TEST_F(TensorsServiceTest, TheOtherCallsNameTheOneToMake) {
  const absl::Status labels = caller_->Infer({.model = "tensors"}, Voxels()).status();
  EXPECT_EQ(client::ErrorReason(labels), "UNSUPPORTED_OUTPUT");
  EXPECT_THAT(std::string(labels.message()), HasSubstr("answers tensors and no labels; ask it with InferTensors"));
  const absl::Status boxes = caller_->Detect({.model = "tensors"}, Voxels()).status();
  EXPECT_THAT(std::string(boxes.message()), HasSubstr("answers tensors and no boxes; ask it with InferTensors"));
}

TEST_F(TensorsServiceTest, AModelTellsItsTensors) {
  const auto model = caller_->GetModel("tensors");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_FALSE(model->has_labels());
  ASSERT_EQ(model->tensors_size(), 3);
  EXPECT_EQ(model->tensors(0).name(), "coarse");
  EXPECT_EQ(model->tensors(0).rows(), v1::TENSOR_ROWS_SITES);
  EXPECT_EQ(model->tensors(0).channels(), 1u);
  EXPECT_THAT(model->tensors(0).unit(), ElementsAre(2, 2, 2, 2));
  EXPECT_EQ(model->tensors(2).channels(), 2u);
}

TEST_F(TensorsServiceTest, EveryFrameOfAStreamHasItsTensors) {
  std::atomic<int> num_right{0};
  absl::Notification ended;
  const auto stream = caller_->OpenTensorStream(
      {.model = "tensors", .policy = client::StreamPolicy::kQueue, .tensors = {.names = {"best"}}},
      {.on_result =
           [&](const client::FrameOutcomeOf<client::Answer>& frame) {
             const bool is_right = frame.result.ok() && frame.result->tensors.size() == 1 &&
                                   frame.result->tensors[0].floats() == absl::Span<const float>({6.0f});
             num_right += is_right ? 1 : 0;
           },
       .on_end =
           [&](const absl::Status& status) {
             EXPECT_TRUE(status.ok()) << status;
             ended.Notify();
           }});
  ASSERT_TRUE(stream.ok()) << stream.status();
  for (uint64_t id = 0; id < 3; ++id) EXPECT_TRUE((*stream)->Send(id, Voxels()).ok());
  (*stream)->CloseSends();
  ended.WaitForNotification();
  EXPECT_EQ(num_right, 3);
}

TEST(VoxelsTest, WhatCannotBeVoxelsIsRefused) {
  const auto why = [](const std::vector<int32_t>& coordinates, int axes, const std::vector<float>& features) {
    const auto cloud = client::PointCloudFromVoxels(coordinates, axes, features, 1);
    EXPECT_EQ(cloud.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(cloud.status().message());
  };
  EXPECT_THAT(why({0, 0}, 5, {1}), HasSubstr("num_axes is 5"));
  EXPECT_THAT(why({0, 0, 0}, 2, {1}), HasSubstr("3 coordinates and 1 features"));
  EXPECT_THAT(why({0, 0, 0}, 3, {1, 2}), HasSubstr("3 coordinates and 2 features"));
  EXPECT_THAT(why({0, 0, 130944}, 3, {1}), HasSubstr("coordinate 130944 is not within -130944 to 130943"));
  EXPECT_THAT(why({0, 0, 0, -3969}, 4, {1}), HasSubstr("coordinate -3969"));
  EXPECT_THAT(why({1, 2, 3, 1, 2, 3}, 3, {1, 2}), HasSubstr("the site of voxel 1 appears twice"));
  EXPECT_THAT(why({1, 2, 3}, 3, {std::numeric_limits<float>::infinity()}), HasSubstr("not all finite"));
  for (const int channels : {253, 254}) {
    const std::vector<float> features(static_cast<size_t>(channels));
    EXPECT_EQ(client::PointCloudFromVoxels({0, 0, 0}, 3, features, channels).ok(), channels == 253);
  }
  EXPECT_TRUE(client::PointCloudFromVoxels({0, 0, 130943, 0, 0, -130944}, 3, {1, 2}, 1).ok());
}

}  // namespace
}  // namespace voxserve::tensors_service_test
