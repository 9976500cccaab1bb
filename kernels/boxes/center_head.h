#pragma once

// DecodeCenterHeads decodes boxes from the images of CenterPoint's heads (T. Yin et al., "Center-based 3D Object
// Detection and Tracking", CVPR 2021), as OpenPCDet's centernet_utils.py or det3d's center_head.py does. A network has
// one head per task (a group of classes); one call decodes all heads.
//
// Images are dense, with one row of values per cell, or sparse (VoxelNeXt: Y. Chen et al., CVPR 2023): only cells with
// a site have a row, and site_of gives each cell's row.
//
// For class k, a cell (row, column) gives a box with the score sigmoid(heatmap[k]) and
//   x = (column + center[0]) * stride * voxel_size[0] + range_min[0],
//   y = (row + center[1]) * stride * voxel_size[1] + range_min[1],
//   z = height, (length, width, height) = exp(dim), yaw = atan2(sin, cos), velocity = vel, or 0 without vel.
// With IoU powers p, a cell also predicts its box's IoU, and a chosen box of class k has the score
//   sigmoid(heatmap[k])^(1 - p[k]) * min(max(iou, 0), 1)^p[k].
// The boxes are then ordered by these; equal ones by class, then by cell.
// NaN and infinite logits make no candidate. A box with a NaN or infinite number is dropped.

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <type_traits>

#include "kernels/boxes/box_candidates.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/dtype.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

inline constexpr int32_t kMaxCenterHeads = 16;

// The two conventions differ in which candidates become boxes, and in the order of the two channels of `rot`. In both,
// the better of two boxes with equal scores has the lower class, then the lower cell.
enum class CenterHeadConvention : int32_t {
  // The max_boxes best pairs (class, cell) are chosen first. Pairs that are not above the score threshold, have their
  // centre out of range or have a number that is not finite are then dropped, and no further pair replaces them. rot is
  // (cos, sin).
  kOpenPcdet,
  // Each cell has only its best class (the lowest class of several with the same score). Cells that are not above the
  // threshold, out of range or not finite are dropped first. The max_boxes best of the remaining cells become boxes.
  // rot is (sin, cos).
  kDet3d,
};

struct CenterHead {
  CenterHeadConvention convention = CenterHeadConvention::kOpenPcdet;
  int32_t num_rows = 0;  // size of one image, in cells
  int32_t num_columns = 0;
  int32_t num_classes = 0;
  std::array<int32_t, kMaxHeadClasses> class_ids = {};  // [num_classes] values of the boxes' column kBoxClass
  ImageChannels heatmap;                                // [num_classes] logits
  ImageChannels center;                                 // [2]
  ImageChannels height;                                 // [1]
  ImageChannels dim;                                    // [3] logarithms
  ImageChannels rot;                                    // [2]
  ImageChannels vel;                                    // [2]; null data: none
  ImageChannels iou;                                    // [1]; null data: none. Only with kOpenPcdet
  std::array<float, kMaxHeadClasses> iou_powers = {};   // [num_classes] 0 to 1, with iou

  float stride = 1;                          // side of a cell, in voxels
  std::array<float, 2> voxel_size = {1, 1};  // x, y; metres
  std::array<float, 2> range_min = {0, 0};   // x, y; metres
  float score_threshold = 0;                 // a box's score is above it
  // A box's centre lies in [center_min, center_max] (x, y, z; metres), bounds included.
  std::array<float, 3> center_min = {std::numeric_limits<float>::lowest(), std::numeric_limits<float>::lowest(),
                                     std::numeric_limits<float>::lowest()};
  std::array<float, 3> center_max = {std::numeric_limits<float>::max(), std::numeric_limits<float>::max(),
                                     std::numeric_limits<float>::max()};

  int32_t max_boxes = 0;   // 1 to kMaxBoxes
  float* boxes = nullptr;  // [num_samples, max_boxes, kBoxPitch] as box_rows.h says
};

struct CenterHeadParams {
  int32_t num_samples = 0;
  DType dtype = DType::kFloat32;  // type of the values of all images; the CPU only supports float32
  int32_t num_heads = 0;
  std::array<CenterHead, kMaxCenterHeads> heads = {};
  // Null for dense images. For sparse images: [num_samples * cells of an image] the row of each cell's site, or -1 if
  // the cell has no site, and so no box. All heads then have the same num_rows and num_columns.
  const int32_t* site_of = nullptr;
  // [num_samples] DecodeCenterHeads adds the number of candidates that are dropped because their logit or another
  // number is not finite. The array may be in page-locked host memory, since such candidates are rare. Null: nothing is
  // counted.
  uint32_t* num_not_finite = nullptr;
  void* workspace = nullptr;  // on a GPU: CenterHeadWorkspaceBytes, 256-byte aligned
};
static_assert(std::is_trivially_copyable_v<CenterHeadParams>);

namespace cpu {

// Temporary arrays are allocated from `memory`. Throws std::bad_alloc if it is used up.
void DecodeCenterHeads(const CenterHeadParams& params, ThreadPool& pool,
                       std::pmr::memory_resource* memory = std::pmr::get_default_resource());

}  // namespace cpu

namespace cuda {

// Returns the bytes of params.workspace. Reads the numbers in params, not the pointers.
size_t CenterHeadWorkspaceBytes(const CenterHeadParams& params);
cudaError_t DecodeCenterHeads(const CenterHeadParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
