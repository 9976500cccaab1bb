#include "server/codec/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "tests/support/named_outputs.h"

namespace voxserve::codec_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

void AddField(v1::PointCloud* cloud, const std::string& name, uint32_t offset, v1::PointFieldType type) {
  v1::PointField& field = *cloud->add_fields();
  field.set_name(name);
  field.set_offset(offset);
  field.set_type(type);
}

// Returns a layout of num_points points x, y, z as float32.
v1::PointCloud FloatCloud(uint64_t num_points) {
  v1::PointCloud cloud;
  cloud.set_num_points(num_points);
  cloud.set_point_step(12);
  AddField(&cloud, "x", 0, v1::POINT_FIELD_TYPE_FLOAT32);
  AddField(&cloud, "y", 4, v1::POINT_FIELD_TYPE_FLOAT32);
  AddField(&cloud, "z", 8, v1::POINT_FIELD_TYPE_FLOAT32);
  cloud.set_data(std::string(num_points * 12, '\0'));
  return cloud;
}

// Decodes the cloud after moving its data out of the message, as the message parser does.
absl::StatusOr<PointCloud> Decode(v1::PointCloud* message) {
  HostBuffer data = *HostBuffer::CopyOf(message->data());
  message->clear_data();
  return DecodeCloud(message, std::move(data));
}

TEST(DecodeCloudTest, TakesTheBytesWithoutCopying) {
  v1::PointCloud message = FloatCloud(100);
  HostBuffer data = *HostBuffer::CopyOf(message.data());
  const char* const bytes = data.data();
  const absl::StatusOr<PointCloud> cloud = DecodeCloud(&message, std::move(data));
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  EXPECT_EQ(cloud->num_points(), 100u);
  EXPECT_EQ(cloud->bytes().data(), bytes);
  EXPECT_FALSE(cloud->is_pinned());
}

TEST(DecodeCloudTest, FillsDefaults) {
  v1::PointCloud message = FloatCloud(2);
  const absl::StatusOr<PointCloud> cloud = Decode(&message);
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  EXPECT_EQ(cloud->layout().height, 1u);
  const PointField* x = cloud->FindField("x");
  ASSERT_NE(x, nullptr);
  EXPECT_EQ(x->count, 1u);
  EXPECT_EQ(x->scale, 1.0);
  EXPECT_EQ(x->shift, 0.0);
}

TEST(DecodeCloudTest, KeepsWhatTheMessageSays) {
  v1::PointCloud message = FloatCloud(4);
  message.set_height(2);
  message.set_row_step(28);  // 2 points of 12 bytes and 4 of padding
  message.set_data(std::string(56, '\0'));
  message.set_is_bigendian(true);
  message.mutable_fields(1)->set_scale(0.5);
  message.mutable_fields(1)->set_shift(-3);
  const absl::StatusOr<PointCloud> cloud = Decode(&message);
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  EXPECT_EQ(cloud->layout().height, 2u);
  EXPECT_EQ(cloud->layout().row_step, 28u);
  EXPECT_TRUE(cloud->layout().is_bigendian);
  EXPECT_EQ(cloud->FindField("y")->scale, 0.5);
  EXPECT_EQ(cloud->FindField("y")->shift, -3);
}

TEST(DecodeCloudTest, KnowsEveryTypeOfTheWire) {
  const auto* types = v1::PointFieldType_descriptor();
  for (int i = 0; i < types->value_count(); ++i) {
    const int number = types->value(i)->number();
    if (number == 0) continue;
    const int size = SizeOf(static_cast<PointFieldType>(number));
    ASSERT_GT(size, 0) << types->value(i)->name();
    v1::PointCloud message;
    message.set_num_points(3);
    message.set_point_step(size);
    AddField(&message, "x", 0, static_cast<v1::PointFieldType>(number));
    message.set_data(std::string(3 * size, '\0'));
    EXPECT_TRUE(Decode(&message).ok()) << types->value(i)->name();
  }
}

