#pragma once

// SelectFarthestPointsKernel is the main kernel of farthest_point_sample.h. One block, or the blocks of one cluster,
// select all points of a sample. Only .cu files include this header.
//
// A point's distance is its squared distance to the nearest selected point. Every lane owns a bucket of points. It
// keeps in registers the bucket's bounding box, its furthest point (the point with the largest distance), and the
// distance of its second furthest point. A round begins with the points that the round before selected: each lane tests
// its bucket's box against these points, and the whole warp updates every bucket that a new point may change.
// Neighbouring buckets belong to different blocks and warps, so that the buckets around a new point are updated in
// parallel. The same thread reads and writes a point and its distance in every round, so data that is used often stays
// in the cache of the thread's SM.
//
// A round may select several points, but exactly the points that a selection of one point at a time would select. Every
// warp (in a cluster: every block) offers its furthest point, together with `rest`, an upper bound of the distances of
// its other points. Offers are ranked by distance, the largest first. The first offer is the next selected point. A
// later offer is selected in the same round if both conditions hold:
//   - Its distance is above the `rest` of each offer before it. Distances only fall, so no point that was not offered
//     can come before it.
//   - Its distance to each offer before it is at least its present distance. Selecting the earlier offers then leaves
//     its distance unchanged.
// The first offer that fails a condition ends the round; it and the offers after it are not selected.

#include <cstdint>
#include <type_traits>

#include "kernels/points/farthest/cluster_mailbox.cuh"
#include "kernels/points/farthest/farthest_point_order.cuh"
#include "kernels/points/farthest/farthest_point_sample.h"

namespace voxserve::kernels::cuda {

inline constexpr int kMaxThreads = kMaxFarthestPointWarps * kWarpThreads;  // per block
inline constexpr int kMaxClusterBlocks = 16;
inline constexpr int kMaxOffers = kWarpThreads;  // one per lane of the warp that ranks them
static_assert(kMaxFarthestPointWarps <= kMaxOffers && kMaxClusterBlocks <= kMaxOffers);

inline constexpr uint32_t kInfinityBits = 0x7f800000u;

// A point that may be selected. Candidates with larger distances are selected first; if the distances are equal, the
// candidate with the lower index is. If all members are 0, there is no point.
struct Candidate {
  uint32_t distance;    // the bits of the float32; it is not negative, so its bits have the same order as its values
  uint32_t complement;  // ~index of the point
  float x, y, z;
};

// The furthest point of a set of points, and `rest`: an upper bound of the distances of the set's other points, as
// float32 bits.
struct Offer {
  Candidate best;
  uint32_t rest;
};

// Returns true if a point with this distance and complement is selected before `other`.
__device__ inline bool IsBefore(uint32_t distance, uint32_t complement, const Candidate& other) {
  return distance > other.distance || (distance == other.distance && complement > other.complement);
}

// Returns the lane whose candidate is selected first. All lanes of the warp must call this function.
__device__ inline int FirstLane(uint32_t distance, uint32_t complement) {
  const uint32_t furthest = WarpMax(distance);
  unsigned lanes = __ballot_sync(~0u, distance == furthest);
  if ((lanes & (lanes - 1)) != 0) {
    const uint32_t first = WarpMax(distance == furthest ? complement : 0);
    lanes = __ballot_sync(~0u, distance == furthest && complement == first);
  }
  return __ffs(static_cast<int>(lanes)) - 1;
}

// Returns the squared length of a vector. Distances of points and of boxes both use this function, so they round alike,
// and the distance of a box never exceeds the distance of a point in the box.
__device__ inline float SquaredLength(float x, float y, float z) {
  return __fadd_rn(__fadd_rn(__fmul_rn(x, x), __fmul_rn(y, y)), __fmul_rn(z, z));
}

__device__ inline float SquaredDistance(const float4& a, const float4& b) {
  return SquaredLength(__fsub_rn(a.x, b.x), __fsub_rn(a.y, b.y), __fsub_rn(a.z, b.z));
}

// Joins the offers of all lanes of a warp to the offer of all their points, and returns it to all lanes.
__device__ inline Offer FirstOffer(const Offer& of_lane) {
  const auto lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const Candidate& best = of_lane.best;
  const int first = FirstLane(best.distance, best.complement);
  const uint32_t rest = WarpMax(lane == first ? of_lane.rest : best.distance);
  return {{__shfl_sync(~0u, best.distance, first), __shfl_sync(~0u, best.complement, first),
           __shfl_sync(~0u, best.x, first), __shfl_sync(~0u, best.y, first), __shfl_sync(~0u, best.z, first)},
          rest};
}

// Joins the points of `other` to the points of `offer`. A single point is an offer with rest 0.
__device__ inline void Join(const Offer& other, Offer& offer) {
  if (IsBefore(other.best.distance, other.best.complement, offer.best)) {
    offer = {other.best, max(offer.best.distance, other.rest)};
  } else {
    offer.rest = max(offer.rest, other.best.distance);
  }
}

// A bucket's bounding box and the offer of its points.
struct Bucket {
  float lowest[3];
  float highest[3];
  Offer offer;
};

// BucketAssignment maps a sample's sorted points to threads. The points are divided into buckets of num_rows * 32
// points. Bucket b belongs to block b % num_blocks. A block distributes its buckets over its warps, and a warp
// distributes them over its lanes.
struct BucketAssignment {
  __device__ BucketAssignment(int64_t sample_points, int blocks, int rank_in_sample)
      : num_points(static_cast<int>(sample_points)), num_blocks(blocks), rank(rank_in_sample) {
    const int64_t points_a_row = int64_t{num_blocks} * static_cast<int64_t>(blockDim.x) * kWarpThreads;
    num_rows = max(1, static_cast<int>((sample_points + points_a_row - 1) / points_a_row));
  }

