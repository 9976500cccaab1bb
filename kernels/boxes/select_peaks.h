#pragma once

// SelectPeaks chooses the k best peaks of each sample's image of scores, as TransFusion's head does (X. Bai et al.,
// "TransFusion: Robust LiDAR-Camera Fusion for 3D Object Detection with Transformers", CVPR 2022).
//
// - The image has logits, one channel per class. A pair (class, cell) is a peak if no cell in the window of
//   peak_kernel x peak_kernel cells around it has a larger logit in the same class. Equal cells are all peaks.
// - PeakBorder says which cells are peaks where the window leaves the image. In the classes of classes_without_test
//   every cell is a peak, wherever it is.
// - The order is that of box_candidates.h: a larger logit comes first, then a lower class, then a lower cell. Logits
//   are compared in float32, not their sigmoids. The score of a peak is the sigmoid of its logit.
// - A NaN or infinite logit makes no peak, and it hides no other cell.
// - A sample with fewer than k peaks has all of them, then pairs that are no peaks, with the score 0, in the order of
//   (class, cell): first those with finite logits, then the others.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <type_traits>

#include "kernels/boxes/box_candidates.h"
#include "kernels/boxes/selection.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/dtype.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

inline constexpr int32_t kMaxPeakKernel = 15;  // rows and columns of a window

enum class PeakBorder : int32_t {
  kDrop,  // none is a peak
  kKeep,  // all are peaks
  kPad,   // those are peaks that have the largest logit of the window's part within the image
};

struct SelectPeaksParams {
  int32_t num_samples = 0;
  DType dtype = DType::kFloat32;  // type of the logits; the CPU only supports float32
  int32_t num_rows = 0;           // size of one image, in cells; both at most kMaxSelectionSide
  int32_t num_columns = 0;
  int32_t num_classes = 0;  // 1 to kMaxHeadClasses; num_rows * num_columns * num_classes fits int32_t
  ImageChannels scores;     // [num_classes] logits
  int32_t peak_kernel = 1;  // odd, 1 to kMaxPeakKernel
  PeakBorder border = PeakBorder::kDrop;
  std::array<bool, kMaxHeadClasses> classes_without_test = {};  // by class

  int32_t k = 0;               // 1 to kMaxQueries, at most the pairs of a sample
  float* selection = nullptr;  // [num_samples, k, kSelectionColumns], 16-byte aligned
  // [num_samples] SelectPeaks adds the number of logits that are not finite. The array may be in page-locked host
  // memory, since such logits are rare. Null: nothing is counted.
  uint32_t* num_not_finite = nullptr;
  void* workspace = nullptr;  // on a GPU: SelectPeaksWorkspaceBytes, 256-byte aligned
};
static_assert(std::is_trivially_copyable_v<SelectPeaksParams>);

namespace cpu {

// Temporary arrays are allocated from `memory`. Throws std::bad_alloc if it is used up.
void SelectPeaks(const SelectPeaksParams& params, ThreadPool& pool,
                 std::pmr::memory_resource* memory = std::pmr::get_default_resource());

}  // namespace cpu

namespace cuda {

// Returns the bytes of params.workspace. Reads the numbers in params, not the pointers.
size_t SelectPeaksWorkspaceBytes(const SelectPeaksParams& params);
cudaError_t SelectPeaks(const SelectPeaksParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
