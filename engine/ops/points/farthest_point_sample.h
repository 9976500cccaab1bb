#pragma once

// These functions sample the farthest points of clouds in host memory, on the context's device: on the threads of its
// pool, or on the stream of its GPU. kernels/points/farthest/farthest_point_sample.h defines the selection. A cloud's
// selection is the same on every device and does not depend on the other clouds. For points in device memory, call the
// kernel.
//
// - A context has one caller at a time. The functions return when the work is done. On a GPU they use the memory of the
//   context's batches.
// - Points with a NaN or infinite coordinate are never selected. If the start is such a point, the next valid point
//   takes its place; the first point follows the last.
// - `asked` says how many points M a cloud selects (0: none) and where it starts. FarthestPoints::restricts_network is
//   ignored.
//
// Errors:
// - INVALID_ARGUMENT: BAD_LAYOUT for shapes or offsets that do not fit; BAD_SAMPLE if a cloud has fewer valid points
//   than M, or if the start is not one of its points. The message names the cloud and both numbers.
// - RESOURCE_EXHAUSTED: TOO_MANY_POINTS above 2^31 - 1 points in all, OUT_OF_MEMORY if memory does not suffice.
// - UNAVAILABLE (DEVICE_FAILED): the GPU failed.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/geometry/batch_counts.h"
#include "engine/geometry/point_sampling.h"
#include "engine/runtime/execution_context.h"
#include "engine/tensor/farthest_points.h"

namespace voxserve {

// points: [B, N, 3] in metres, B at most kernels::kMaxSamples. Returns [B, M] indices within each cloud, in the order
// of selection. A seed draws the same start for all clouds.
absl::StatusOr<std::vector<int32_t>> FarthestPointSample(absl::Span<const float> points, int64_t num_samples,
                                                         int64_t num_points, const FarthestPoints& asked,
                                                         ExecutionContext& context);

// Samples clouds of any sizes. points: [P, 3]. point_begin: [B + 1], from 0 to P; cloud b has the points
// [point_begin[b], point_begin[b + 1]). asked: [B], one per cloud, or [1] for all. Returns indices within each cloud,
// the M of the first cloud, then the M of the next.
absl::StatusOr<std::vector<int32_t>> RaggedFarthestPointSample(absl::Span<const float> points,
                                                               absl::Span<const int64_t> point_begin,
                                                               absl::Span<const FarthestPoints> asked,
                                                               ExecutionContext& context);

namespace internal {

// Returns num_valid and selected_points. The clouds have been checked, and `sampling` is not empty.
absl::StatusOr<BatchCounts> SelectOnCuda(absl::Span<const float> points, absl::Span<const int64_t> point_begin,
                                         const PointSampling& sampling, CudaContext& context);

}  // namespace internal
}  // namespace voxserve
