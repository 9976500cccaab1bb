#pragma once

// SelectionMask marks the points that a network sees if it sees only a farthest point sample.

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
  const uint8_t* is_valid = nullptr;        // [N]
  int64_t num_selected = 0;                 // M, of all samples
  const int64_t* selected_begin = nullptr;  // [B + 1] first selected point of each sample; [0] is 0, [B] is M
  const int32_t* selected = nullptr;        // [M] as FarthestPointSample made them
  const int64_t* is_restricted = nullptr;   // [B] 0: all valid points of the sample are seen, selected or not

  // Output: 1 where the network sees the point. In a restricted sample these are the selected points. In other samples,
  // and where nothing was or could be selected (kNothingSelected), these are all valid points.
  uint8_t* mask = nullptr;  // [N]; not is_valid itself
};
static_assert(std::is_trivially_copyable_v<SelectionMaskParams>);

namespace cpu {

void SelectionMask(const SelectionMaskParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t SelectionMask(const SelectionMaskParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
