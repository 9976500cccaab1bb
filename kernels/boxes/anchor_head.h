#pragma once

// Decodes boxes from the images of SECOND's head (Y. Yan et al., "SECOND: Sparsely Embedded Convolutional Detection",
// Sensors 2018) as OpenPCDet's AnchorHeadSingle does: box_coder_utils.py ResidualCoder, anchor_generator.py with
// align_center false, anchor_head_template.py.
//
// Cell (row, column) has anchors with centres x = range_min[0] + column * (range_max[0] - range_min[0]) / (columns - 1)
// (range_min[0] for one column), y in the same way, z = bottom + height / 2. A box has the class with the best score,
// whatever the anchor's class is; its score is that class's sigmoid. Residuals d give:
//   x = d[0] * diagonal + xa, diagonal = sqrt(length_a^2 + width_a^2), y in the same way, z = d[2] * height_a + za,
//   length, width, height = exp(d[3..5]) * those of the anchor, r = d[6] + ra,
//   yaw = limit(r - direction_offset) + direction_offset + period * bin, turned into [-pi, pi], period = 2 pi / bins,
//   limit(v) = v - floor(v / period + direction_limit_offset) * period, bin the first of the largest directions.
// Between equal scores the lower (cell, anchor) is better, and within an anchor the lower class. NaN and infinite
// logits are ignored, and so are NaN directions. A box with a NaN or infinite number is dropped; its place stays empty.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <type_traits>

#include "kernels/boxes/box_candidates.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/dtype.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

inline constexpr int32_t kAnchorResiduals = 7;  // x, y, z, length, width, height, yaw

struct AnchorBox {
  std::array<float, 3> size = {1, 1, 1};  // length, width, height in metres
  float bottom = 0;                       // z of the lower face
  float yaw = 0;
};

struct AnchorHeadParams {
  int32_t num_samples = 0;
  DType dtype = DType::kFloat32;  // of the images; float32 only on the CPU
  int32_t num_rows = 0;           // of the images
  int32_t num_columns = 0;
  int32_t num_classes = 0;
  std::array<int32_t, kMaxHeadClasses> class_ids = {};  // [num_classes]
  int32_t num_anchors = 0;
  std::array<AnchorBox, kMaxHeadAnchors> anchors = {};  // [num_anchors] of every cell
  ImageChannels scores;                                 // [num_anchors, num_classes] logits
  ImageChannels residuals;                              // [num_anchors, kAnchorResiduals]
  ImageChannels directions;                             // [num_anchors, num_direction_bins]

  std::array<float, 2> range_min = {0, 0};  // metres
  std::array<float, 2> range_max = {0, 0};
  int32_t num_direction_bins = 2;  // 1 to kMaxDirectionBins
  float direction_offset = 0;      // radians
  float direction_limit_offset = 0;
  float score_threshold = 0;  // scores must be at least this

  int32_t max_boxes = 0;   // 1 to kMaxBoxes
  float* boxes = nullptr;  // [num_samples, max_boxes, kBoxPitch] as box_rows.h says
  // [num_samples] The kernel adds the number of candidates that are dropped because their logit or another number is
  // not finite. It may be in page-locked host memory, since such candidates are rare. Null: nothing is counted.
  uint32_t* num_not_finite = nullptr;
  void* workspace = nullptr;  // on a GPU: AnchorHeadWorkspaceBytes, 256-byte aligned
};
static_assert(std::is_trivially_copyable_v<AnchorHeadParams>);

namespace cpu {

// memory: for temporary arrays.
void DecodeAnchorHead(const AnchorHeadParams& params, ThreadPool& pool,
                      std::pmr::memory_resource* memory = std::pmr::get_default_resource());

}  // namespace cpu

namespace cuda {

// Reads the numbers in params, not the pointers.
size_t AnchorHeadWorkspaceBytes(const AnchorHeadParams& params);
cudaError_t DecodeAnchorHead(const AnchorHeadParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
