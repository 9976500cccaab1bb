#pragma once

// PointCloud is a point cloud as it arrived: its bytes and their checked layout. It converts nothing. When the engine
// copies a cloud in, the engine reads the fields that the model names and skips the others.
//
// A PointCloud is immutable and cheap to copy: copies share the bytes. Any thread may use it.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/runtime/host_buffer.h"
#include "kernels/points/point_field_type.h"

namespace voxserve {

using kernels::PointFieldType;

// A field of every point. Its value is raw * scale + shift, in the field's canonical unit (m, 0..1, s).
struct PointField {
  std::string name;
  uint32_t offset = 0;  // bytes from the start of the point
  PointFieldType type = PointFieldType::kFloat32;
  uint32_t count = 1;  // values in the field; the engine reads the first
  double scale = 1.0;  // finite, not 0
  double shift = 0.0;  // finite
};

struct PointCloudLayout {
  uint64_t num_points = 0;
  uint32_t point_step = 0;  // bytes from one point to the next
  uint32_t height = 1;      // rows of an organised cloud; divides num_points
  uint64_t row_step = 0;    // bytes from one row to the next, as the sender states it; of a PointCloud: the right one
  bool is_bigendian = false;
  std::vector<PointField> fields;
};

class PointCloud {
 public:
  PointCloud() = default;  // 0 points, no fields

  // Checks the layout against the bytes. Returns INVALID_ARGUMENT (BAD_LAYOUT), with the field or the sizes, if
  // - there are too few or too many bytes, or rows that do not fit them (engine/base/row_step.h);
  // - a field does not fit into its point, two fields have the same name, or a field has no name;
  // - a scale or shift is not valid.
  //
  // A height or count of 0 means 1. Fields that no model reads may overlap and have unknown types (CheckReadFields).
  static absl::StatusOr<PointCloud> Create(PointCloudLayout layout, HostBuffer bytes);
  // Does the same with a copy of the bytes. Also returns RESOURCE_EXHAUSTED (OUT_OF_MEMORY) if there is no memory for
  // the copy.
  static absl::StatusOr<PointCloud> Create(PointCloudLayout layout, std::string_view bytes);

  // Makes a cloud of packed float32 fields with these names, and copies the points. points: [num_points, names.size()],
  // row after row. The errors are those of Create.
  static absl::StatusOr<PointCloud> FromFloats(const std::vector<std::string>& names, const float* points,
                                               uint64_t num_points);

  uint64_t num_points() const { return layout_.num_points; }
  const PointCloudLayout& layout() const { return layout_; }
  std::string_view bytes() const { return bytes_ ? bytes_->bytes() : std::string_view(); }
  // Returns true if the bytes are in pinned (page-locked) memory, from which a GPU can copy them directly.
  bool is_pinned() const { return bytes_ && bytes_->is_pinned(); }
  // Returns the same cloud with its bytes in pageable memory. Callers that keep a cloud for long use this, since pinned
  // memory is scarce. Copies the bytes only if they are in pinned memory. Returns RESOURCE_EXHAUSTED (OUT_OF_MEMORY) if
  // there is no memory for the copy.
  absl::StatusOr<PointCloud> InOrdinaryMemory() const;

  // Returns the field with this name, or the only one whose name differs only in upper and lower case. Returns nullptr
  // if the cloud has neither.
  const PointField* FindField(std::string_view name) const;

  // Checks the fields that a model reads. fields: members of layout().fields, in any order; one may occur twice.
  // Returns INVALID_ARGUMENT (BAD_LAYOUT), with the field, if its type is unknown or it overlaps another one of them.
  absl::Status CheckReadFields(std::vector<const PointField*> fields) const;

  // Sets out[i * out_step] to the field's value for point i as float32, for points [begin, end). The field must be one
  // of layout().fields, of a known type.
  void ReadField(const PointField& field, uint64_t begin, uint64_t end, float* out, int64_t out_step) const;

 private:
  PointCloudLayout layout_;
  std::shared_ptr<const HostBuffer> bytes_;
};

}  // namespace voxserve
