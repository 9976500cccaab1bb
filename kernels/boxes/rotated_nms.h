#pragma once

// RotatedNms runs greedy non-maximum suppression on rotated boxes by their overlap seen from above. It goes through the
// boxes from the best to the worst, and removes each box whose IoU with a better, kept box is above the threshold.
// Classes do not matter, unless params.classes name them: then each (input, class) is a list of its own, of the input's
// boxes of that class. Without classes, each input is a list.
//
// The definition is that of OpenPCDet's iou3d_nms: the IoU is overlap / max(area_a + area_b - overlap, 1e-8) as a
// float32. A box without area overlaps nothing, so it removes no box. Only the rounding differs: here the overlap is
// exact except for the rounding of doubles (box_overlap.h), while OpenPCDet computes in float32 and counts corners up
// to 1 cm outside of a box as inside.
//
// Boxes of different lists (for example of different heads) and of different samples do not affect each other.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/boxes/box_candidates.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

inline constexpr int32_t kMaxNmsInputs = 16;  // and lists

struct NmsInput {
  const float* boxes = nullptr;  // [num_samples, max_boxes, kBoxPitch] as box_rows.h says, best first
  int32_t max_boxes = 0;         // 1 to kMaxBoxes
};

// The limits of a class, as those of RotatedNmsParams.
struct NmsClass {
  int32_t class_id = 0;
  float iou_threshold = 0;
  int32_t max_boxes_in = 0;
  int32_t max_boxes_out = 0;
};

struct RotatedNmsParams {
  int32_t num_samples = 0;
  int32_t num_inputs = 0;
  std::array<NmsInput, kMaxNmsInputs> inputs = {};
  // The next three fields are limits of each input and sample. They count if num_classes is 0.
  float iou_threshold = 0;
  int32_t max_boxes_in = 0;   // only the first boxes are read; 0: all
  int32_t max_boxes_out = 0;  // at most this many boxes are kept
  int32_t num_classes = 0;    // 0: classes do not matter. num_inputs * num_classes is at most kMaxNmsInputs
  std::array<NmsClass, kMaxNmsInputs> classes = {};  // each class_id once
  // Output: [num_samples, NmsRows, kBoxPitch]. A sample has its kept boxes of the first list, then those of the second
  // list, and so on, the classes of an input one after the other; rows without a box follow. Must not overlap an input.
  float* boxes = nullptr;
  void* workspace = nullptr;  // on a GPU: RotatedNmsWorkspaceBytes, 256-byte aligned
};
static_assert(std::is_trivially_copyable_v<RotatedNmsParams>);

// A list of boxes: an input, or the boxes of one class of an input.
struct NmsList {
  int32_t input = 0;
  int32_t class_id = -1;  // -1: the boxes of every class
  float iou_threshold = 0;
  int32_t num_read = 0;  // the most boxes of a sample that are read
  int32_t num_kept = 0;  // the most boxes of a sample that are kept
};

constexpr int32_t NumNmsLists(const RotatedNmsParams& params) {
  return params.num_inputs * std::max(params.num_classes, 1);
}

constexpr NmsList NmsListAt(const RotatedNmsParams& params, int32_t list) {
  const bool has_classes = params.num_classes > 0;
  const int32_t input = has_classes ? list / params.num_classes : list;
  NmsClass limits = {.class_id = -1,
                     .iou_threshold = params.iou_threshold,
                     .max_boxes_in = params.max_boxes_in,
                     .max_boxes_out = params.max_boxes_out};
  if (has_classes) limits = params.classes[static_cast<size_t>(list % params.num_classes)];
  const int32_t rows = params.inputs[static_cast<size_t>(input)].max_boxes;
  const int32_t num_read = limits.max_boxes_in == 0 ? rows : std::min(rows, limits.max_boxes_in);
  return {.input = input,
          .class_id = limits.class_id,
          .iou_threshold = limits.iou_threshold,
          .num_read = num_read,
          .num_kept = std::min(num_read, limits.max_boxes_out)};
}

// Returns the number of rows of each sample's result.
constexpr int32_t NmsRows(const RotatedNmsParams& params) {
  int32_t rows = 0;
  for (int32_t list = 0; list < NumNmsLists(params); ++list) rows += NmsListAt(params, list).num_kept;
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
