#pragma once

// Segmentation (a label per point), Detections (boxes) and Answer (tensors alone) are the server's answers. Immutable;
// copies share their data, and spans live as long as one of the copies does. A default-constructed answer is empty. A
// move is a copy, so that what was moved from can still be asked.

#include <voxserve/export.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace voxserve::detail {
struct AnswerData;
}

namespace voxserve {
inline namespace abi0 {

// Says what one row of a tensor belongs to: a point of the cloud, an occupied voxel, the whole cloud, or a cell of a
// dense grid.
enum class TensorRows : int { kUnspecified = 0, kPoints = 1, kSites = 2, kSample = 3, kCells = 4 };

// The unchanged values of one node of the network; they may be NaN or infinite.
class VOXSERVE_API Tensor {
 public:
  Tensor(std::shared_ptr<const detail::AnswerData> data, size_t index) noexcept;  // private to the library
  Tensor(const Tensor&) noexcept = default;
  Tensor& operator=(const Tensor&) noexcept = default;

  std::string_view name() const noexcept;
  TensorRows rows() const noexcept;
  std::span<const uint64_t> shape() const noexcept;     // [rows, channels]; for cells [size of each axis..., channels]
  std::span<const float> floats() const noexcept;       // row after row; empty if the values are float16
  std::span<const uint16_t> float16s() const noexcept;  // the bits of IEEE 754 binary16; empty if they are float32
  std::span<const int32_t> coordinates() const noexcept;  // for sites: [rows, axes]; times unit: voxel indices
  std::span<const double> unit() const noexcept;          // for sites: voxels per step, a value per axis

 private:
  std::shared_ptr<const detail::AnswerData> data_;
  size_t index_ = 0;
};

class VOXSERVE_API Answer {
 public:
  Answer();
  explicit Answer(std::shared_ptr<const detail::AnswerData> data) noexcept;  // private to the library
  Answer(const Answer&) noexcept = default;
  Answer& operator=(const Answer&) noexcept = default;

  std::string_view model() const noexcept;
  int64_t version() const noexcept;          // the version that answered
  std::string_view device() const noexcept;  // "cpu" or "cuda:N"
  std::string_view request_id() const noexcept;
  // Numbers of points. Points get the ignore label unless they are used.
  uint64_t used_points() const noexcept;
  uint64_t invalid_points() const noexcept;       // a coordinate or feature is NaN or infinite
  uint64_t out_of_range_points() const noexcept;  // outside the model's range
  uint64_t dropped_points() const noexcept;       // beyond the model's limit of voxels
  uint64_t num_voxels() const noexcept;
  // Returns warnings as text: of features whose values are likely in another unit than the model's (an intensity of 0
  // to 255, say), of nearly all points outside of the model's range, and of scores and boxes that are NaN or infinite.
  std::vector<std::string> warnings() const;
  std::chrono::nanoseconds round_trip() const noexcept;  // from the call (or Send) to the answer
  std::vector<std::pair<std::string, std::chrono::nanoseconds>> stages() const;  // times on the server
  std::span<const uint32_t> sampled_points() const noexcept;  // with InferOptions::set_sample: indices into the cloud
  int num_sweeps() const noexcept;                            // sweeps of a stream that ran together; 0 without sweeps
  std::vector<Tensor> tensors() const;                        // the tensors that were asked for, in the model's order
  std::optional<Tensor> FindTensor(std::string_view name) const;

 protected:
  std::shared_ptr<const detail::AnswerData> data_;  // never null
};

class VOXSERVE_API Segmentation : public Answer {
 public:
  using Answer::Answer;
  std::span<const uint16_t> labels() const noexcept;  // [num_points] class ids
  uint16_t ignore_label() const noexcept;             // of points without a label
  int num_classes() const noexcept;
  std::span<const float> scores() const noexcept;  // [num_points, num_classes] logits; empty unless asked for
};

// A box in the cloud's coordinates: metres, radians about z, metres per second; all numbers are finite. This struct
// never changes: what comes later is asked of Detections, by the box's index.
struct Box {
  uint32_t class_id;
  float score;          // 0 to 1
  float x, y, z;        // the centre
  float length, width;  // along the box's own x and y axes
  float height;
  float yaw;                     // from the cloud's x axis towards y, -pi to pi
  float velocity_x, velocity_y;  // along the cloud's axes; 0 from a model without velocities
};

class VOXSERVE_API Detections : public Answer {
 public:
  using Answer::Answer;
  std::span<const Box> boxes() const noexcept;  // by the network's head, then by score, best first
  // The name of a box's class; empty if the model's configuration does not name it, or there is no such box.
  std::string_view class_name(size_t box) const noexcept;
  // The number of a box's query, for a model that decodes boxes from queries.
  std::optional<uint32_t> query(size_t box) const noexcept;
};

}  // namespace abi0
}  // namespace voxserve
