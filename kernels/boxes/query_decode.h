#pragma once

// DecodeQueries decodes boxes from the queries of a selection (selection.h) and the rows that a network has made for
// them, as TransFusion's head does: OpenPCDet's transfusion_head.py, mit-han-lab/bevfusion's transfusion_bbox_coder.py,
// autoware-ml's bbox_coders.py.
//
// A query of class k at the cell (row, column) gives a box with
//   score = sigmoid(heatmap[k]) * its score in the selection,
//   x = (center[0] + (column + 0.5)) * stride * voxel_size[0] + range_min[0], y in the same way from row and center[1],
//   (length, width, height) = exp(dim), yaw = atan2(rot[0], rot[1]), velocity = vel, or 0 without vel,
//   z = height, or height - exp(dim[2]) / 2 (QueryHeight).
//
// - Boxes are in the order of their scores in float32; of equal ones, that of the lower query comes first.
// - A query whose score is not above its class's threshold makes no box, and one with a selected score of 0 never does.
// - A NaN or infinite heatmap[k] makes no box. A box with a NaN or infinite number is dropped.
// - The column kBoxQuery of a box is 1 + the query's number.

#include <array>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <type_traits>

#include "kernels/boxes/box_candidates.h"
#include "kernels/boxes/selection.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/dtype.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

enum class QueryHeight : int32_t {
  kCenter,  // `height` is z of the box's centre
  kTop,     // of its upper face
};

struct QueryDecodeParams {
  int32_t num_samples = 0;
  int32_t k = 0;                  // queries of a sample, 1 to kMaxQueries
  DType dtype = DType::kFloat32;  // type of the rows below; the CPU only supports float32
  int32_t num_classes = 0;
  std::array<int32_t, kMaxHeadClasses> class_ids = {};  // [num_classes] values of the boxes' column kBoxClass
  const float* selection = nullptr;                     // [num_samples, k, kSelectionColumns]
  // Rows of the queries, [num_samples * k].
  ImageChannels heatmap;  // [num_classes] logits
  ImageChannels center;   // [2] in cells, from the middle of the query's cell
  ImageChannels height;   // [1] metres
  ImageChannels dim;      // [3] logarithms
  ImageChannels rot;      // [2] sine, cosine
  ImageChannels vel;      // [2]; null data: none

  float stride = 1;                                          // side of a cell, in voxels
  std::array<float, 2> voxel_size = {1, 1};                  // x, y; metres
  std::array<float, 2> range_min = {0, 0};                   // x, y; metres
  std::array<float, kMaxHeadClasses> score_thresholds = {};  // by class; 0 or more. A box's score is above it
  std::array<float, kMaxHeadClasses> min_rot_lengths = {};   // by class. The length of rot is at least this
  QueryHeight height_of = QueryHeight::kCenter;
  // A box's centre lies in [center_min, center_max] (x, y, z; metres), bounds included. bounds_bottom: on z that holds
  // for the lower face, z - height / 2, in place of the centre.
  std::array<float, 3> center_min = {std::numeric_limits<float>::lowest(), std::numeric_limits<float>::lowest(),
                                     std::numeric_limits<float>::lowest()};
  std::array<float, 3> center_max = {std::numeric_limits<float>::max(), std::numeric_limits<float>::max(),
                                     std::numeric_limits<float>::max()};
  bool bounds_bottom = false;

  int32_t max_boxes = 0;   // 1 to k
  float* boxes = nullptr;  // [num_samples, max_boxes, kBoxPitch] as box_rows.h says
  // [num_samples] DecodeQueries adds the number of queries that are dropped because their logit or another number is
  // not finite. The array may be in page-locked host memory, since such queries are rare. Null: nothing is counted.
  uint32_t* num_not_finite = nullptr;
};
static_assert(std::is_trivially_copyable_v<QueryDecodeParams>);

namespace cpu {

// Temporary arrays are allocated from `memory`. Throws std::bad_alloc if it is used up.
void DecodeQueries(const QueryDecodeParams& params, ThreadPool& pool,
                   std::pmr::memory_resource* memory = std::pmr::get_default_resource());

}  // namespace cpu

namespace cuda {

cudaError_t DecodeQueries(const QueryDecodeParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