  // Returns the index of the bucket that a lane of this thread's warp owns.
  __device__ int BucketOf(int lane) const {
    const auto num_warps = static_cast<int>(blockDim.x) / kWarpThreads;
    return (lane * num_warps + static_cast<int>(threadIdx.x) / kWarpThreads) * num_blocks + rank;
  }
  // Returns the index of the bucket's first point among the sample's sorted points.
  __device__ int FirstPoint(int bucket) const { return bucket * num_rows * kWarpThreads; }
  // Returns the number of points in the bucket; 0 or less if there is no such bucket.
  __device__ int NumPoints(int bucket) const { return min(num_rows * kWarpThreads, num_points - FirstPoint(bucket)); }

  int num_points;
  int num_blocks;
  int rank;      // of this block among the sample's blocks
  int num_rows;  // rows of 32 points per bucket
};

// Returns a bucket as it is before the first selection, when all distances are infinite.
__device__ inline Bucket LoadBucket(const FarthestPointSampleParams& params, const FarthestPointBox* boxes, int sample,
                                    const BucketAssignment& buckets, int number) {
  Bucket bucket = {};
  const int first_row = number * buckets.num_rows;
  const int num_boxes = (buckets.num_points + kWarpThreads - 1) / kWarpThreads;
  uint32_t complement = 0;
  for (int row = first_row; row < min(first_row + buckets.num_rows, num_boxes); ++row) {
    const FarthestPointBox box = boxes[FirstBox(params, sample) + row];
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      bucket.lowest[axis] = row == first_row ? box.lowest[axis] : fminf(bucket.lowest[axis], box.lowest[axis]);
      bucket.highest[axis] = row == first_row ? box.highest[axis] : fmaxf(bucket.highest[axis], box.highest[axis]);
    }
    complement = max(complement, box.complement);
  }
  if (complement == 0) return bucket;  // there is no such bucket
  const int64_t point_row = params.point_begin[sample] + static_cast<int32_t>(~complement);
  const float* const point = FloatsOf(params.points, point_row);
  bucket.offer = {{kInfinityBits, complement, point[0], point[1], point[2]}, kInfinityBits};
  return bucket;
}

// Returns true if the bucket may have a point that is nearer to p than to every selected point. p is a new point, whose
// distances to the bucket's points have not been computed.
__device__ inline bool IsTouched(const Bucket& bucket, const float4& p) {
  const float bound =
      SquaredLength(fmaxf(0, fmaxf(__fsub_rn(bucket.lowest[0], p.x), __fsub_rn(p.x, bucket.highest[0]))),
                    fmaxf(0, fmaxf(__fsub_rn(bucket.lowest[1], p.y), __fsub_rn(p.y, bucket.highest[1]))),
                    fmaxf(0, fmaxf(__fsub_rn(bucket.lowest[2], p.z), __fsub_rn(p.z, bucket.highest[2]))));
  return __float_as_uint(bound) < bucket.offer.best.distance;
}

