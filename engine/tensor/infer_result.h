#pragma once

// An InferResult is the engine's answer to one request: named outputs, counts and times. The executor makes it, the
// worker adds the fields about the model, and the codec moves the outputs' bytes into the response. So rows are written
// once, into the buffer that is sent. Only boxes are converted by the codec, since each box is a protobuf message in
// the response. One thread at a time owns a result.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/runtime/memory_budget.h"
#include "engine/tensor/box.h"
#include "engine/tensor/dtype.h"
#include "engine/tensor/feature_warning.h"
#include "engine/tensor/output_tensor.h"
#include "engine/tensor/point_counts.h"
#include "engine/tensor/stage.h"

namespace voxserve {

// The rows of one output in one type, little endian, row after row.
struct NamedOutput {
  static constexpr std::string_view kLabels = "labels";  // [num_points, 1] class ids, uint8 or uint16
  static constexpr std::string_view kScores = "scores";  // [num_points, num_classes] logits, float32
  static constexpr std::string_view kBoxes = "boxes";    // [num_boxes, kBoxColumns] (kernels/boxes/box_rows.h), float32

  std::string name;
  DType dtype = DType::kFloat32;
  int64_t columns = 0;
  std::string bytes = {};

  int64_t row_bytes() const { return columns * SizeOf(dtype); }
  int64_t num_rows() const { return static_cast<int64_t>(bytes.size()) / row_bytes(); }
  // Returns the values as T, which must be the dtype's type.
  template <typename T>
  absl::Span<const T> values() const {
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
};

struct InferResult {
  // INVALID_ARGUMENT if this request cannot run, whatever its batch (missing field, too many voxels); the result then
  // holds at most counts. InferTask::done gets either this error or a result whose status is OK.
  absl::Status status;
  // Reserves the memory of the outputs' rows as long as a copy of the result exists. Code that moves bytes out of the
  // result must account for them itself. Null: no reservation. Declared before the rows, so it is released after them.
  std::shared_ptr<MemoryBudget::Reservation> memory;
  // The outputs that the model has and the request asked for, including outputs without rows. Rows of points belong to
  // the points of the cloud, or of the newest sweep.
  std::vector<NamedOutput> outputs;
  std::vector<OutputTensor> tensors;    // requested tensors, in the order of the model's tensors
  PointCounts counts;                   // counts all points that ran, of every sweep
  int64_t num_not_finite_boxes = 0;     // boxes that are left out since one of their numbers is NaN or infinite
  std::vector<FeatureWarning> warnings;  // features whose values are not those that the model expects
  std::vector<int32_t> sampled_points;  // for InferTask::sample: indices into the cloud, in the order of selection

  // The worker sets the following fields.
  std::string model;
  int64_t version = 0;
  std::string device;      // "cpu", "cuda:0"
  int ignore_label = 255;  // the label of points to which the network gives no class
  int num_classes = 0;
  std::vector<std::string> class_names;  // for boxes, by class_id; a class_id beyond the list has no name
  std::vector<StageTime> stages;         // in the order in which they ran

  // Returns null if there is no such output.
  const NamedOutput* Find(std::string_view name) const;
  NamedOutput* Find(std::string_view name) {
    return const_cast<NamedOutput*>(static_cast<const InferResult*>(this)->Find(name));
  }

  // Each returns the values of the output with this name; empty if the result has no such output.
  absl::Span<const uint8_t> labels() const;  // in bytes: two per uint16 label
  absl::Span<const float> scores() const;
  std::vector<Box> boxes() const;  // in the order of the network's rows
};

}  // namespace voxserve
