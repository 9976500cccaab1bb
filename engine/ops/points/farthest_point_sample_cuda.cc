#include <cuda_runtime_api.h>

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/geometry/device_geometry.h"
#include "engine/ops/points/farthest_point_sample.h"
#include "engine/runtime/cuda_status.h"

namespace voxserve::internal {
namespace {

// Copies values into the context's batch arena. CUDA has read pageable memory when the copy call returns, so `values`
// need not live longer.
template <typename T>
absl::StatusOr<const T*> CopyIn(absl::Span<const T> values, CudaContext& context) {
  ASSIGN_OR_RETURN(T * copy, context.batch.TakeArray<T>(static_cast<int64_t>(values.size())));
  RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(copy, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice,
                                       context.stream.view().get()));
  return copy;
}

absl::Status Queue(absl::Span<const float> points, absl::Span<const int64_t> point_begin, const PointSampling& sampling,
                   CudaContext& context, DeviceGeometry& geometry) {
  context.batch.Reset();
  kernels::VoxelizeParams params{.num_points = point_begin.back(),
                                 .num_samples = static_cast<int32_t>(point_begin.size()) - 1};
  ASSIGN_OR_RETURN(const float* const axes, CopyIn(points, context));
  params.axes = kernels::ConstRows::Packed(axes, kernels::DType::kFloat32, params.num_points, 3);
  ASSIGN_OR_RETURN(params.point_begin, CopyIn(point_begin, context));
  ASSIGN_OR_RETURN(const int64_t* const words, CopyIn(sampling.words(), context));
  RETURN_IF_ERROR(
      geometry.Begin({.num_samples = params.num_samples, .num_levels = 1, .num_selected = sampling.num_selected()},
                     /*capacities=*/{}, context));
  return geometry.SamplePoints(sampling, words, MostPoints(point_begin), &params);
}

}  // namespace

absl::StatusOr<BatchCounts> SelectOnCuda(absl::Span<const float> points, absl::Span<const int64_t> point_begin,
                                         const PointSampling& sampling, CudaContext& context) {
  RETURN_IF_ERROR(context.MakeCurrent());
  DeviceGeometry geometry;
  absl::Status counted = Queue(points, point_begin, sampling, context, geometry);
  if (counted.ok()) counted = geometry.WaitForSizes();
  if (!counted.ok()) {
    // No kernel of these clouds may still run when the memory is used again.
    RETURN_IF_ERROR(context.stream.view().Synchronize());
    return counted;
  }
  return BatchCounts(std::move(geometry));
}

}  // namespace voxserve::internal