// Lowers the distances of a bucket's points, where one of the new points whose bits are set in `touching` is nearer.
// Returns the bucket's new offer to all lanes of the warp. The bucket has num_points points, in num_rows rows of 32. A
// lane loads points of kUnrolledRows rows at a time.
template <int kUnrolledRows>
__device__ Offer Update(const float4* points, float* distances, int num_points, int num_rows, const float4* new_points,
                        unsigned touching) {
  const auto lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  Offer offer = {};
  for (int first_row = 0; first_row < num_rows; first_row += kUnrolledRows) {
    float4 point[kUnrolledRows];
    float distance[kUnrolledRows], nearest[kUnrolledRows];
#pragma unroll
    for (int r = 0; r < kUnrolledRows; ++r) {
      const int i = (first_row + r) * kWarpThreads + lane;
      point[r] = {};
      distance[r] = 0;
      if (first_row + r < num_rows && i < num_points) {
        point[r] = points[i];
        distance[r] = distances[i];
      }
      nearest[r] = distance[r];
    }
    for (unsigned left = touching; left != 0; left &= left - 1) {
      const float4 new_point = new_points[__ffs(static_cast<int>(left)) - 1];
#pragma unroll
      for (int r = 0; r < kUnrolledRows; ++r) nearest[r] = fminf(nearest[r], SquaredDistance(point[r], new_point));
    }
#pragma unroll
    for (int r = 0; r < kUnrolledRows; ++r) {
      const int i = (first_row + r) * kWarpThreads + lane;
      if (first_row + r >= num_rows || i >= num_points) continue;
      if (nearest[r] < distance[r]) distances[i] = nearest[r];
      const Candidate candidate = {__float_as_uint(nearest[r]), __float_as_uint(point[r].w), point[r].x, point[r].y,
                                   point[r].z};
      Join({candidate, 0}, offer);
    }
  }
  return FirstOffer(offer);
}

// ---- Selection of a round's points -------------------------------------------------------------------------------

// The offers of a round: of the warps of a block, or of the blocks of a cluster.
struct OfferList {
  uint4 keys[kMaxOffers];  // distance, complement, rest
  float4 points[kMaxOffers];
};

// The offers of a round in the order of selection.
struct Ranking {
  uint4 keys[kMaxOffers];  // distance, complement, whether it ends the round
  float4 points[kMaxOffers];
};

// The shared memory of a block.
struct Exchange {
  OfferList of_warps;
  OfferList of_blocks[2];  // this block reads one list while other blocks already write the next
  Ranking ranking;
  uint64_t barriers[2];  // the mbarriers of of_blocks (cluster_mailbox.cuh)
};

__device__ inline void Put(const Offer& offer, int place, OfferList& list) {
  list.keys[place] = {offer.best.distance, offer.best.complement, offer.rest, 0};
  list.points[place] = {offer.best.x, offer.best.y, offer.best.z, 0};
}

__device__ inline Offer Get(const OfferList& list, int place) {
  const uint4 key = list.keys[place];
  const float4 point = list.points[place];
  return {{key.x, key.y, point.x, point.y, point.z}, key.z};
}

// Ranks the offers in the order of selection. All warps of a block must call this function; each warp ranks some of the
// offers. Offers without a point come last, and all of them get the same rank.
__device__ inline void Rank(const OfferList& list, int num_offers, Ranking& ranking) {
  const auto lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const auto num_warps = static_cast<int>(blockDim.x) / kWarpThreads;
  const bool has_offer = lane < num_offers;
  const uint4 key = has_offer ? list.keys[lane] : uint4{0, 0, 0, 0};
  const float4 point = has_offer ? list.points[lane] : float4{0, 0, 0, 0};
  for (int i = static_cast<int>(threadIdx.x) / kWarpThreads; i < num_offers; i += num_warps) {
    const uint4 own_key = list.keys[i];
    const float4 own_point = list.points[i];
    const bool is_before = has_offer && (key.x > own_key.x || (key.x == own_key.x && key.y > own_key.y));
    const bool is_in_the_way =
        is_before && (key.z >= own_key.x || __float_as_uint(SquaredDistance(own_point, point)) < own_key.x);
    const int rank = __popc(__ballot_sync(~0u, is_before));
    const bool ends_round = __any_sync(~0u, is_in_the_way) != 0 || own_key.y == 0;
    if (lane == 0) {
      ranking.keys[rank] = {own_key.x, own_key.y, ends_round ? 1u : 0u, 0};
      ranking.points[rank] = own_point;
    }
  }
}

