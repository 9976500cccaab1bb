#pragma once

// PointCloud is a scan to send: named fields, and the bytes of the points in the layout of ROS'
// sensor_msgs/PointCloud2, so that such a message is forwarded without conversion. The points are in memory once;
// moving a cloud copies nothing.

#include <voxserve/export.h>
#include <voxserve/status.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace voxserve::detail {
struct PointCloudData;
}

namespace voxserve {
inline namespace abi0 {

// The type of one value. 1 to 8 have the numbers of sensor_msgs/PointField.
enum class FieldType : int {
  kUnspecified = 0,  // the server skips the field, and refuses it by name if its model reads it
  kInt8 = 1,
  kUint8 = 2,
  kInt16 = 3,
  kUint16 = 4,
  kInt32 = 5,
  kUint32 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kFloat16 = 9,  // IEEE 754 binary16
};

// Returns the type for a datatype of ROS: 1 to 8 as they are, 11 (bool) as kUint8, all others kUnspecified.
VOXSERVE_API FieldType FieldTypeOfRos(int datatype) noexcept;

// Not thread-safe while it changes.
class VOXSERVE_API PointCloud {
 public:
  PointCloud();
  ~PointCloud();
  PointCloud(const PointCloud& other);
  PointCloud& operator=(const PointCloud& other);
  PointCloud(PointCloud&& other) noexcept;
  PointCloud& operator=(PointCloud&& other) noexcept;

  // Returns a cloud of packed float32 fields. values: [num_points, names.size()], row after row; x, y, z in metres,
  // intensity 0 to 1. Returns INVALID_ARGUMENT if the values are no whole points.
  static Result<PointCloud> FromFloats(const std::vector<std::string>& names, std::span<const float> values);

  // Reads a scan file: .bin (KITTI), .pcd.bin (nuScenes), .pcd, .ply or .npy. `fields` describes another layout; see
  // `voxserve-client infer --help`. Returns INVALID_ARGUMENT or NOT_FOUND, which name the file and the problem.
  static Result<PointCloud> Read(const std::string& path, std::string_view fields = {});

  // Appends a field. offset: bytes from the start of a point; count: values, of which a model reads the first. The
  // server computes raw * scale + shift, in metres for x, y, z, 0 to 1 for intensity, seconds for times.
  void AddField(std::string_view name, FieldType type, uint32_t offset, uint32_t count = 1);
  // Sets the scale and shift of the field with exactly this name. Returns NOT_FOUND if there is none.
  Status SetScale(std::string_view name, double scale, double shift = 0);
  // Sets the points. point_step: bytes from one point to the next. The first form copies the bytes, the other none.
  void SetPoints(std::span<const std::byte> bytes, uint64_t num_points, uint32_t point_step);
  void SetPoints(std::string&& bytes, uint64_t num_points, uint32_t point_step);
  // For clouds whose rows have padding: the rows, and bytes from one row to the next.
  void SetRows(uint32_t height, uint32_t row_step);
  void SetBigEndian(bool is_bigendian);
  // When the sensor took the cloud, since 1970 (UTC). Streams with sweeps need it.
  void SetStamp(std::chrono::nanoseconds since_epoch);
  void SetFrameId(std::string_view frame_id);  // the sensor's coordinate frame; appears in the server's log

  // Makes coordinates and intensities 16-bit values: half the bytes to send, and points within half a step (1 mm, or
  // the extent by 65,534) of where they were. Returns "" then. Otherwise the cloud stays as it is, and the result says
  // why: a value is not a finite number, an axis is longer than 1.3 km, or no value has more than 16 bits.
  // INVALID_ARGUMENT without x, y or z, or if the bytes do not match fields and points.
  Result<std::string> Compact();

  uint64_t num_points() const noexcept;
  uint32_t point_step() const noexcept;
  std::span<const std::byte> bytes() const noexcept;
  std::vector<std::string> field_names() const;
  // Returns for every point the field's first value as raw * scale + shift. INVALID_ARGUMENT without such a field, or
  // if the bytes do not match fields and points.
  Result<std::vector<float>> Values(std::string_view field) const;

  detail::PointCloudData* data() const noexcept { return data_.get(); }  // private to the library

 private:
  std::unique_ptr<detail::PointCloudData> data_;  // null after the cloud was moved from: an empty cloud
};

}  // namespace abi0
}  // namespace voxserve
