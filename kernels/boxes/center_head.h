#pragma once

// Decodes boxes from the images of CenterPoint's heads (T. Yin et al., "Center-based 3D Object Detection and Tracking",
// CVPR 2021), as OpenPCDet's centernet_utils.py or det3d's center_head.py does. A network has one head per task; one
// call decodes all of them. Where only some cells of an image have sites, rows of these sites stand for the image.
//
// A cell (row, column) of class k has score sigmoid(heatmap[k]), and
//   x = (column + center[0]) * stride * voxel_size[0] + range_min[0], y in the same way from the row and center[1],
//   z = height, (length, width, height) = exp(dim), yaw = atan2(sin, cos), velocity = vel, or 0.
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

enum class CenterHeadConvention : int32_t {
  // The candidates are the max_boxes best pairs (class, cell). A candidate below the threshold, out of range or without
  // a box leaves its place empty. Between equal scores the lower class is better, then the lower cell. rot is (cos,
  // sin).
  kOpenPcdet,
  // Each cell has only its best class (between equal scores the lowest). Cells below the threshold, out of range or
  // without a box are left out. The max_boxes best of the others are taken, in the same order. rot is (sin, cos).
  kDet3d,
};

struct CenterHead {
  CenterHeadConvention convention = CenterHeadConvention::kOpenPcdet;
  int32_t num_rows = 0;  // of the images
  int32_t num_columns = 0;
  int32_t num_classes = 0;
  std::array<int32_t, kMaxHeadClasses> class_ids = {};  // [num_classes], what boxes say
  ImageChannels heatmap;                                // [num_classes] logits
  ImageChannels center;                                 // [2]
  ImageChannels height;                                 // [1]
  ImageChannels dim;                                    // [3] logarithms
  ImageChannels rot;                                    // [2]
  ImageChannels vel;                                    // [2]; null data: none

  float stride = 1;  // a cell in voxels
  std::array<float, 2> voxel_size = {1, 1};
  std::array<float, 2> range_min = {0, 0};
  float score_threshold = 0;  // scores are above it
  // A centre lies within, bounds included.
  std::array<float, 3> center_min = {std::numeric_limits<float>::lowest(), std::numeric_limits<float>::lowest(),
                                     std::numeric_limits<float>::lowest()};
  std::array<float, 3> center_max = {std::numeric_limits<float>::max(), std::numeric_limits<float>::max(),
                                     std::numeric_limits<float>::max()};

  int32_t max_boxes = 0;   // 1 to kMaxBoxes
  float* boxes = nullptr;  // [num_samples, max_boxes, kBoxPitch] as box_rows.h says
};

struct CenterHeadParams {
  int32_t num_samples = 0;
  DType dtype = DType::kFloat32;  // of all images; float32 only on the CPU
  int32_t num_heads = 0;
  std::array<CenterHead, kMaxCenterHeads> heads = {};
  // [num_samples * cells of an image] for heads with rows on sites (VoxelNeXt: Y. Chen et al., CVPR 2023): the row of
  // each cell's site. -1: the cell has no site and no box. All heads then have the same size. Null: images have one row
  // per cell.
  const int32_t* site_of = nullptr;
  // [num_samples] The kernel adds the number of candidates that are dropped because their logit or another number is
  // not finite. It may be in page-locked host memory, since such candidates are rare. Null: nothing is counted.
  uint32_t* num_not_finite = nullptr;
  void* workspace = nullptr;  // on a GPU: CenterHeadWorkspaceBytes, 256-byte aligned
};
static_assert(std::is_trivially_copyable_v<CenterHeadParams>);

namespace cpu {

// memory: for temporary arrays.
void DecodeCenterHeads(const CenterHeadParams& params, ThreadPool& pool,
                       std::pmr::memory_resource* memory = std::pmr::get_default_resource());

}  // namespace cpu

namespace cuda {

// Reads the numbers in params, not the pointers.
size_t CenterHeadWorkspaceBytes(const CenterHeadParams& params);
cudaError_t DecodeCenterHeads(const CenterHeadParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
