#include <algorithm>

#include "kernels/boxes/box_candidates.cuh"
#include "kernels/boxes/center_head.h"
#include "kernels/boxes/center_head_cell.h"

namespace voxserve::kernels::cuda {
namespace {

struct Workspace {
  Workspace(const CenterHeadParams& params, WorkspaceCutter cutter)
      : counters(cutter, params.num_heads, params.num_samples) {
    for (int32_t h = 0; h < params.num_heads; ++h) {
      const CenterHead& head = params.heads[h];
      const bool is_openpcdet = head.convention == CenterHeadConvention::kOpenPcdet;
      lists[h] = CandidateLists(cutter, counters.OfHead(h, params.num_samples), params.num_samples,
                                int64_t{head.num_rows} * head.num_columns, is_openpcdet ? head.num_classes : 1,
                                LowestLogit(head.score_threshold, /*is_strict=*/true));
      most_lists = std::max(most_lists, lists[h].num_lists);
    }
    bytes = cutter.bytes();
  }

  CandidateCounters counters;
  CandidateLists lists[kMaxCenterHeads];
  int32_t most_lists = 0;
  size_t bytes = 0;
};

template <typename T>
struct CenterHeads {
  int32_t num_heads, num_samples;
  std::array<CenterHead, kMaxCenterHeads> heads;
  CandidateLists lists[kMaxCenterHeads];
  uint32_t* num_not_finite;
  const int32_t* site_of;

  __device__ const CandidateLists& Lists(int head) const { return lists[head]; }
  __device__ int32_t NumItems(int head) const { return heads[head].num_rows * heads[head].num_columns; }
  __device__ int32_t MaxBoxes(int head) const { return heads[head].max_boxes; }
  __device__ float* Boxes(int head) const { return heads[head].boxes; }
  template <typename Emit, typename Drop>
  __device__ void Find(int head, int32_t sample, int32_t item, const Emit& emit, const Drop& drop) const {
    FindCenterCandidates(heads[head], site_of, lists[head].lowest_logit, sample, item, LoadAs<T>(), emit, drop);
  }
  __device__ bool HasOwnScores(int head) const { return heads[head].iou.data != nullptr; }
  __device__ CandidateFate Decode(int head, int32_t sample, uint64_t key, float (&box)[kBoxColumns]) const {
    const CenterHeadCell cell = CellOfCandidate(heads[head], site_of, sample, IndexOfKey(key));
    return DecodeCenterBox(heads[head], cell, LogitAt(heads[head], cell, LoadAs<T>()), LoadAs<T>(), box);
  }
};

}  // namespace

size_t CenterHeadWorkspaceBytes(const CenterHeadParams& params) {
  return Workspace(params, WorkspaceCutter(nullptr)).bytes;
}

cudaError_t DecodeCenterHeads(const CenterHeadParams& params, cudaStream_t stream) {
  if (params.num_samples == 0 || params.num_heads == 0) return cudaSuccess;
  const NvtxRange range("DecodeCenterHeads");
  return VisitFeatureType(params.dtype, [&](auto value) {
    const Workspace workspace(params, WorkspaceCutter(params.workspace));
    CenterHeads<decltype(value)> heads{
        .num_heads = params.num_heads, .num_samples = params.num_samples, .heads = params.heads};
    heads.num_not_finite = params.num_not_finite;
    heads.site_of = params.site_of;
    std::copy_n(workspace.lists, params.num_heads, heads.lists);
    return DecodeBoxes(heads, workspace.counters, workspace.most_lists, stream);
  });
}

}  // namespace voxserve::kernels::cuda
