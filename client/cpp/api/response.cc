#include "client/cpp/api/response.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/api/error.h"
#include "engine/base/steady_time.h"

namespace voxserve::client {
namespace {

absl::Status CheckSegmentation(const v1::Segmentation& answer, const Asked& asked) {
  const uint64_t num_points = asked.num_points;
  const uint64_t width = answer.bytes_per_label();
  if (width != 1 && width != 2) return Malformed(absl::StrCat("labels of ", width, " bytes"));
  if (answer.labels().size() != num_points * width) {
    return Malformed(absl::StrCat(answer.labels().size(), " bytes of labels for ", num_points, " points"));
  }
  const uint64_t num_scores = asked.wants_scores ? num_points * answer.num_classes() : 0;
  if (answer.scores().size() != num_scores * sizeof(float)) {
    return Malformed(absl::StrCat(answer.scores().size(), " bytes of scores for ", num_scores, " values"));
  }
  return absl::OkStatus();
}

absl::Status CheckDetections(const v1::Detections& answer) {
  for (int i = 0; i < answer.boxes_size(); ++i) {
    const v1::Box& box = answer.boxes(i);
    for (const float value : {box.score(), box.x(), box.y(), box.z(), box.length(), box.width(), box.height(),
                              box.yaw(), box.velocity_x(), box.velocity_y()}) {
      if (!std::isfinite(value)) return Malformed(absl::StrCat("box ", i, " is not finite"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTensor(const v1::Tensor& tensor, const Asked& asked) {
  const auto bad = [&](const std::string& what) {
    return Malformed(absl::StrCat("tensor \"", tensor.name(), "\" has ", what));
  };
  const v1::ElementType wanted =
      asked.tensors.type == v1::ELEMENT_TYPE_FLOAT16 ? v1::ELEMENT_TYPE_FLOAT16 : v1::ELEMENT_TYPE_FLOAT32;
  if (tensor.type() != wanted) return bad(absl::StrCat("element type ", static_cast<int>(tensor.type())));
  if (tensor.shape_size() < 2) return bad(absl::StrCat(tensor.shape_size(), " axes"));
  const uint64_t most_values = tensor.data().size();
  uint64_t num_values = 1;
  for (const uint64_t size : tensor.shape()) {
    if (size > 0 && num_values > most_values / size) return bad("a shape beyond its bytes");
    num_values *= size;
  }
  const uint64_t value_bytes = wanted == v1::ELEMENT_TYPE_FLOAT16 ? sizeof(uint16_t) : sizeof(float);
  if (num_values * value_bytes != tensor.data().size()) {
    return bad(absl::StrCat(tensor.data().size(), " bytes for ", num_values, " values"));
  }
  const uint64_t num_rows = tensor.shape(0);
  switch (tensor.rows()) {
    case v1::TENSOR_ROWS_POINTS:
      if (num_rows == asked.num_points) return absl::OkStatus();
      return bad(absl::StrCat(num_rows, " rows for ", asked.num_points, " points"));
    case v1::TENSOR_ROWS_SITES: {
      const uint64_t row_bytes = static_cast<uint64_t>(tensor.unit_size()) * sizeof(int32_t);
      const uint64_t bytes = tensor.coordinates().size();
      if (row_bytes > 0 && bytes % row_bytes == 0 && bytes / row_bytes == num_rows) return absl::OkStatus();
      return bad(absl::StrCat(bytes, " bytes of coordinates for ", num_rows, " sites"));
    }
    case v1::TENSOR_ROWS_SAMPLES:
    case v1::TENSOR_ROWS_CELLS:
      return absl::OkStatus();
    default:
      return bad(absl::StrCat("rows of kind ", static_cast<int>(tensor.rows())));
  }
}

absl::Status CheckTensors(const v1::InferResponse& response, const Asked& asked) {
  absl::flat_hash_set<absl::string_view> names;
  for (const v1::Tensor& tensor : response.tensors()) {
    if (!names.insert(tensor.name()).second) return Malformed(absl::StrCat("two tensors \"", tensor.name(), "\""));
    if (absl::Status status = CheckTensor(tensor, asked); !status.ok()) return status;
  }
  for (const std::string& name : asked.tensors.names) {
    if (!names.contains(name)) return Malformed(absl::StrCat("no tensor \"", name, "\""));
  }
  return absl::OkStatus();
}

absl::Status WrongCall(const v1::InferResponse& response, absl::string_view has, absl::string_view lacks,
                       absl::string_view calls) {
  return WithReason(absl::InvalidArgumentError(absl::StrCat("model \"", response.model(), "\" answers ", has,
                                                            " and no ", lacks, "; ask it with ", calls)),
                    kUnsupportedOutput);
}

void TakeAnswer(v1::InferResponse* response, absl::Time start, Answer* answer) {
  answer->model = std::move(*response->mutable_model());
  answer->version = response->version();
  answer->device = std::move(*response->mutable_device());
  answer->request_id = std::move(*response->mutable_request_id());
  answer->sampled_points.assign(response->sampled_points().begin(), response->sampled_points().end());
  answer->counts = response->counts();
  answer->warnings.assign(response->warnings().begin(), response->warnings().end());
  answer->stages = StagesOf(*response);
  answer->round_trip = SteadyNow() - start;
  for (v1::Tensor& tensor : *response->mutable_tensors()) {
    answer->tensors.push_back({.name = std::move(*tensor.mutable_name()),
                               .kind = tensor.rows(),
                               .type = tensor.type(),
                               .shape = {tensor.shape().begin(), tensor.shape().end()},
                               .data = std::move(*tensor.mutable_data()),
                               .coordinate_bytes = std::move(*tensor.mutable_coordinates()),
                               .unit = {tensor.unit().begin(), tensor.unit().end()}});
  }
}

std::vector<Box> TakeBoxes(v1::InferResponse* response) {
  std::vector<Box> boxes;
  for (v1::Box& box : *response->mutable_detections()->mutable_boxes()) {
    boxes.push_back({.class_id = box.class_id(),
                     .class_name = std::move(*box.mutable_class_name()),
                     .score = box.score(),
                     .x = box.x(),
                     .y = box.y(),
                     .z = box.z(),
                     .length = box.length(),
                     .width = box.width(),
                     .height = box.height(),
                     .yaw = box.yaw(),
                     .velocity_x = box.velocity_x(),
                     .velocity_y = box.velocity_y(),
                     .query = box.has_query() ? std::optional(box.query()) : std::nullopt});
  }
  return boxes;
}

}  // namespace

absl::Status Malformed(absl::string_view what) {
  return WithReason(absl::InternalError(absl::StrCat("the server's answer is malformed: ", what)), kMalformedResponse);
}

absl::Status CheckResponse(const v1::InferResponse& response, const Asked& asked) {
  if (!response.has_segmentation() && !response.has_detections() && response.tensors().empty()) {
    return Malformed("neither labels nor boxes nor tensors");
  }
  if (absl::Status status = CheckTensors(response, asked); !status.ok()) return status;
  if (response.has_segmentation()) {
    if (absl::Status status = CheckSegmentation(response.segmentation(), asked); !status.ok()) return status;
  }
  if (absl::Status status = CheckDetections(response.detections()); !status.ok()) return status;
  const auto& sampled = response.sampled_points();
  if (static_cast<uint64_t>(sampled.size()) != asked.num_sampled) {
    return Malformed(absl::StrCat(sampled.size(), " sampled points in place of ", asked.num_sampled));
  }
  const auto beyond =
      std::find_if(sampled.begin(), sampled.end(), [&](uint32_t index) { return index >= asked.num_points; });
  if (beyond != sampled.end()) return Malformed(absl::StrCat("point ", *beyond, " sampled of ", asked.num_points));
  return absl::OkStatus();
}

std::vector<Stage> StagesOf(const v1::InferResponse& response) {
  std::vector<Stage> stages;
  for (const v1::StageDuration& stage : response.stages()) {
    stages.push_back({stage.name(), absl::Microseconds(stage.microseconds())});
  }
  return stages;
}

template <>
absl::StatusOr<Segmentation> FromResponse<Segmentation>(v1::InferResponse response, const Asked& asked,
                                                        absl::Time start) {
  if (absl::Status status = CheckResponse(response, asked); !status.ok()) return status;
  if (!response.has_segmentation()) {
    return response.has_detections() ? WrongCall(response, "boxes", "labels", "Detect or OpenDetectionStream")
                                     : WrongCall(response, "tensors", "labels", "InferTensors or OpenTensorStream");
  }
  const uint64_t num_points = asked.num_points;
  const v1::Segmentation& answer = response.segmentation();
  Segmentation result;
  result.bytes_per_label = static_cast<int>(answer.bytes_per_label());
  result.ignore_label = static_cast<uint16_t>(answer.ignore_label());
  result.num_classes = static_cast<int>(answer.num_classes());
  result.labels.resize(num_points);
  if (answer.bytes_per_label() == 2) {
    if (num_points > 0) std::memcpy(result.labels.data(), answer.labels().data(), answer.labels().size());
  } else {
    for (uint64_t i = 0; i < num_points; ++i) result.labels[i] = static_cast<uint8_t>(answer.labels()[i]);
  }
  result.scores.resize(answer.scores().size() / sizeof(float));
  if (!result.scores.empty()) std::memcpy(result.scores.data(), answer.scores().data(), answer.scores().size());
  if (response.has_detections()) result.boxes = TakeBoxes(&response);
  TakeAnswer(&response, start, &result);
  return result;
}

template <>
absl::StatusOr<Detections> FromResponse<Detections>(v1::InferResponse response, const Asked& asked, absl::Time start) {
  if (absl::Status status = CheckResponse(response, asked); !status.ok()) return status;
  if (!response.has_detections()) {
    return response.has_segmentation() ? WrongCall(response, "labels", "boxes", "Infer or OpenStream")
                                       : WrongCall(response, "tensors", "boxes", "InferTensors or OpenTensorStream");
  }
  Detections result;
  result.boxes = TakeBoxes(&response);
  TakeAnswer(&response, start, &result);
  return result;
}

template <>
absl::StatusOr<Answer> FromResponse<Answer>(v1::InferResponse response, const Asked& asked, absl::Time start) {
  if (absl::Status status = CheckResponse(response, asked); !status.ok()) return status;
  if (response.tensors().empty()) {
    return WithReason(absl::InvalidArgumentError(absl::StrCat("model \"", response.model(), "\" answers ",
                                                              response.has_segmentation() ? "labels" : "boxes",
                                                              ", and tensors only where they are named")),
                      kUnsupportedOutput);
  }
  Answer result;
  TakeAnswer(&response, start, &result);
  return result;
}

}  // namespace voxserve::client
