#pragma once

// SelectionMask marks the points that a network reads. In restricted samples, a network reads only the points that
// FarthestPointSample (farthest_point_sample.h) has selected; in other samples, it reads all valid points.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct SelectionMaskParams {
  // Input.
  int64_t num_points = 0;                   // N, of all samples
  int32_t num_samples = 0;                  // B
  const int64_t* point_begin = nullptr;     // [B + 1] first point of each sample; [0] is 0, [B] is N
  const uint8_t* is_valid = nullptr;        // [N] 0: the point is invalid
  int64_t num_selected = 0;                 // M, of all samples
  const int64_t* selected_begin = nullptr;  // [B + 1] first selected point of each sample; [0] is 0, [B] is M
  const int32_t* selected = nullptr;        // [M] as FarthestPointSample made them
  const int64_t* is_restricted = nullptr;   // [B] not 0: the sample is restricted to its selected points

  // Output: [N] not 0 if the network reads the point. If no point of a restricted sample was selected (none was asked
  // for, or all entries are kNothingSelected), the sample's entries are those of is_valid. Must not overlap is_valid.
  uint8_t* mask = nullptr;
};
static_assert(std::is_trivially_copyable_v<SelectionMaskParams>);

namespace cpu {

void SelectionMask(const SelectionMaskParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t SelectionMask(const SelectionMaskParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
