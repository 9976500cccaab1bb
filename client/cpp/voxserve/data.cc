#include "client/cpp/voxserve/data.h"

#include <utility>

#include "client/cpp/api/error.h"

namespace voxserve::detail {

absl::Duration ToAbsl(std::chrono::nanoseconds time) {
  return time == std::chrono::nanoseconds::max() ? absl::InfiniteDuration() : absl::FromChrono(time);
}

std::chrono::nanoseconds ToStd(absl::Duration time) {
  return time == absl::InfiniteDuration() ? std::chrono::nanoseconds::max() : absl::ToChronoNanoseconds(time);
}

Status ToStatus(const absl::Status& status) {
  if (status.ok()) return {};
  const absl::Duration delay = client::RetryDelay(status);
  return Status(std::make_shared<const StatusData>(StatusData{
      .code = static_cast<StatusCode>(status.raw_code()),
      .message = std::string(status.message()),
      .reason = client::ErrorReason(status),
      .is_from_server = client::IsFromServer(status),
      .retry_delay = delay < absl::InfiniteDuration() ? std::optional(absl::ToChronoNanoseconds(delay)) : std::nullopt,
  }));
}

client::WantedTensors ToWanted(std::vector<std::string> names, bool as_float16) {
  return {.names = std::move(names), .type = as_float16 ? v1::ELEMENT_TYPE_FLOAT16 : v1::ELEMENT_TYPE_FLOAT32};
}

Segmentation ToPublic(client::Segmentation answer, int num_sweeps) {
  auto data = std::make_shared<AnswerData>();
  data->num_sweeps = num_sweeps;
  data->labels = std::move(answer.labels);
  data->ignore_label = answer.ignore_label;
  data->num_classes = answer.num_classes;
  data->scores = std::move(answer.scores);
  data->answer = std::move(static_cast<client::Answer&>(answer));
  return Segmentation(std::move(data));
}

Detections ToPublic(client::Detections answer, int num_sweeps) {
  auto data = std::make_shared<AnswerData>();
  data->num_sweeps = num_sweeps;
  for (client::Box& box : answer.boxes) {
    data->boxes.push_back({box.class_id, box.score, box.x, box.y, box.z, box.length, box.width, box.height, box.yaw,
                           box.velocity_x, box.velocity_y});
    data->class_names.push_back(std::move(box.class_name));
    data->queries.push_back(box.query);
  }
  data->answer = std::move(static_cast<client::Answer&>(answer));
  return Detections(std::move(data));
}

Answer ToPublic(client::Answer answer, int num_sweeps) {
  auto data = std::make_shared<AnswerData>();
  data->num_sweeps = num_sweeps;
  data->answer = std::move(answer);
  return Answer(std::move(data));
}

}  // namespace voxserve::detail