TEST(DecodeCloudTest, RefusesWithBothSizes) {
  v1::PointCloud message = FloatCloud(10);
  message.mutable_data()->resize(100);
  const absl::Status status = Decode(&message).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(status), error_reason::kBadLayout);
  EXPECT_THAT(std::string(status.message()), HasSubstr("100"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("120"));
}

TEST(DecodeCloudTest, KeepsTypesThatDoNotExistForTheirReadersToRefuse) {
  for (const int type : {0, 10, 256 + 7, -1, std::numeric_limits<int>::max()}) {
    v1::PointCloud message = FloatCloud(1);
    message.mutable_fields(2)->set_type(static_cast<v1::PointFieldType>(type));
    const absl::StatusOr<PointCloud> cloud = Decode(&message);
    ASSERT_TRUE(cloud.ok()) << cloud.status();
    EXPECT_TRUE(cloud->CheckReadFields({cloud->FindField("x"), cloud->FindField("y")}).ok()) << type;
    const absl::Status status = cloud->CheckReadFields({cloud->FindField("z")});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << type;
    EXPECT_THAT(std::string(status.message()), HasSubstr("\"z\"")) << type;
  }
}

TEST(DecodeCloudTest, RefusesAScaleOfZeroThatWasSent) {
  v1::PointCloud message = FloatCloud(1);
  message.mutable_fields(0)->set_scale(0);
  EXPECT_EQ(Decode(&message).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(DecodeCloudTest, NoPointsAreACloud) {
  v1::PointCloud message = FloatCloud(0);
  const absl::StatusOr<PointCloud> cloud = Decode(&message);
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  EXPECT_EQ(cloud->num_points(), 0u);
}

v1::PointCloud StampedAt(int64_t seconds, int32_t nanos) {
  v1::PointCloud message;
  message.mutable_stamp()->set_seconds(seconds);
  message.mutable_stamp()->set_nanos(nanos);
  return message;
}

TEST(StampTest, IsTheSensorsTime) {
  EXPECT_EQ(*StampOf(v1::PointCloud()), absl::InfinitePast());
  EXPECT_EQ(*StampOf(StampedAt(0, 0)), absl::InfinitePast()) << "ROS: 0.0 is \"unknown\"";
  EXPECT_EQ(*StampOf(StampedAt(0, 1)), absl::FromUnixNanos(1));
  EXPECT_EQ(*StampOf(StampedAt(1'700'000'000, 250'000'000)), absl::FromUnixMillis(1'700'000'000'250));
}

constexpr int64_t kYear1 = -62'135'596'800;
constexpr int64_t kYear10000 = 253'402'300'800;

TEST(StampTest, ReachesFromTheYear1ToTheYear9999) {
  const absl::StatusOr<absl::Time> first = StampOf(StampedAt(kYear1, 0));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(absl::FormatTime(*first, absl::UTCTimeZone()), "1-01-01T00:00:00+00:00");
  const absl::StatusOr<absl::Time> last = StampOf(StampedAt(kYear10000 - 1, 999'999'999));
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(absl::FormatTime(*last, absl::UTCTimeZone()), "9999-12-31T23:59:59.999999999+00:00");
}

TEST(StampTest, RefusesWhatIsNoTime) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();
  constexpr int32_t kLeastNanos = std::numeric_limits<int32_t>::min(), kMostNanos = std::numeric_limits<int32_t>::max();
  for (const auto& [seconds, nanos] : std::vector<std::pair<int64_t, int32_t>>{{kYear1 - 1, 999'999'999},
                                                                               {kYear10000, 0},
                                                                               {kLeast, 0},
                                                                               {kLeast, kLeastNanos},
                                                                               {kMost, 0},
                                                                               {kMost, 999'999'999},
                                                                               {0, -1},
                                                                               {5, -1},
                                                                               {5, 1'000'000'000},
                                                                               {5, kLeastNanos},
                                                                               {5, kMostNanos}}) {
    const absl::Status status = StampOf(StampedAt(seconds, nanos)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << seconds << " " << nanos;
    EXPECT_EQ(ReasonOf(status), error_reason::kBadStamp);
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(seconds, " s and ", nanos, " ns")));
  }
}

TEST(DecodeSampleTest, TakesWhatTheClientSays) {
  v1::FarthestPointSample message;
  message.set_num_points(4096);
  message.set_start_index(7);
  absl::StatusOr<FarthestPoints> sample = DecodeSample(message);
  ASSERT_TRUE(sample.ok()) << sample.status();
  EXPECT_EQ(sample->num_points, 4096u);
  EXPECT_EQ(sample->start_index, 7u);
  EXPECT_FALSE(sample->seed.has_value());
  EXPECT_FALSE(sample->restricts_network);
  message.set_seed(0);
  message.set_use(v1::FarthestPointSample::USE_NETWORK);
  sample = DecodeSample(message);
  ASSERT_TRUE(sample.ok()) << sample.status();
  EXPECT_EQ(sample->seed, 0u) << "a seed, and not none";
  EXPECT_TRUE(sample->restricts_network);
  message.set_use(v1::FarthestPointSample::USE_RETURN);
  EXPECT_FALSE(DecodeSample(message)->restricts_network);
}

TEST(DecodeSampleTest, RefusesAUseThatThereIsNot) {
  v1::FarthestPointSample message;
  message.set_use(static_cast<v1::FarthestPointSample::Use>(3));
  const absl::Status status = DecodeSample(message).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(status), "BAD_SAMPLE");
  EXPECT_EQ(status.message(), "sample.use is 3, must be RETURN (1) or NETWORK (2)");
}

TEST(EncodeResultTest, RepeatsTheResult) {
  InferResult result;
  result.model = "m";
  result.version = 3;
  result.device = "cpu";
  result.outputs = {OutputOf(NamedOutput::kLabels, DType::kUint16, 1, std::vector<uint16_t>{1, 258}),
                    ScoresOf({1.5f, -2.0f})};
  result.ignore_label = 65535;
  result.num_classes = 300;
  result.counts = {
      .used = 1, .invalid = 2, .out_of_range = 3, .dropped = 4, .unsampled = 6, .not_finite = 7, .voxels = 5};
  result.num_not_finite_boxes = 8;
  result.sampled_points = {2, 0, 0};
  result.warnings = {{.feature = "i",
                      .range = {.low = 0, .high = 1},
                      .smallest = -2,
                      .largest = 255,
                      .num_checked = 9,
                      .num_outside = 8}};
  result.stages = {{Stage::kQueue, absl::Microseconds(7)}, {Stage::kFeatures, absl::Milliseconds(2)}};
  v1::InferResponse response;
  EncodeResult(result, &response);

  EXPECT_EQ(response.model(), "m");
  EXPECT_EQ(response.version(), 3);
  EXPECT_EQ(response.device(), "cpu");
  const v1::Segmentation& segmentation = response.segmentation();
  EXPECT_EQ(segmentation.labels(), std::string("\x01\x00\x02\x01", 4));
  EXPECT_EQ(segmentation.bytes_per_label(), 2u);
  EXPECT_EQ(segmentation.ignore_label(), 65535u);
  EXPECT_EQ(segmentation.num_classes(), 300u);
  ASSERT_EQ(segmentation.scores().size(), 8u);
  float scores[2];
  std::memcpy(scores, segmentation.scores().data(), 8);
  EXPECT_THAT(scores, ElementsAre(1.5f, -2.0f));
  EXPECT_EQ(response.counts().used(), 1u);
  EXPECT_EQ(response.counts().invalid(), 2u);
  EXPECT_EQ(response.counts().out_of_range(), 3u);
  EXPECT_EQ(response.counts().dropped(), 4u);
  EXPECT_EQ(response.counts().voxels(), 5u);
  EXPECT_EQ(response.counts().unsampled(), 6u);
  EXPECT_EQ(response.counts().not_finite(), 7u);
  EXPECT_EQ(response.counts().boxes_not_finite(), 8u);
  EXPECT_THAT(response.sampled_points(), ElementsAre(2, 0, 0));
  ASSERT_EQ(response.warnings_size(), 1);
  const v1::FeatureWarning& warning = response.warnings(0);
  EXPECT_EQ(warning.feature(), "i");
  EXPECT_EQ(warning.range().low(), 0);
  EXPECT_EQ(warning.range().high(), 1);
  EXPECT_EQ(warning.smallest(), -2);
  EXPECT_EQ(warning.largest(), 255);
  EXPECT_EQ(warning.num_checked(), 9u);
  EXPECT_EQ(warning.num_outside(), 8u);
  ASSERT_EQ(response.stages_size(), 2);
  EXPECT_EQ(response.stages(0).name(), "queue");
  EXPECT_DOUBLE_EQ(response.stages(0).microseconds(), 7);
  EXPECT_DOUBLE_EQ(response.stages(1).microseconds(), 2000);
}

TEST(EncodeResultTest, AnEmptyResultHasASegmentation) {
  InferResult result;
  result.outputs = {LabelsOf({})};
  v1::InferResponse response;
  EncodeResult(result, &response);
  EXPECT_TRUE(response.has_segmentation());
  EXPECT_TRUE(response.segmentation().labels().empty());
  EXPECT_TRUE(response.segmentation().scores().empty());
}

TEST(EncodeResultTest, AModelWithoutLabelsHasNoSegmentation) {
  InferResult result;
  result.class_names = {"car", "", "cone"};
  result.outputs = {BoxesOf({{.class_id = 2,
                              .score = 0.75f,
                              .x = 1,
                              .y = -2,
                              .z = 3,
                              .length = 4,
                              .width = 5,
                              .height = 6,
                              .yaw = -0.5f,
                              .velocity_x = 7,
                              .velocity_y = -8},
                             {.class_id = 3, .query = 0}})};
  v1::InferResponse response;
  EncodeResult(result, &response);
  EXPECT_FALSE(response.has_segmentation());
  ASSERT_EQ(response.detections().boxes_size(), 2);
  const v1::Box& box = response.detections().boxes(0);
  EXPECT_EQ(box.class_id(), 2u);
  EXPECT_EQ(box.class_name(), "cone");
  EXPECT_EQ(box.score(), 0.75f);
  EXPECT_EQ(box.x(), 1);
  EXPECT_EQ(box.y(), -2);
  EXPECT_EQ(box.z(), 3);
  EXPECT_EQ(box.length(), 4);
  EXPECT_EQ(box.width(), 5);
  EXPECT_EQ(box.height(), 6);
  EXPECT_EQ(box.yaw(), -0.5f);
  EXPECT_EQ(box.velocity_x(), 7);
  EXPECT_EQ(box.velocity_y(), -8);
  EXPECT_FALSE(box.has_query());
  EXPECT_EQ(response.detections().boxes(1).class_name(), "") << "the configuration names fewer";
  EXPECT_TRUE(response.detections().boxes(1).has_query());
  EXPECT_EQ(response.detections().boxes(1).query(), 0u);
}

TEST(EncodeResultTest, NoBoxesAreThere) {
  InferResult result;
  result.outputs = {LabelsOf({}), BoxesOf({})};
  v1::InferResponse response;
  EncodeResult(result, &response);
  EXPECT_TRUE(response.has_segmentation()) << "a model may have both";
  EXPECT_TRUE(response.has_detections());
  EXPECT_EQ(response.detections().boxes_size(), 0);
  InferResult labels_alone;
  labels_alone.outputs = {LabelsOf({})};
  v1::InferResponse of_labels;
  EncodeResult(labels_alone, &of_labels);
  EXPECT_FALSE(of_labels.has_detections());
}

TEST(EncodeResultTest, MovesTensors) {
  InferResult result;
  result.tensors = {
      {.info = {.name = "sites", .rows = TensorRows::kSites, .channels = 2, .unit = {2, 0.5}},
       .dtype = DType::kFloat16,
       .bytes = "abcdefgh",
       .coordinates = std::string(16, 'c')},
      {.info = {.name = "image", .rows = TensorRows::kCells, .channels = 1, .cells = {1, 2}}, .bytes = "01234567"}};
  v1::InferResponse response;
  EncodeResult(result, &response);
  ASSERT_EQ(response.tensors_size(), 2);
  const v1::Tensor& sites = response.tensors(0);
  EXPECT_EQ(sites.name(), "sites");
  EXPECT_EQ(sites.rows(), v1::TENSOR_ROWS_SITES);
  EXPECT_EQ(sites.type(), v1::ELEMENT_TYPE_FLOAT16);
  EXPECT_THAT(sites.shape(), ElementsAre(2, 2));
  EXPECT_EQ(sites.data(), "abcdefgh");
  EXPECT_EQ(sites.coordinates(), std::string(16, 'c'));
  EXPECT_THAT(sites.unit(), ElementsAre(2, 0.5));
  EXPECT_THAT(response.tensors(1).shape(), ElementsAre(1, 2, 1));
  EXPECT_EQ(response.tensors(1).type(), v1::ELEMENT_TYPE_FLOAT32);
  EXPECT_FALSE(response.has_segmentation());
}

TEST(DecodeRequestTest, TensorsAreNamedAndTyped) {
  v1::InferRequest request;
  request.add_outputs("a");
  request.set_tensor_type(v1::ELEMENT_TYPE_FLOAT16);
  const PointCloud cloud = *PointCloud::FromFloats({"x", "y", "z"}, nullptr, 0);
  absl::StatusOr<InferTask> task = DecodeRequest(request, cloud);
  ASSERT_TRUE(task.ok()) << task.status();
  EXPECT_THAT(task->tensors, ElementsAre("a"));
  EXPECT_EQ(task->tensor_dtype, DType::kFloat16);
  request.set_tensor_type(static_cast<v1::ElementType>(9));
  EXPECT_EQ(ReasonOf(DecodeRequest(request, cloud).status()), error_reason::kUnsupportedOutput);
}

// A message may hold very many repeated names. They are reduced to distinct ones at once, so that later code does not
// compare them all for each frame.
TEST(DecodeRequestTest, NamesOfTensorsCountOnceAndAreBounded) {
  v1::InferRequest request;
  for (int i = 0; i < 2000; ++i) request.add_outputs(absl::StrCat(1 - i % 2));
  const PointCloud cloud = *PointCloud::FromFloats({"x", "y", "z"}, nullptr, 0);
  absl::StatusOr<InferTask> task = DecodeRequest(request, cloud);
  ASSERT_TRUE(task.ok()) << task.status();
  EXPECT_THAT(task->tensors, ElementsAre("1", "0"));
  for (int i = 2; i < kMaxTensors; ++i) request.add_outputs(absl::StrCat(i));
  EXPECT_TRUE(DecodeRequest(request, cloud).ok());
  request.add_outputs("one more");
  const absl::Status refused = DecodeRequest(request, cloud).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(refused), error_reason::kUnsupportedOutput);
}

TEST(DecodeStreamConfigTest, NamesOfTensorsAreBounded) {
  v1::StreamConfig config;
  config.set_model("m");
  config.set_policy(v1::STREAM_POLICY_LATEST);
  for (int i = 0; i < kMaxTensors; ++i) config.add_outputs(absl::StrCat(i));
  config.add_outputs("0");
  const absl::StatusOr<StreamSession::Config> decoded = DecodeStreamConfig(config);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->tensors.size(), static_cast<size_t>(kMaxTensors));
  config.add_outputs("one more");
  EXPECT_EQ(ReasonOf(DecodeStreamConfig(config).status()), error_reason::kUnsupportedOutput);
}

TEST(EncodeModelTest, RepeatsTheModel) {
  ModelVersionInfo info;
  info.name = "m";
  info.version = 4;
  info.state = ModelState::kFailed;
  info.problems = {"one", "two"};
  info.classes = {{.id = 5, .name = "car", .color_rgb = 0x112233}};
  info.features = {{.name = "x", .unit = "m"},
                   {.name = "i",
                    .unit = "1",
                    .has_default = true,
                    .default_value = 0.25f,
                    .range = ValueRange{.low = 0, .high = 2}}};
  info.max_points = 100;
  info.max_voxels = 70;
  info.voxel_overflow = ModelConfig::VoxelOverflow::kFirstSeen;
  info.voxel_size = {0.5f, 0.25f};
  info.num_parameters = 9;
  info.priority_levels = 3;
  info.has_scores = true;
  v1::ModelVersion message;
  EncodeModel(info, &message);

  EXPECT_EQ(message.name(), "m");
  EXPECT_EQ(message.version(), 4);
  EXPECT_EQ(message.state(), v1::MODEL_STATE_FAILED);
  EXPECT_THAT(message.problems(), ElementsAre("one", "two"));
  EXPECT_EQ(message.classes(0).id(), 5u);
  EXPECT_EQ(message.classes(0).color_rgb(), 0x112233u);
  EXPECT_FALSE(message.features(0).has_default_value());
  EXPECT_EQ(message.features(1).default_value(), 0.25);
  EXPECT_FALSE(message.features(0).has_range());
  EXPECT_EQ(message.features(1).range().low(), 0);
  EXPECT_EQ(message.features(1).range().high(), 2);
  EXPECT_EQ(message.max_points(), 100u);
  EXPECT_EQ(message.max_voxels(), 70u);
  EXPECT_EQ(message.voxel_overflow(), v1::VOXEL_OVERFLOW_FIRST_SEEN);
  EXPECT_FALSE(message.has_reach());
  EXPECT_THAT(message.voxel_size(), ElementsAre(0.5f, 0.25f));
  EXPECT_EQ(message.num_parameters(), 9u);
  EXPECT_EQ(message.priority_levels(), 3u);
  EXPECT_TRUE(message.has_scores());
  EXPECT_FALSE(message.has_labels());
  EXPECT_FALSE(message.has_boxes());

  info.has_labels = true;
  info.voxel_overflow = ModelConfig::VoxelOverflow::kReject;
  info.reach = Reach{
      .distance = {2.5f, std::numeric_limits<float>::infinity()}, .unbounded_by = "pool", .minimum_period = {16, 0}};
  EncodeModel(info, &message);
  EXPECT_TRUE(message.has_labels());
  EXPECT_EQ(message.voxel_overflow(), v1::VOXEL_OVERFLOW_REJECT) << "a value that says that the server tells it";
  EXPECT_THAT(message.reach().distance(), ElementsAre(2.5f, std::numeric_limits<float>::infinity()));
  EXPECT_EQ(message.reach().unbounded_by(), "pool");
  EXPECT_THAT(message.reach().minimum_period(), ElementsAre(16u, 0u));

  info.reach.reset();
  message.Clear();

  info.has_labels = false;
  info.has_boxes = true;
  info.has_velocities = true;
  EncodeModel(info, &message);
  EXPECT_FALSE(message.has_labels());
  EXPECT_TRUE(message.has_boxes());
  EXPECT_TRUE(message.has_velocities());

  info.state = ModelState::kLoading;
  EncodeModel(info, &message);
  EXPECT_EQ(message.state(), v1::MODEL_STATE_LOADING);
  info.state = ModelState::kReady;
  EncodeModel(info, &message);
  EXPECT_EQ(message.state(), v1::MODEL_STATE_READY);
}

}  // namespace
}  // namespace voxserve::codec_test
