#include "server/codec.h"

#include <bit>
#include <string>
#include <utility>

namespace voxserve {
namespace {

// Labels and scores are sent as they lie in memory.
static_assert(std::endian::native == std::endian::little);

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

}  // namespace

absl::StatusOr<PointCloud> DecodeCloud(v1::PointCloud* message) {
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
         // Unknown numbers stay unknown: PointCloud::Create names them.
         .type = static_cast<PointFieldType>(field.type() < 0 || field.type() > 255 ? 0 : field.type()),
         .count = field.count() == 0 ? 1 : field.count(),
         .scale = field.has_scale() ? field.scale() : 1.0,
         .shift = field.shift()});
  }
  return PointCloud::Create(std::move(layout), std::move(*message->mutable_data()));
}

absl::Time StampOf(const v1::PointCloud& message) {
  const auto& stamp = message.stamp();
  const bool is_set = message.has_stamp() && (stamp.seconds() != 0 || stamp.nanos() != 0);
  if (!is_set || stamp.nanos() < 0 || stamp.nanos() >= 1'000'000'000) return absl::InfinitePast();
  return absl::FromUnixSeconds(stamp.seconds()) + absl::Nanoseconds(stamp.nanos());
}

void EncodeResult(const InferResult& result, v1::InferResponse* response) {
  response->set_model(result.model);
  response->set_version(result.version);
  response->set_device(result.device);

  v1::Segmentation& segmentation = *response->mutable_segmentation();
  segmentation.set_labels(result.labels.data(), result.labels.size());
  segmentation.set_bytes_per_label(result.bytes_per_label);
  segmentation.set_ignore_label(result.ignore_label);
  segmentation.set_num_classes(result.num_classes);
  if (!result.scores.empty()) {
    segmentation.set_scores(result.scores.data(), result.scores.size() * sizeof(float));
  }

  v1::PointCounts& counts = *response->mutable_counts();
  counts.set_used(result.counts.used);
  counts.set_invalid(result.counts.invalid);
  counts.set_out_of_range(result.counts.out_of_range);
  counts.set_dropped(result.counts.dropped);
  counts.set_voxels(result.counts.voxels);

  for (const StageTime& stage : result.stages) AppendStage(stage.name.c_str(), stage.duration, response);
}

void AppendStage(const char* name, absl::Duration duration, v1::InferResponse* response) {
  v1::StageDuration& stage = *response->add_stages();
  stage.set_name(name);
  stage.set_microseconds(absl::ToDoubleMicroseconds(duration));
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
  }
  message->set_max_points(info.max_points);
  for (const float size : info.voxel_size) message->add_voxel_size(size);
  message->set_num_parameters(info.num_parameters);
  message->set_device(info.device);
  message->set_digest(info.digest);
}

}  // namespace voxserve
