#pragma once

// A point cloud as it came: bytes and checked fields. Nothing is converted here; the engine reads the fields that a
// model names when it copies the cloud in, and skips the others.
//
// Immutable and cheap to copy: copies share the bytes. Any thread.

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

// value = raw * scale + shift, in the field's canonical unit (m, 0..1, s).
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
  uint32_t point_step = 0;  // bytes from a point to the next
  uint32_t height = 1;      // rows of an organised cloud; divides num_points
  uint64_t row_step = 0;    // bytes from a row to the next; 0: packed
  bool is_bigendian = false;
  std::vector<PointField> fields;
};

class PointCloud {
 public:
  PointCloud() = default;  // 0 points, no fields

  // Checks the layout against the bytes: INVALID_ARGUMENT (reason BAD_LAYOUT) names the field and both sizes where
  // bytes are too few or too many, a field does not fit its point, two fields overlap, a name stands twice, a type,
  // scale or shift is not valid, or height does not divide num_points. The last row may come without its padding.
  // A height or count of 0 means 1.
  static absl::StatusOr<PointCloud> Create(PointCloudLayout layout, HostBuffer bytes);
  // The same with a copy of the bytes. RESOURCE_EXHAUSTED (OUT_OF_MEMORY) too.
  static absl::StatusOr<PointCloud> Create(PointCloudLayout layout, std::string_view bytes);

  // Packed float32 fields named as given: points is [num_points, names.size()], row after row.
  static absl::StatusOr<PointCloud> FromFloats(const std::vector<std::string>& names, const float* points,
                                               uint64_t num_points);

  uint64_t num_points() const { return layout_.num_points; }
  const PointCloudLayout& layout() const { return layout_; }
  std::string_view bytes() const { return bytes_ ? bytes_->bytes() : std::string_view(); }
  // True where a GPU may copy the bytes from where they lie.
  bool is_pinned() const { return bytes_ && bytes_->is_pinned(); }
  // The same cloud in ordinary memory, for those who keep it long: page-locked memory is scarce. Copies the bytes where
  // they are page-locked. RESOURCE_EXHAUSTED (OUT_OF_MEMORY).
  absl::StatusOr<PointCloud> InOrdinaryMemory() const;

  // nullptr where the cloud has no such field.
  const PointField* FindField(std::string_view name) const;

  // out[i * out_step] = the field's value of point i, for points [begin, end), as float32. The field must be one of
  // layout().fields.
  void ReadField(const PointField& field, uint64_t begin, uint64_t end, float* out, int64_t out_step) const;

 private:
  PointCloudLayout layout_;
  std::shared_ptr<const HostBuffer> bytes_;
};

}  // namespace voxserve
