#pragma once

// One answer of the engine: named outputs, and what belongs to them. The executor makes it, the worker adds the model's
// facts, and the codec moves the outputs' bytes into the response. So rows are written once, into the buffer that is
// sent. Boxes are messages on the wire: the codec converts their rows, once.

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
#include "engine/tensor/output_tensor.h"
#include "engine/tensor/point_counts.h"
#include "engine/tensor/stage.h"

namespace voxserve {

// Rows of one type, little endian, row after row.
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
  // The values as T, which is the dtype's.
  template <typename T>
  absl::Span<const T> values() const {
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
};

struct InferResult {
  // INVALID_ARGUMENT where the sample alone, of its batch, is at fault (missing field, too many voxels): then there are
  // counts at most. InferTask::done gets this error, or a result that is OK.
  absl::Status status;
  // Holds the memory of the outputs' rows, for as long as a copy of the result is there. Whoever takes the bytes out of
  // the result answers for them. Null: none. It ends after the rows.
  std::shared_ptr<MemoryBudget::Reservation> memory;
  // The outputs that the model has and the request asked for; one without rows is there too. Rows of points are those
  // of the cloud, or of the newest sweep.
  std::vector<NamedOutput> outputs;
  std::vector<OutputTensor> tensors;    // that the request asked for, in the model's order
  PointCounts counts;                   // of all points that ran: those of every sweep
  int64_t num_not_finite_boxes = 0;     // candidates that are no boxes since some number of theirs is NaN or infinite
  std::vector<int32_t> sampled_points;  // of InferTask::sample: indices into the cloud, in the order of selection

  // The worker sets the fields below.
  std::string model;
  int64_t version = 0;
  std::string device;  // "cpu", "cuda:0"
  int ignore_label = 255;
  int num_classes = 0;
  std::vector<std::string> class_names;  // of boxes, by class_id; ids beyond it have no name
  std::vector<StageTime> stages;         // in the order in which they ran

  // Null where there is no such tensor.
  const OutputTensor* FindTensor(std::string_view name) const;
  // Null where there is no such output.
  const NamedOutput* Find(std::string_view name) const;
  NamedOutput* Find(std::string_view name) {
    return const_cast<NamedOutput*>(static_cast<const InferResult*>(this)->Find(name));
  }

  // The outputs' values; empty where there is no such output.
  absl::Span<const uint8_t> labels() const;  // bytes: two a label of uint16
  absl::Span<const float> scores() const;
  std::vector<Box> boxes() const;  // in the network's order
};

}  // namespace voxserve
