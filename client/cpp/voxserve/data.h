#pragma once

// Private to the library: what the public classes point to, in terms of client/cpp/api, and conversions between the
// two. Not installed.

#include <voxserve/answer.h>
#include <voxserve/model.h>
#include <voxserve/options.h>
#include <voxserve/point_cloud.h>
#include <voxserve/status.h>
#include <voxserve/stream.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/cpp/api/client.h"

namespace voxserve::detail {

struct StatusData {
  StatusCode code = StatusCode::kUnknown;
  std::string message = {};
  std::string reason = {};
  bool is_from_server = false;
  std::optional<std::chrono::nanoseconds> retry_delay = {};
};

struct PointCloudData {
  client::PointCloud cloud;
};

struct AnswerData {
  client::Answer answer = {};
  int num_sweeps = 0;
  // These belong to a Segmentation.
  std::vector<uint16_t> labels = {};
  uint16_t ignore_label = 255;
  int num_classes = 0;
  std::vector<float> scores = {};
  // These belong to Detections, in the order of its boxes.
  std::vector<Box> boxes = {};
  std::vector<std::string> class_names = {};
  std::vector<std::optional<uint32_t>> queries = {};
};

struct ModelData {
  v1::ModelVersion model;
};

struct ClientOptionsData {
  client::Options options;
};

struct InferOptionsData {
  client::InferOptions options;
};

struct StreamOptionsData {
  client::StreamOptions options;
};

struct StreamEventsData {
  std::function<void()> on_going_away = {};
  std::function<void(Status)> on_reopen = {};
  std::function<void(Status)> on_end = {};
};

struct StreamData {
  std::unique_ptr<client::Stream> stream;
};

struct ClientData {
  std::unique_ptr<client::Client> client;
};

inline absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view ToStd(absl::string_view text) { return {text.data(), text.size()}; }
absl::Duration ToAbsl(std::chrono::nanoseconds time);  // nanoseconds::max(): infinite
std::chrono::nanoseconds ToStd(absl::Duration time);   // infinite: nanoseconds::max()
Status ToStatus(const absl::Status& status);
client::WantedTensors ToWanted(std::vector<std::string> names, bool as_float16);

// Convert an answer. The three overloads differ by what they return.
Segmentation ToPublic(client::Segmentation answer, int num_sweeps = 0);
Detections ToPublic(client::Detections answer, int num_sweeps = 0);
Answer ToPublic(client::Answer answer, int num_sweeps = 0);

// The public type of an answer.
template <typename T>
struct PublicOf;
template <>
struct PublicOf<client::Segmentation> {
  using Type = Segmentation;
};
template <>
struct PublicOf<client::Detections> {
  using Type = Detections;
};
template <>
struct PublicOf<client::Answer> {
  using Type = Answer;
};

template <typename T>
Result<typename PublicOf<T>::Type> ToResult(absl::StatusOr<T> answer, int num_sweeps = 0) {
  if (!answer.ok()) return ToStatus(answer.status());
  return ToPublic(*std::move(answer), num_sweeps);
}

}  // namespace voxserve::detail