// Returns the number of offers before the first that ends the round, at least 1. Every lane of every warp gets it.
__device__ inline int NumSelected(const Ranking& ranking, int num_offers) {
  const auto lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const unsigned ends = __ballot_sync(~0u, lane >= num_offers || ranking.keys[lane].z != 0);
  return ends == 0 ? kMaxOffers : __ffs(static_cast<int>(ends)) - 1;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// Lets the next phase of a list's mbarrier end when the offers of num_blocks blocks have arrived.
__device__ inline void ExpectOffers(Exchange& exchange, int list, int num_blocks) {
  constexpr uint32_t kOfferBytes = 2 * sizeof(uint4);
  ExpectBytes(&exchange.barriers[list], kOfferBytes * static_cast<uint32_t>(num_blocks));
}

// Prepares the mbarriers. All threads of the cluster must call this function before the first ExchangeOffers.
__device__ inline void OpenMailboxes(Exchange& exchange, int num_blocks) {
  if (threadIdx.x == 0) {
    for (int list = 0; list < 2; ++list) {
      InitializeMailbox(&exchange.barriers[list]);
      ExpectOffers(exchange, list, num_blocks);
    }
  }
  SynchronizeCluster();
}

// Sends the block's offer to all blocks of the cluster, waits for their offers, and returns the offers of all blocks.
// All threads of the block must call this function. Only the first warp's `of_block` is read. turn: the number of
// earlier calls.
__device__ inline const OfferList& ExchangeOffers(Exchange& exchange, int64_t turn, const Offer& of_block, int rank,
                                                  int num_blocks) {
  const auto list = static_cast<int>(turn & 1);
  uint64_t* const barrier = &exchange.barriers[list];
  if (static_cast<int>(threadIdx.x) < num_blocks) {
    const uint32_t to = threadIdx.x;
    const uint32_t remote_barrier = AddressInBlock(SharedAddress(barrier), to);
    const Candidate& best = of_block.best;
    Send(AddressInBlock(SharedAddress(&exchange.of_blocks[list].points[rank]), to), remote_barrier,
         uint4{__float_as_uint(best.x), __float_as_uint(best.y), __float_as_uint(best.z), 0});
    Send(AddressInBlock(SharedAddress(&exchange.of_blocks[list].keys[rank]), to), remote_barrier,
         uint4{best.distance, best.complement, of_block.rest, 0});
  }
  __syncwarp();
  WaitForPhase(barrier, static_cast<uint32_t>(turn / 2 & 1));
  // The other blocks send to this list again only in turn + 2, and only after this block has sent its offer of turn
  // + 1. So ExpectOffers comes before their next bytes.
  if (threadIdx.x == 0) ExpectOffers(exchange, list, num_blocks);
  __syncwarp();
  return exchange.of_blocks[list];
}

#endif

// ---- The kernel --------------------------------------------------------------------------------------------------

// Selects the points of all samples. One block (num_blocks is 1) or a cluster of num_blocks blocks works on a sample.
template <bool kIsCluster>
__global__ void __launch_bounds__(kMaxThreads, 1)
    SelectFarthestPointsKernel(const __grid_constant__ FarthestPointSampleParams params,
                               const __grid_constant__ FarthestPointWorkspace workspace, int num_blocks) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  if constexpr (kIsCluster) return;  // such GPUs have no clusters, so this is never launched
#endif
  __shared__ alignas(16) Exchange exchange;
  const auto lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const auto warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int sample = kIsCluster ? static_cast<int>(blockIdx.x) / num_blocks : static_cast<int>(blockIdx.x);
  const int64_t begin = params.point_begin[sample];
  const int64_t num_all = params.point_begin[sample + 1] - begin;
  const BucketAssignment buckets(params.num_valid[sample], kIsCluster ? num_blocks : 1,
                                 kIsCluster ? static_cast<int>(blockIdx.x) % num_blocks : 0);

  int32_t* const selected = params.selected + params.selected_begin[sample];
  float* const distances = params.distances == nullptr ? nullptr : params.distances + params.selected_begin[sample];
  const int64_t num_selected = params.selected_begin[sample + 1] - params.selected_begin[sample];
  const int64_t start = params.starts == nullptr ? 0 : params.starts[sample];
  if (num_selected > buckets.num_points || start < 0 || start >= num_all) {
    for (int64_t i = threadIdx.x; buckets.rank == 0 && i < num_selected; i += blockDim.x) {
      selected[i] = kNothingSelected;
      if (distances != nullptr) distances[i] = -1;
    }
    return;
  }
  if (num_selected == 0) return;

  Bucket bucket = LoadBucket(params, workspace.boxes, sample, buckets, buckets.BucketOf(lane));
  if (threadIdx.x == 0) {
    const auto first_index = static_cast<int32_t>((start + workspace.states[sample].start_offset) % num_all);
    const float* const point = FloatsOf(params.points, begin + first_index);
    exchange.ranking.keys[0] = {kInfinityBits, ~static_cast<uint32_t>(first_index), 0, 0};
    exchange.ranking.points[0] = {point[0], point[1], point[2], 0};
  }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if constexpr (kIsCluster) OpenMailboxes(exchange, num_blocks);
#endif
  __syncthreads();

  const auto num_warps = static_cast<int>(blockDim.x) / kWarpThreads;
  int num_new = 1;  // points that the last round selected
  int64_t num_done = 0;
  for (int64_t round = 0;; ++round) {
    if (buckets.rank == 0 && static_cast<int>(threadIdx.x) < num_new) {
      const uint4 key = exchange.ranking.keys[threadIdx.x];
      selected[num_done + threadIdx.x] = static_cast<int32_t>(~key.y);
      if (distances != nullptr) distances[num_done + threadIdx.x] = __uint_as_float(key.x);
    }
    num_done += num_new;
    if (num_done == num_selected) break;

    unsigned touching = 0;  // one bit per new point
    for (int i = 0; i < num_new; ++i) touching |= IsTouched(bucket, exchange.ranking.points[i]) ? 1u << i : 0;
    const unsigned touched = __ballot_sync(~0u, touching != 0);
    for (unsigned left = touched; left != 0; left &= left - 1) {
      const int of_lane = __ffs(static_cast<int>(left)) - 1;
      const int number = buckets.BucketOf(of_lane);
      const int64_t first = begin + buckets.FirstPoint(number);
      const auto update = [&](auto unrolled_rows) {
        return Update<unrolled_rows()>(workspace.points + first, workspace.distances + first, buckets.NumPoints(number),
                                       buckets.num_rows, exchange.ranking.points, __shfl_sync(~0u, touching, of_lane));
      };
      const Offer updated =
          buckets.num_rows == 1 ? update(std::integral_constant<int, 1>()) : update(std::integral_constant<int, 4>());
      if (lane == of_lane) bucket.offer = updated;
    }
    if (touched != 0 || round == 0) {
      const Offer of_warp = FirstOffer(bucket.offer);
      if (lane == 0) Put(of_warp, warp, exchange.of_warps);
    }
    __syncthreads();
    if constexpr (!kIsCluster) {
      Rank(exchange.of_warps, num_warps, exchange.ranking);
    } else {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
      Offer of_block = {};
      if (warp == 0) of_block = FirstOffer(lane < num_warps ? Get(exchange.of_warps, lane) : Offer{});
      Rank(ExchangeOffers(exchange, round, of_block, buckets.rank, num_blocks), num_blocks, exchange.ranking);
#endif
    }
    __syncthreads();
    const int num_ranked = NumSelected(exchange.ranking, kIsCluster ? num_blocks : num_warps);
    num_new = static_cast<int>(min(static_cast<int64_t>(num_ranked), num_selected - num_done));
  }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if constexpr (kIsCluster) SynchronizeCluster();  // keeps this block's memory valid until the last message has arrived
#endif
}

}  // namespace voxserve::kernels::cuda
