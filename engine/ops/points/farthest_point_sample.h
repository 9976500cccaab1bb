#pragma once

// Farthest point sampling of clouds in host memory, on the context's device: its pool's threads, or its GPU's stream.
// What is selected is said in kernels/points/farthest/farthest_point_sample.h, and is the same on every device and
// whatever the other clouds of the batch are. Points of device memory: the kernel.
//
// A context has one caller at a time; these return when the work is done. On a GPU they take the memory that the
// context's batches have.
//
// Points with a coordinate that is NaN or infinite are never selected; where the start is one, the next valid point
// takes its place, the first after the last. `asked` says how many points a cloud selects, M, of 0 none, and where it
// starts: FarthestPoints::restricts_network is of no meaning here.
//
// INVALID_ARGUMENT: BAD_LAYOUT for shapes or offsets that do not fit, BAD_SAMPLE for a cloud of fewer valid points than
// M or without the start, naming it and both numbers. RESOURCE_EXHAUSTED: TOO_MANY_POINTS above 2^31 - 1 points,
// OUT_OF_MEMORY. UNAVAILABLE (DEVICE_FAILED): a GPU that broke.

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

// Clouds of any sizes: points [P, 3], of which cloud b has those from point_begin[b] to point_begin[b + 1]; [B + 1],
// from 0 to P. asked: one for every cloud, [B], or one for all, [1]. Returns the indices within each cloud, M of the
// first and then M of the next.
absl::StatusOr<std::vector<int32_t>> RaggedFarthestPointSample(absl::Span<const float> points,
                                                               absl::Span<const int64_t> point_begin,
                                                               absl::Span<const FarthestPoints> asked,
                                                               ExecutionContext& context);

namespace internal {

// num_valid and selected_points of clouds that have been checked; `sampling` is not empty.
absl::StatusOr<BatchCounts> SelectOnCuda(absl::Span<const float> points, absl::Span<const int64_t> point_begin,
                                         const PointSampling& sampling, CudaContext& context);

}  // namespace internal
}  // namespace voxserve
