#include <voxserve/answer.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/voxserve/data.h"

namespace voxserve {
inline namespace abi0 {
namespace {

template <typename T, typename Values>
std::span<const T> ToSpan(const Values& values) {
  return {values.data(), values.size()};
}

}  // namespace

Tensor::Tensor(std::shared_ptr<const detail::AnswerData> data, size_t index) noexcept
    : data_(std::move(data)), index_(index) {}

std::string_view Tensor::name() const noexcept { return data_->answer.tensors[index_].name; }
TensorRows Tensor::rows() const noexcept { return static_cast<TensorRows>(data_->answer.tensors[index_].kind); }
std::span<const uint64_t> Tensor::shape() const noexcept { return data_->answer.tensors[index_].shape; }
std::span<const float> Tensor::floats() const noexcept { return ToSpan<float>(data_->answer.tensors[index_].floats()); }
std::span<const uint16_t> Tensor::float16s() const noexcept {
  return ToSpan<uint16_t>(data_->answer.tensors[index_].float16s());
}
std::span<const int32_t> Tensor::coordinates() const noexcept {
  return ToSpan<int32_t>(data_->answer.tensors[index_].coordinates());
}
std::span<const double> Tensor::unit() const noexcept { return data_->answer.tensors[index_].unit; }

Answer::Answer() : data_(std::make_shared<const detail::AnswerData>()) {}
Answer::Answer(std::shared_ptr<const detail::AnswerData> data) noexcept : data_(std::move(data)) {}

std::string_view Answer::model() const noexcept { return data_->answer.model; }
int64_t Answer::version() const noexcept { return data_->answer.version; }
std::string_view Answer::device() const noexcept { return data_->answer.device; }
std::string_view Answer::request_id() const noexcept { return data_->answer.request_id; }
uint64_t Answer::used_points() const noexcept { return data_->answer.counts.used(); }
uint64_t Answer::invalid_points() const noexcept { return data_->answer.counts.invalid(); }
uint64_t Answer::out_of_range_points() const noexcept { return data_->answer.counts.out_of_range(); }
uint64_t Answer::dropped_points() const noexcept { return data_->answer.counts.dropped(); }
uint64_t Answer::num_voxels() const noexcept { return data_->answer.counts.voxels(); }

std::vector<std::string> Answer::warnings() const {
  std::vector<std::string> texts;
  for (const v1::FeatureWarning& warning : data_->answer.warnings) {
    texts.push_back(absl::StrCat(warning.feature(), ": ", warning.num_outside(), " of ", warning.num_checked(),
                                 " values lie outside of ", warning.range().low(), " to ", warning.range().high(),
                                 ", which the model expects; they reach from ", warning.smallest(), " to ",
                                 warning.largest()));
  }
  for (std::string warning : {client::RangeWarning(data_->answer), client::NotFiniteWarning(data_->answer)}) {
    if (!warning.empty()) texts.push_back(std::move(warning));
  }
  return texts;
}

std::chrono::nanoseconds Answer::round_trip() const noexcept { return detail::ToStd(data_->answer.round_trip); }

std::vector<std::pair<std::string, std::chrono::nanoseconds>> Answer::stages() const {
  std::vector<std::pair<std::string, std::chrono::nanoseconds>> stages;
  for (const client::Stage& stage : data_->answer.stages) {
    stages.emplace_back(stage.name, detail::ToStd(stage.duration));
  }
  return stages;
}

std::span<const uint32_t> Answer::sampled_points() const noexcept { return data_->answer.sampled_points; }
int Answer::num_sweeps() const noexcept { return data_->num_sweeps; }

std::vector<Tensor> Answer::tensors() const {
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < data_->answer.tensors.size(); ++i) tensors.emplace_back(data_, i);
  return tensors;
}

std::optional<Tensor> Answer::FindTensor(std::string_view name) const {
  const client::Tensor* tensor = data_->answer.FindTensor(detail::ToAbsl(name));
  if (tensor == nullptr) return std::nullopt;
  return Tensor(data_, static_cast<size_t>(tensor - data_->answer.tensors.data()));
}

std::span<const uint16_t> Segmentation::labels() const noexcept { return data_->labels; }
uint16_t Segmentation::ignore_label() const noexcept { return data_->ignore_label; }
int Segmentation::num_classes() const noexcept { return data_->num_classes; }
std::span<const float> Segmentation::scores() const noexcept { return data_->scores; }

std::span<const Box> Detections::boxes() const noexcept { return data_->boxes; }
std::string_view Detections::class_name(size_t box) const noexcept {
  return box < data_->class_names.size() ? std::string_view(data_->class_names[box]) : std::string_view();
}
std::optional<uint32_t> Detections::query(size_t box) const noexcept {
  return box < data_->queries.size() ? data_->queries[box] : std::nullopt;
}

}  // namespace abi0
}  // namespace voxserve
