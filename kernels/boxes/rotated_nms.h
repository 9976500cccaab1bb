#pragma once

// RotatedNms runs greedy non-maximum suppression on rotated boxes by their overlap seen from above. It goes through the
// boxes from the best to the worst, and removes each box whose IoU with a better, kept box is above the threshold.
// Classes do not matter.
//
// The definition is that of OpenPCDet's iou3d_nms: the IoU is overlap / max(area_a + area_b - overlap, 1e-8) as a
// float32. A box without area overlaps nothing, so it removes no box. Only the rounding differs: here the overlap is
// exact except for the rounding of doubles (box_overlap.h), while OpenPCDet computes in float32 and counts corners up
// to 1 cm outside of a box as inside.
//
// Boxes of different inputs (for example of different heads) and of different samples do not affect each other.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/boxes/box_candidates.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

inline constexpr int32_t kMaxNmsInputs = 16;

struct NmsInput {
  const float* boxes = nullptr;  // [num_samples, max_boxes, kBoxPitch] as box_rows.h says, best first
  int32_t max_boxes = 0;         // 1 to kMaxBoxes
};

struct RotatedNmsParams {
  int32_t num_samples = 0;
  int32_t num_inputs = 0;
  std::array<NmsInput, kMaxNmsInputs> inputs = {};
  float iou_threshold = 0;
  int32_t max_boxes_in = 0;   // only the first boxes of each input and sample are read; 0: all
  int32_t max_boxes_out = 0;  // at most this many boxes of each input and sample are kept
  // Output: [num_samples, NmsRows, kBoxPitch]. A sample has its kept boxes of the first input, then those of the second
  // input, and so on; rows without a box follow. Must not overlap an input.
  float* boxes = nullptr;
  void* workspace = nullptr;  // on a GPU: RotatedNmsWorkspaceBytes, 256-byte aligned
};
static_assert(std::is_trivially_copyable_v<RotatedNmsParams>);

// Returns the number of an input's rows that are read for each sample.
constexpr int32_t NmsReadRows(const RotatedNmsParams& params, int32_t input) {
  const int32_t rows = params.inputs[static_cast<size_t>(input)].max_boxes;
  return params.max_boxes_in == 0 ? rows : std::min(rows, params.max_boxes_in);
}
// Returns the largest number of an input's rows that are kept for each sample.
constexpr int32_t NmsKeptRows(const RotatedNmsParams& params, int32_t input) {
  return std::min(NmsReadRows(params, input), params.max_boxes_out);
}

// Returns the number of rows of each sample's result.
constexpr int32_t NmsRows(const RotatedNmsParams& params) {
  int32_t rows = 0;
  for (int32_t input = 0; input < params.num_inputs; ++input) rows += NmsKeptRows(params, input);
  return rows;
}

namespace cpu {

void RotatedNms(const RotatedNmsParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

// Returns the bytes of params.workspace. Reads the numbers in params, not the pointers.
size_t RotatedNmsWorkspaceBytes(const RotatedNmsParams& params);
cudaError_t RotatedNms(const RotatedNmsParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
