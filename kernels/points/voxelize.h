#pragma once

// Voxelize finds the voxel of every point. voxel_features.h makes the voxels' features.
//
// The index per axis is rounding(x / voxel_size), or rounding((x - range_min) / voxel_size) where the origin is the
// range. It is computed in float32 with a true division, never with the reciprocal. The index is then moved to the
// sample's origin.
//
//   origin    coordinate                                              out of range
//   kMinimum  index - the sample's smallest index per axis, taken     |index| > VoxelIndexLimit(dimension, kMinimum)
//             over the points that are neither invalid nor out of range
//   kRange    index                                                   index < 0 or >= GridShape per axis
//   kZero     index                                                   |index| > VoxelIndexLimit(dimension, kZero)
//
// With a range (kRange needs one, the others may have one) a point is out of range too unless range_min <= x <
// range_max on every axis. A point is invalid where an axis is NaN or infinite, or where the caller's mask says so.
//
// Voxels are ordered by the device's keys: on the CPU CoordinateKeys, (sample, coordinate); on CUDA MortonKeys,
// (sample, Z order). A voxel's points are in input order. Apart from the order, both devices give the same voxels and
// points, bit for bit. A sample's voxels do not depend on other samples. Nothing fails: without a valid point there are
// 0 voxels.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/coordinates/conv_geometry.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

enum class VoxelRounding : int32_t { kHalfEven, kFloor };
enum class VoxelOrigin : int32_t { kMinimum, kRange, kZero };

// point_to_voxel has one of these codes for a point without a voxel.
inline constexpr int32_t kInvalidPoint = -1;
inline constexpr int32_t kOutOfRangePoint = -2;
inline constexpr int32_t kDroppedPoint = -3;  // the voxel limit dropped its voxel

struct VoxelizeParams {
  int32_t dimension = 3;
  VoxelRounding rounding = VoxelRounding::kHalfEven;
  VoxelOrigin origin = VoxelOrigin::kMinimum;
  bool has_range = false;
  float voxel_size[kMaxDimension] = {1, 1, 1, 1};  // > 0, finite
  float range_min[kMaxDimension] = {0, 0, 0, 0};
  float range_max[kMaxDimension] = {0, 0, 0, 0};

  // Input.
  int64_t num_points = 0;                // N, below 2^31
  int32_t num_samples = 0;               // B, at most kMaxSamples
  const int64_t* point_begin = nullptr;  // [B + 1] first point of each sample; [0] is 0, [B] is N
  ConstRows axes;                        // [N] float32, the first `dimension` columns are the axes
  const uint8_t* is_valid = nullptr;     // [N], 0 where a point is invalid for the caller's reasons; may be null

  // Output. Capacities are those of N voxels; the number of voxels is sample_begin[B].
  uint64_t* keys = nullptr;             // [V of N] CoordinateKey or MortonKey, ascending, unique
  int32_t* point_to_voxel = nullptr;    // [N] row of the point's voxel, or one of the codes above
  int32_t* sorted_points = nullptr;     // [at most N] points grouped by voxel, in input order within a voxel
  int64_t* voxel_begin = nullptr;       // [V + 1 of N + 1] first entry of each voxel in sorted_points
  int64_t* sample_begin = nullptr;      // [B + 1] first voxel of each sample
  int64_t* num_invalid = nullptr;       // [B]
  int64_t* num_out_of_range = nullptr;  // [B]
  Axes* sample_origin = nullptr;        // [B] the index that coordinate 0 stands for; 0 except for kMinimum

  // CUDA only, for kMinimum. The caller expects coordinates below 2^axis_bits on every axis, so fewer bits are sorted.
  // Where max_coordinate shows that this was wrong, the voxels are wrong too.
  int32_t axis_bits = 0;              // 0: nothing is expected
  int64_t* max_coordinate = nullptr;  // [1] 0 before; output: the largest of all axes; may be null

  void* workspace =
      nullptr;  // the device's VoxelizeWorkspaceBytes(*this), contents free; aligned to 16 bytes, on CUDA 256
};
static_assert(std::is_trivially_copyable_v<VoxelizeParams>);

// Returns the size of the CPU's workspace. Reads only num_points, num_samples and dimension.
size_t VoxelizeWorkspaceBytes(const VoxelizeParams& params);

// The largest |index| that an axis can take. Half of the key's limit for kMinimum, so that what is left after the
// subtraction always fits: 65,471 cells in 3 dimensions (3.2 km at 5 cm), else 130,943.
int32_t VoxelIndexLimit(int32_t dimension, VoxelOrigin origin);

// Computes the cells of the range per axis: (range_max - range_min) / voxel_size, rounded to the nearest. May exceed
// the key's limits; callers check with CoordinateKey before they serve a model.
void GridShape(const VoxelizeParams& params, int64_t shape[kMaxDimension]);

namespace cpu {

void Voxelize(const VoxelizeParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

// Calls CUB, so it needs a device. Reads only num_points.
size_t VoxelizeWorkspaceBytes(const VoxelizeParams& params);
cudaError_t Voxelize(const VoxelizeParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
