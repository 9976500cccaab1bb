#include "server/codec/codec.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"
#include "engine/tensor/box.h"
#include "engine/tensor/output_tensor.h"

namespace voxserve {
namespace {

// The engine's PointFieldType has the same numbers as the protobuf enum, so a cast converts a field's type.
static_assert(static_cast<int>(PointFieldType::kInt8) == v1::POINT_FIELD_TYPE_INT8);
static_assert(static_cast<int>(PointFieldType::kUint8) == v1::POINT_FIELD_TYPE_UINT8);
static_assert(static_cast<int>(PointFieldType::kInt16) == v1::POINT_FIELD_TYPE_INT16);
static_assert(static_cast<int>(PointFieldType::kUint16) == v1::POINT_FIELD_TYPE_UINT16);
static_assert(static_cast<int>(PointFieldType::kInt32) == v1::POINT_FIELD_TYPE_INT32);
static_assert(static_cast<int>(PointFieldType::kUint32) == v1::POINT_FIELD_TYPE_UINT32);
static_assert(static_cast<int>(PointFieldType::kFloat32) == v1::POINT_FIELD_TYPE_FLOAT32);
static_assert(static_cast<int>(PointFieldType::kFloat64) == v1::POINT_FIELD_TYPE_FLOAT64);
static_assert(static_cast<int>(PointFieldType::kFloat16) == v1::POINT_FIELD_TYPE_FLOAT16);

// Labels, scores and tensors are sent in the host's byte order. The protocol demands little-endian values.
static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kMaxSweeps = 64;
// The largest sweeps.max_age that a client may ask for. It bounds how long a silent stream keeps its sweeps.
constexpr absl::Duration kMaxSweepAge = absl::Minutes(1);
// The most bytes of one stream's sweeps: enough for 64 scans of 131,072 points with four float32 fields.
constexpr int64_t kMaxSweepBytes = int64_t{128} << 20;

absl::Status BadStream(const std::string& message) {
  return WithReason(absl::InvalidArgumentError(message), error_reason::kBadStream);
}

// Decodes a time span, which must be more than 0.
absl::StatusOr<absl::Duration> DecodeDuration(const char* name, const google::protobuf::Duration& message) {
  constexpr int64_t kMostSeconds = 315'576'000'000;  // limit of google.protobuf.Duration
  const absl::Duration duration = absl::Seconds(message.seconds()) + absl::Nanoseconds(message.nanos());
  const bool is_normal = message.seconds() >= 0 && message.seconds() <= kMostSeconds && message.nanos() >= 0 &&
                         message.nanos() < 1'000'000'000;
  if (!is_normal || duration <= absl::ZeroDuration()) {
    return BadStream(absl::StrCat(name, " is ", message.seconds(), " s and ", message.nanos(),
                                  " ns, must be more than 0 and a valid google.protobuf.Duration"));
  }
  return duration;
}

// Returns the names without repetitions. Refuses more names than a model can have tensors.
template <typename Names>
absl::StatusOr<std::vector<std::string>> DecodeNames(const Names& names) {
  std::vector<std::string> distinct;
  absl::flat_hash_set<std::string_view> seen;
  for (const std::string& name : names) {
    if (!seen.insert(name).second) continue;
    if (distinct.size() == static_cast<size_t>(kMaxTensors)) {
      return WithReason(absl::InvalidArgumentError(absl::StrCat("outputs has more than ", kMaxTensors,
                                                                " different names, and no model so many tensors")),
                        error_reason::kUnsupportedOutput);
    }
    distinct.push_back(name);
  }
  return distinct;
}

// Decodes which tensors the client asks for, and the type of their values.
template <typename Message, typename Asked>
absl::Status DecodeTensors(const Message& message, Asked& asked) {
  ASSIGN_OR_RETURN(asked.tensors, DecodeNames(message.outputs()));
  switch (message.tensor_type()) {
    case v1::ELEMENT_TYPE_UNSPECIFIED:
    case v1::ELEMENT_TYPE_FLOAT32:
      return absl::OkStatus();
    case v1::ELEMENT_TYPE_FLOAT16:
      asked.tensor_dtype = DType::kFloat16;
      return absl::OkStatus();
    default:
      return WithReason(
          absl::InvalidArgumentError(absl::StrCat("tensor_type is ", static_cast<int>(message.tensor_type()),
                                                  ", must be FLOAT32 (", static_cast<int>(v1::ELEMENT_TYPE_FLOAT32),
                                                  ") or FLOAT16 (", static_cast<int>(v1::ELEMENT_TYPE_FLOAT16), ")")),
          error_reason::kUnsupportedOutput);
  }
}

v1::TensorRows EncodeRows(TensorRows rows) {
  switch (rows) {
    case TensorRows::kPoints:
      return v1::TENSOR_ROWS_POINTS;
    case TensorRows::kSites:
      return v1::TENSOR_ROWS_SITES;
    case TensorRows::kSamples:
      return v1::TENSOR_ROWS_SAMPLES;
    case TensorRows::kCells:
      break;
  }
  return v1::TENSOR_ROWS_CELLS;
}

void EncodeTensor(OutputTensor& tensor, v1::Tensor* out) {
  out->set_name(tensor.info.name);
  for (const int64_t size : tensor.Shape()) out->add_shape(static_cast<uint64_t>(size));
  out->set_type(tensor.dtype == DType::kFloat16 ? v1::ELEMENT_TYPE_FLOAT16 : v1::ELEMENT_TYPE_FLOAT32);
  out->set_data(std::move(tensor.bytes));
  out->set_rows(EncodeRows(tensor.info.rows));
  out->set_coordinates(std::move(tensor.coordinates));
  out->mutable_unit()->Add(tensor.info.unit.begin(), tensor.info.unit.end());
}

void EncodeTensorInfo(const TensorInfo& info, v1::TensorInfo* out) {
  out->set_name(info.name);
  out->set_rows(EncodeRows(info.rows));
  out->set_channels(static_cast<uint32_t>(info.channels));
  out->mutable_unit()->Add(info.unit.begin(), info.unit.end());
  for (const int64_t size : info.cells) out->add_cells(static_cast<uint64_t>(size));
}

v1::ModelState EncodeState(ModelState state) {
  switch (state) {
    case ModelState::kLoading:
      return v1::MODEL_STATE_LOADING;
    case ModelState::kReady:
      return v1::MODEL_STATE_READY;
    case ModelState::kFailed:
      break;
  }
  return v1::MODEL_STATE_FAILED;
}

v1::VoxelOverflow EncodeVoxelOverflow(ModelConfig::VoxelOverflow overflow) {
  switch (overflow) {
    case ModelConfig::VoxelOverflow::kNearestFirst:
      return v1::VOXEL_OVERFLOW_NEAREST_FIRST;
    case ModelConfig::VoxelOverflow::kFirstSeen:
      return v1::VOXEL_OVERFLOW_FIRST_SEEN;
    case ModelConfig::VoxelOverflow::kReject:
      break;
  }
  return v1::VOXEL_OVERFLOW_REJECT;
}

void EncodeReach(const Reach& reach, v1::Reach* message) {
  message->mutable_distance()->Add(reach.distance.begin(), reach.distance.end());
  message->set_unbounded_by(reach.unbounded_by);
  for (const int64_t period : reach.minimum_period) message->add_minimum_period(static_cast<uint64_t>(period));
}

void EncodeSegmentation(InferResult& result, NamedOutput& labels, v1::Segmentation* segmentation) {
  segmentation->set_bytes_per_label(static_cast<uint32_t>(labels.row_bytes()));
  segmentation->set_labels(std::move(labels.bytes));
  segmentation->set_ignore_label(result.ignore_label);
  segmentation->set_num_classes(result.num_classes);
  NamedOutput* const scores = result.Find(NamedOutput::kScores);
  if (scores != nullptr) segmentation->set_scores(std::move(scores->bytes));
}

void EncodeDetections(const InferResult& result, const NamedOutput& boxes, v1::Detections* detections) {
  for (int64_t i = 0; i < boxes.num_rows(); ++i) {
    const Box box = BoxOf(boxes.values<float>().data() + i * boxes.columns);
    v1::Box& out = *detections->add_boxes();
    out.set_class_id(box.class_id);
    out.set_score(box.score);
    out.set_x(box.x);
    out.set_y(box.y);
    out.set_z(box.z);
    out.set_length(box.length);
    out.set_width(box.width);
    out.set_height(box.height);
    out.set_yaw(box.yaw);
    out.set_velocity_x(box.velocity_x);
    out.set_velocity_y(box.velocity_y);
    if (box.query >= 0) out.set_query(static_cast<uint32_t>(box.query));
    const auto id = static_cast<size_t>(box.class_id);
    if (id < result.class_names.size()) out.set_class_name(result.class_names[id]);
  }
}

}  // namespace

absl::StatusOr<PointCloud> DecodeCloud(v1::PointCloud* message, HostBuffer data) {
  PointCloudLayout layout;
  layout.num_points = message->num_points();
  layout.point_step = message->point_step();
  layout.height = message->height() == 0 ? 1 : message->height();
  layout.row_step = message->row_step();
  layout.is_bigendian = message->is_bigendian();
  layout.fields.reserve(message->fields_size());
  for (v1::PointField& field : *message->mutable_fields()) {
    layout.fields.push_back(
        {.name = std::move(*field.mutable_name()),
         .offset = field.offset(),
         // Numbers outside uint8_t become 0, which is no type. A field without a known type is refused if it is read.
         .type = static_cast<PointFieldType>(field.type() < 0 || field.type() > 255 ? 0 : field.type()),
         .count = field.count() == 0 ? 1 : field.count(),
         .scale = field.has_scale() ? field.scale() : 1.0,
         .shift = field.shift()});
  }
  return PointCloud::Create(std::move(layout), std::move(data));
}

absl::StatusOr<absl::Time> StampOf(const v1::PointCloud& message) {
  // The first and the last second of a google.protobuf.Timestamp.
  constexpr int64_t kFirstSecond = -62'135'596'800;  // 0001-01-01T00:00:00Z
  constexpr int64_t kLastSecond = 253'402'300'799;   // 9999-12-31T23:59:59Z
  const auto& stamp = message.stamp();
  const bool is_set = message.has_stamp() && (stamp.seconds() != 0 || stamp.nanos() != 0);
  if (!is_set) return absl::InfinitePast();
  const bool is_valid = stamp.seconds() >= kFirstSecond && stamp.seconds() <= kLastSecond && stamp.nanos() >= 0 &&
                        stamp.nanos() < 1'000'000'000;
  if (!is_valid) {
    return WithReason(
        absl::InvalidArgumentError(absl::StrCat("the cloud's stamp is ", stamp.seconds(), " s and ", stamp.nanos(),
                                                " ns since 1970, must lie in the years 1 to 9999 and have 0 to "
                                                "999999999 ns (google.protobuf.Timestamp)")),
        error_reason::kBadStamp);
  }
  return absl::FromUnixSeconds(stamp.seconds()) + absl::Nanoseconds(stamp.nanos());
}

int PriorityOf(uint32_t priority) {
  return static_cast<int>(std::min<uint32_t>(priority, std::numeric_limits<int>::max()));
}

absl::StatusOr<FarthestPoints> DecodeSample(const v1::FarthestPointSample& message) {
  FarthestPoints sample{.num_points = message.num_points(), .start_index = message.start_index()};
  if (message.has_seed()) sample.seed = message.seed();
  switch (message.use()) {
    case v1::FarthestPointSample::USE_UNSPECIFIED:
    case v1::FarthestPointSample::USE_RETURN:
      return sample;
    case v1::FarthestPointSample::USE_NETWORK:
      sample.restricts_network = true;
      return sample;
    default:
      return WithReason(absl::InvalidArgumentError(
                            absl::StrCat("sample.use is ", static_cast<int>(message.use()), ", must be RETURN (",
                                         static_cast<int>(v1::FarthestPointSample::USE_RETURN), ") or NETWORK (",
                                         static_cast<int>(v1::FarthestPointSample::USE_NETWORK), ")")),
                        error_reason::kBadSample);
  }
}

absl::StatusOr<InferTask> DecodeRequest(const v1::InferRequest& message, PointCloud cloud) {
  InferTask task{.model = message.model(),
                 .version = message.version(),
                 .cloud = std::move(cloud),
                 .return_scores = message.return_scores(),
                 .priority = PriorityOf(message.priority())};
  RETURN_IF_ERROR(DecodeTensors(message, task));
  if (message.has_sample()) {
    ASSIGN_OR_RETURN(task.sample, DecodeSample(message.sample()));
  }
  return task;
}

absl::StatusOr<StreamSession::Config> DecodeStreamConfig(const v1::StreamConfig& message) {
  StreamSession::Config config;
  config.model = message.model();
  config.version = message.version();
  config.return_scores = message.return_scores();
  RETURN_IF_ERROR(DecodeTensors(message, config));
  config.priority = PriorityOf(message.priority());
  switch (message.policy()) {
    case v1::STREAM_POLICY_UNSPECIFIED:
    case v1::STREAM_POLICY_LATEST:
      break;
    case v1::STREAM_POLICY_QUEUE:
      config.policy = StreamPolicy::kQueue;
      break;
    default:
      return BadStream(absl::StrCat("policy is ", static_cast<int>(message.policy()), ", must be LATEST (",
                                    static_cast<int>(v1::STREAM_POLICY_LATEST), ") or QUEUE (",
                                    static_cast<int>(v1::STREAM_POLICY_QUEUE), ")"));
  }
  if (message.has_frame_timeout()) {
    ASSIGN_OR_RETURN(config.frame_timeout, DecodeDuration("frame_timeout", message.frame_timeout()));
  }
  if (message.max_queued_frames() > StreamSession::kMaxQueuedFrames) {
    return BadStream(absl::StrCat("max_queued_frames is ", message.max_queued_frames(), ", must be 1 to ",
                                  StreamSession::kMaxQueuedFrames, ", or 0 for the default"));
  }
  if (message.max_queued_frames() != 0) config.max_queued_frames = static_cast<int>(message.max_queued_frames());
  if (message.has_sample()) {
    ASSIGN_OR_RETURN(config.sample, DecodeSample(message.sample()));
    if (message.has_sweeps()) return BadStream("a sample is taken of whole scans; this stream accumulates sweeps");
  }
  if (!message.has_sweeps()) return config;

  const v1::SweepAccumulation& sweeps = message.sweeps();
  if (sweeps.num_sweeps() < 1 || sweeps.num_sweeps() > kMaxSweeps) {
    return BadStream(absl::StrCat("sweeps.num_sweeps is ", sweeps.num_sweeps(), ", must be 1 to ", kMaxSweeps));
  }
  config.sweeps.emplace();
  config.sweeps->num_sweeps = static_cast<int>(sweeps.num_sweeps());
  config.sweeps->max_bytes = kMaxSweepBytes;
  if (sweeps.has_max_age()) {
    ASSIGN_OR_RETURN(config.sweeps->max_age, DecodeDuration("sweeps.max_age", sweeps.max_age()));
    if (config.sweeps->max_age > kMaxSweepAge) {
      return BadStream(absl::StrCat("sweeps.max_age is ", absl::FormatDuration(config.sweeps->max_age),
                                    ", must be at most ", absl::FormatDuration(kMaxSweepAge)));
    }
  }
  config.age_feature = sweeps.age_feature();
  return config;
}

Pose DecodePose(const v1::Pose& message) {
  return {.x = message.x(),
          .y = message.y(),
          .z = message.z(),
          .qw = message.qw(),
          .qx = message.qx(),
          .qy = message.qy(),
          .qz = message.qz()};
}

void EncodeResult(InferResult& result, v1::InferResponse* response) {
  response->set_model(result.model);
  response->set_version(result.version);
  response->set_device(result.device);

  if (NamedOutput* labels = result.Find(NamedOutput::kLabels)) {
    EncodeSegmentation(result, *labels, response->mutable_segmentation());
  }
  if (const NamedOutput* boxes = result.Find(NamedOutput::kBoxes)) {
    EncodeDetections(result, *boxes, response->mutable_detections());
  }
  for (OutputTensor& tensor : result.tensors) EncodeTensor(tensor, response->add_tensors());

  v1::PointCounts& counts = *response->mutable_counts();
  counts.set_used(result.counts.used);
  counts.set_invalid(result.counts.invalid);
  counts.set_out_of_range(result.counts.out_of_range);
  counts.set_dropped(result.counts.dropped);
  counts.set_voxels(result.counts.voxels);
  counts.set_unsampled(result.counts.unsampled);
  counts.set_not_finite(result.counts.not_finite);
  counts.set_boxes_not_finite(static_cast<uint64_t>(result.num_not_finite_boxes));
  response->mutable_sampled_points()->Add(result.sampled_points.begin(), result.sampled_points.end());

  for (const FeatureWarning& warning : result.warnings) {
    v1::FeatureWarning& out = *response->add_warnings();
    out.set_feature(warning.feature);
    out.mutable_range()->set_low(warning.range.low);
    out.mutable_range()->set_high(warning.range.high);
    out.set_smallest(warning.smallest);
    out.set_largest(warning.largest);
    out.set_num_checked(static_cast<uint64_t>(warning.num_checked));
    out.set_num_outside(static_cast<uint64_t>(warning.num_outside));
  }
  for (const StageTime& time : result.stages) AppendStage(time, response);
}

void AppendStage(const StageTime& time, v1::InferResponse* response) {
  v1::StageDuration& stage = *response->add_stages();
  stage.set_name(std::string(NameOf(time.stage)));
  stage.set_microseconds(absl::ToDoubleMicroseconds(time.duration));
}

void EncodeModel(const ModelVersionInfo& info, v1::ModelVersion* message) {
  message->set_name(info.name);
  message->set_version(info.version);
  message->set_state(EncodeState(info.state));
  for (const std::string& problem : info.problems) message->add_problems(problem);
  message->set_description(info.description);
  for (const ClassInfo& info_class : info.classes) {
    v1::ClassInfo& out = *message->add_classes();
    out.set_id(info_class.id);
    out.set_name(info_class.name);
    out.set_color_rgb(info_class.color_rgb);
  }
  message->set_ignore_label(info.ignore_label);
  for (const FeatureInfo& feature : info.features) {
    v1::FeatureInfo& out = *message->add_features();
    out.set_name(feature.name);
    out.set_unit(feature.unit);
    if (feature.has_default) out.set_default_value(feature.default_value);
    if (feature.range.has_value()) {
      out.mutable_range()->set_low(feature.range->low);
      out.mutable_range()->set_high(feature.range->high);
    }
  }
  message->set_max_points(info.max_points);
  message->set_max_voxels(static_cast<uint64_t>(info.max_voxels));
  message->set_voxel_overflow(EncodeVoxelOverflow(info.voxel_overflow));
  if (info.reach) EncodeReach(*info.reach, message->mutable_reach());
  for (const float size : info.voxel_size) message->add_voxel_size(size);
  message->set_num_parameters(info.num_parameters);
  message->set_device(info.device);
  message->set_digest(info.digest);
  message->set_priority_levels(static_cast<uint32_t>(info.priority_levels));
  message->set_has_scores(info.has_scores);
  message->set_has_labels(info.has_labels);
  message->set_has_boxes(info.has_boxes);
  message->set_has_velocities(info.has_velocities);
  for (const TensorInfo& tensor : info.tensors) EncodeTensorInfo(tensor, message->add_tensors());
}

}  // namespace voxserve
