#pragma once

// The cloud's features, a row a point, in the type of the network; of points without a voxel 0.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/dtype.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct PointFeaturesParams {
  int64_t num_points = 0;                   // below 2^31
  const int32_t* point_to_voxel = nullptr;  // [num_points]; negative: no voxel
  int32_t channels = 0;
  const float* features = nullptr;  // [num_points, features_pitch]
  int64_t features_pitch = 0;       // floats

  DType dtype = DType::kFloat32;  // of out; the CPU has float32 alone
  void* out = nullptr;            // [num_points, channels], rows out_pitch values apart
  int64_t out_pitch = 0;
};
static_assert(std::is_trivially_copyable_v<PointFeaturesParams>);

namespace cpu {

void PointFeatures(const PointFeaturesParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t PointFeatures(const PointFeaturesParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
