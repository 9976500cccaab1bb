#pragma once

// PointOffsets computes each point's position in its voxel: the point's difference from the mean of the voxel's points,
// or from the centre of the voxel. The result has one row per point and one column per axis, in the unit of `axes`.
// Points without a voxel get 0. Differences are float32, rounded after every operation, and the same on both devices.
// They are then rounded to the output's type.
//
// Source: A. H. Lang et al., "PointPillars: Fast Encoders for Object Detection from Point Clouds", CVPR 2019.

#include <cstdint>
#include <type_traits>

#include "kernels/coordinates/conv_geometry.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct PointOffsetsParams {
  int32_t dimension = 3;
  const int32_t* point_to_voxel = nullptr;  // [points]; negative: no voxel
  ConstRows axes;                           // one row per point, below 2^31; float32, the first columns are the axes
  ConstRows means;  // [voxels, dimension] float32: offsets are from these means; null data: offsets are from centres
  // The next three members are read only for offsets from centres. [voxels] CoordinateKeys on the CPU, MortonKeys on a
  // GPU. A voxel's centre on an axis is coordinate * voxel_size + first_center.
  const uint64_t* voxel_keys = nullptr;
  float voxel_size[kMaxDimension] = {1, 1, 1, 1};
  float first_center[kMaxDimension] = {0, 0, 0, 0};
  Rows out;  // [points (on CUDA out.num_rows if it is set), dimension]; the CPU only supports float32
};
static_assert(std::is_trivially_copyable_v<PointOffsetsParams>);

namespace cpu {

void PointOffsets(const PointOffsetsParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t PointOffsets(const PointOffsetsParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
