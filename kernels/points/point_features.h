#pragma once

// PointFeatures converts the features of the points of all samples to the network's type, one row per point. Points
// without a voxel get 0.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct PointFeaturesParams {
  const int32_t* point_to_voxel = nullptr;  // [points]; negative: no voxel
  ConstRows features;                       // one row per point, below 2^31; float32
  Rows out;  // one row per point (on CUDA out.num_rows if it is set), features' channels; the CPU only supports float32
};
static_assert(std::is_trivially_copyable_v<PointFeaturesParams>);

namespace cpu {

void PointFeatures(const PointFeaturesParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t PointFeatures(const PointFeaturesParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
