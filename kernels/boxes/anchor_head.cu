#include "kernels/boxes/anchor_head.h"
#include "kernels/boxes/anchor_head_cell.h"
#include "kernels/boxes/box_candidates.cuh"

namespace voxserve::kernels::cuda {
namespace {

struct Workspace {
  Workspace(const AnchorHeadParams& params, WorkspaceCutter cutter)
      : counters(cutter, /*num_heads=*/1, params.num_samples),
        lists(cutter, counters.values, params.num_samples,
              int64_t{params.num_rows} * params.num_columns * params.num_anchors, /*item_candidates=*/1,
              LowestLogit(params.score_threshold, /*is_strict=*/false)),
        bytes(cutter.bytes()) {}

  CandidateCounters counters;
  CandidateLists lists;
  size_t bytes;
};

template <typename T>
struct AnchorHeads {
  int32_t num_heads, num_samples;
  AnchorHeadParams params;
  CandidateLists lists;
  uint32_t* num_not_finite;

  __device__ const CandidateLists& Lists(int) const { return lists; }
  __device__ int32_t NumItems(int) const { return params.num_rows * params.num_columns * params.num_anchors; }
  __device__ int32_t MaxBoxes(int) const { return params.max_boxes; }
  __device__ float* Boxes(int) const { return params.boxes; }
  template <typename Emit, typename Drop>
  __device__ void Find(int, int32_t sample, int32_t item, const Emit& emit, const Drop& drop) const {
    FindAnchorCandidate(params, lists.lowest_logit, sample, item, LoadAs<T>(), emit, drop);
  }
  __device__ bool HasOwnScores(int) const { return false; }
  __device__ CandidateFate Decode(int, int32_t sample, uint64_t key, float (&box)[kBoxColumns]) const {
    return DecodeAnchorBox(params, sample, LogitOfKey(key), IndexOfKey(key), LoadAs<T>(), box);
  }
};

}  // namespace

size_t AnchorHeadWorkspaceBytes(const AnchorHeadParams& params) {
  return Workspace(params, WorkspaceCutter(nullptr)).bytes;
}

cudaError_t DecodeAnchorHead(const AnchorHeadParams& params, cudaStream_t stream) {
  if (params.num_samples == 0) return cudaSuccess;
  const NvtxRange range("DecodeAnchorHead");
  return VisitFeatureType(params.dtype, [&](auto value) {
    const Workspace workspace(params, WorkspaceCutter(params.workspace));
    const AnchorHeads<decltype(value)> heads{.num_heads = 1,
                                             .num_samples = params.num_samples,
                                             .params = params,
                                             .lists = workspace.lists,
                                             .num_not_finite = params.num_not_finite};
    return DecodeBoxes(heads, workspace.counters, heads.lists.num_lists, stream);
  });
}

}  // namespace voxserve::kernels::cuda
