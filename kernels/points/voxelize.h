#pragma once

// Voxelize finds the voxel of every point, and lists the points of every voxel. VoxelFeatures (voxel_features.h) makes
// the voxels' features from these lists.
//
// A point's index on an axis is rounding(x / voxel_size); with the origin kRange it is
// rounding((x - range_min) / voxel_size). The index is computed in float32, with a true division, not with the
// reciprocal. The origin defines the voxel's coordinate from the index, and which points are out of range:
//
//   origin    coordinate                                              out of range
//   kMinimum  index - the sample's smallest index per axis, taken     |index| > VoxelIndexLimit(dimension, kMinimum)
//             over the points that are neither invalid nor out of range
//   kRange    index                                                   index < 0 or >= GridShape per axis
//   kZero     index                                                   |index| > VoxelIndexLimit(dimension, kZero)
//
// If has_range (required for kRange), a point is also out of range unless range_min <= x < range_max on every axis. A
// point is invalid if an axis is NaN or infinite, or if the caller's mask excludes it. Invalid points and points out of
// range have no voxel.
//
// Voxels are sorted by the device's keys: CoordinateKeys on the CPU (by sample, then coordinate), MortonKeys on CUDA
// (by sample, then Z order). A voxel's points are in input order. Apart from the order of voxels, both devices give the
// same result, bit for bit. A sample's voxels do not depend on other samples. Without a valid point there are 0 voxels;
// this is no error.

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
inline constexpr int32_t kDroppedPoint = -3;  // LimitVoxels (voxel_limit.h) has dropped the point's voxel

struct VoxelizeParams {
  int32_t dimension = 3;
  VoxelRounding rounding = VoxelRounding::kHalfEven;
  VoxelOrigin origin = VoxelOrigin::kMinimum;
  bool has_range = false;
  float voxel_size[kMaxDimension] = {1, 1, 1, 1};  // > 0, finite
  float range_min[kMaxDimension] = {0, 0, 0, 0};
  float range_max[kMaxDimension] = {0, 0, 0, 0};

  // Input.
  // N, below 2^31. On CUDA it is an upper bound: the true number of points is point_begin[B], and arrays of N have room
  // for num_points. So a batch can be launched before the host knows its points (a captured graph).
  int64_t num_points = 0;
  int32_t num_samples = 0;               // B, at most kMaxSamples
  const int64_t* point_begin = nullptr;  // [B + 1] first point of each sample; [0] is 0, [B] is N
  ConstRows axes;                        // [N] float32, the first `dimension` columns are the axes
  const uint8_t* is_valid = nullptr;     // [N] the caller's mask, 0: the point is invalid; null: no point is excluded

  // Output. Arrays have room for N voxels; V, the number of voxels, is sample_begin[B].
  uint64_t* keys = nullptr;             // [V of N] CoordinateKeys or MortonKeys, ascending, unique
  int32_t* point_to_voxel = nullptr;    // [N] row of the point's voxel, or one of the codes above
  int32_t* sorted_points = nullptr;     // [at most N] points grouped by voxel, in input order within a voxel
  int64_t* voxel_begin = nullptr;       // [V + 1 of N + 1] first entry of each voxel in sorted_points
  int64_t* sample_begin = nullptr;      // [B + 1] first voxel of each sample
  int64_t* num_invalid = nullptr;       // [B]
  int64_t* num_out_of_range = nullptr;  // [B]
  Axes* sample_origin = nullptr;        // [B] the index of coordinate 0; 0 except with kMinimum

  // CUDA only, for kMinimum: how many bits the caller expects the coordinates of each axis to need (AxisBitsFor), so
  // that Voxelize sorts by fewer bits; 0: nothing is expected of the axis. If max_coordinate does not fit these bits
  // (FitsAxisBits), the expectation and all voxels are wrong.
  Axes axis_bits = {0, 0, 0, 0};
  // CUDA only: [kMaxDimension] the caller sets it to 0; output: the largest coordinate of all samples on each axis. May
  // be null.
  int64_t* max_coordinate = nullptr;

  // VoxelizeWorkspaceBytes(*this) of the device's namespace, any contents; aligned to 16 bytes on the CPU, 256 on CUDA.
  void* workspace = nullptr;
};
static_assert(std::is_trivially_copyable_v<VoxelizeParams>);

// Returns the size of the CPU's workspace. Reads only num_points, num_samples and dimension.
size_t VoxelizeWorkspaceBytes(const VoxelizeParams& params);

// Returns the largest |index| of a voxel on an axis. In 3 dimensions this is 130,943 cells, the limit of a key's
// coordinates. With kMinimum it is half of that, 65,471 cells (3.2 km at 5 cm), so that the difference of two indices
// is within the key's limit.
int32_t VoxelIndexLimit(int32_t dimension, VoxelOrigin origin);

// Sets shape to the range's number of cells per axis: (range_max - range_min) / voxel_size, rounded to the nearest. The
// result may exceed a key's limits; callers check this with CoordinateKey before they serve a model.
void GridShape(const VoxelizeParams& params, int64_t shape[kMaxDimension]);

// Returns a box [0, extent) that contains the coordinates of all voxels: the grid with kRange; with kMinimum the
// coordinates that fit axis_bits (FitsAxisBits). An axis has extent 0 if its end is not known or is beyond an int32.
Axes VoxelExtent(const VoxelizeParams& params);

namespace cpu {

void Voxelize(const VoxelizeParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

// Returns the bytes of CUDA's workspace. Above 16 million points it needs a device (SortPairsScratchBytes). Reads only
// num_points.
size_t VoxelizeWorkspaceBytes(const VoxelizeParams& params);
cudaError_t Voxelize(const VoxelizeParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
