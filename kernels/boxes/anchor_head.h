#pragma once

// DecodeAnchorHead decodes boxes from the images of SECOND's head (Y. Yan et al., "SECOND: Sparsely Embedded
// Convolutional Detection", Sensors 2018) as OpenPCDet's AnchorHeadSingle does: box_coder_utils.py ResidualCoder,
// anchor_generator.py with align_center false, anchor_head_template.py.
//
// An anchor is a box of a fixed size and yaw at a cell of the image. The network predicts residuals: differences
// between a box and its anchor. An anchor of cell (row, column) has its centre at
//   x = range_min[0] + column * (range_max[0] - range_min[0]) / (columns - 1), or range_min[0] if there is one column,
//   y = the same formula with row, rows and axis 1, z = bottom + height / 2.
// From an anchor (xa, ya, za, length_a, width_a, height_a, ra) and its residuals d, the box is
//   x = d[0] * diagonal + xa, y = d[1] * diagonal + ya, z = d[2] * height_a + za, with
//   diagonal = sqrt(length_a^2 + width_a^2),
//   (length, width, height) = exp(d[3..5]) * (length_a, width_a, height_a),
//   yaw = limit(d[6] + ra - direction_offset) + direction_offset + period * bin, turned into [-pi, pi], with
//   limit(v) = v - floor(v / period + direction_limit_offset) * period, period = 2 pi / num_direction_bins, and
//   bin = the index of the largest direction value, the lowest index if several are equal.
//
// An anchor makes at most one box: that of its best class. The box's score is the sigmoid of that class's logit. If two
// scores are equal, the lower (cell, anchor) is better; within an anchor the lower class is better. NaN and infinite
// logits are ignored, and so are NaN directions. Only the max_boxes best candidates of each sample are decoded. A box
// with a NaN or infinite number is dropped, and no further candidate replaces it.

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
  DType dtype = DType::kFloat32;  // type of the images' values; the CPU only supports float32
  int32_t num_rows = 0;           // size of one image, in cells
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
  float score_threshold = 0;  // a box's score is at least this

  int32_t max_boxes = 0;   // 1 to kMaxBoxes
  float* boxes = nullptr;  // [num_samples, max_boxes, kBoxPitch] as box_rows.h says
  // [num_samples] DecodeAnchorHead adds the number of candidates that are dropped because their logit or another number
  // is not finite. The array may be in page-locked host memory, since such candidates are rare. Null: nothing is
  // counted.
  uint32_t* num_not_finite = nullptr;
  void* workspace = nullptr;  // on a GPU: AnchorHeadWorkspaceBytes, 256-byte aligned
};
static_assert(std::is_trivially_copyable_v<AnchorHeadParams>);

namespace cpu {

// Temporary arrays are allocated from `memory`. Throws std::bad_alloc if it is used up.
void DecodeAnchorHead(const AnchorHeadParams& params, ThreadPool& pool,
                      std::pmr::memory_resource* memory = std::pmr::get_default_resource());

}  // namespace cpu

namespace cuda {

// Returns the bytes of params.workspace. Reads the numbers in params, not the pointers.
size_t AnchorHeadWorkspaceBytes(const AnchorHeadParams& params);
cudaError_t DecodeAnchorHead(const AnchorHeadParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
