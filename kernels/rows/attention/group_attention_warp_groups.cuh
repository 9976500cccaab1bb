#pragma once

// WarpGroupRun is the work of a block of kernels/rows/attention/group_attention.cu on Hopper's tensor cores
// (warp_group_products.cuh), for groups of which two fit into shared memory. Only .cu files include this header.
//
// The units of work are tiles of kGroupTileRows queries of one head, of which a block has a run (TileRun in
// group_attention_blocks.cuh). One warp group reads the keys and values of group after group into a ring of two
// buffers. The others attend: each takes a tile, and goes through the keys of its group in steps of kGroupStepKeys.
//
// A step is scores = queries keys^T, weights = exp2(scores - reference), sums += weights values, as in WarpAttention,
// which also chooses the references. What a warp group waits for, the exponentials of the others cover. The queries of
// its next tile are loaded while it computes a tile.
//
// Keys and values of heads of up to 16 channels are rows of 32 bytes with a swizzle. Those of up to 24 channels are
// matrices of 8 rows and one vector, since no swizzle has rows of 48 bytes, and two groups of 1,024 places would not
// fit with rows of 64 bytes. The products of their queries and keys go on to 32 channels with zeros, which all keys
// share.

#include <cstdint>
#include <type_traits>

#include "kernels/core/barriers.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/tensor_cores.cuh"
#include "kernels/core/warp_group_products.cuh"
#include "kernels/rows/attention/group_attention.h"
#include "kernels/rows/attention/group_attention_operands.cuh"
#include "kernels/rows/attention/group_attention_warps.cuh"
#include "kernels/rows/attention/site_groups.cuh"

namespace voxserve::kernels::cuda {

inline constexpr int32_t kWarpGroupThreads = 128;
inline constexpr int32_t kAttendingGroups = 3;  // warp groups of a block
inline constexpr int32_t kGroupRunThreads = (kAttendingGroups + 1) * kWarpGroupThreads;
inline constexpr int32_t kGroupTileRows = 64;
inline constexpr int32_t kGroupStepKeys = 64;
inline constexpr int32_t kKeysAhead = 16;
inline constexpr int32_t kMostGroupChannels = 24;  // of a head
inline constexpr int32_t kOnesBytes = 512;

// The ones by which products add up the weights.
enum class GroupOnes {
  kBesideValues,  // in shared memory, as further columns of the products with values
  kAmongValues,   // the last channel of the values, which the head does not have
  kApart,         // in shared memory, for products of their own
};

template <int kChannels>
using GroupHead = std::conditional_t<kChannels <= 16, HeadRows<kChannels>, HeadMatrices<kChannels>>;

// The bytes of zeros that all keys of a step share: a matrix every 8 keys.
template <int kChannels>
inline constexpr int32_t kZeroBytes = kChannels <= 16 ? 0
                                                      : (kGroupStepKeys - 8) * GroupHead<kChannels>::kPitch + 8 * 16;

// Returns the bytes of shared memory of a block whose buffers have buffer_keys keys, a multiple of kGroupStepKeys.
template <int kChannels>
int32_t GroupRunBytes(int32_t buffer_keys) {
  constexpr int32_t kKeyBytes = 2 * GroupHead<kChannels>::kPitch + int32_t{sizeof(int32_t)};
  return kOnesBytes + kZeroBytes<kChannels> + 2 * buffer_keys * kKeyBytes;
}

#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS

// Returns true if `own` is true in all threads of the warp group. barrier: one of the block's named barriers, for these
// threads alone.
__device__ inline bool IsTrueForAll(bool own, int32_t barrier) {
  uint32_t is_true = own;
  asm volatile(
      "{\n"
      ".reg .pred own, all;\n"
      "setp.ne.u32 own, %0, 0;\n"
      "barrier.cta.red.and.aligned.pred all, %1, %2, own;\n"
      "selp.u32 %0, 1, 0, all;\n"
      "}\n"
      : "+r"(is_true)
      : "r"(barrier), "n"(kWarpGroupThreads)
      : "memory");
  return is_true != 0;
}

// Attention of kGroupTileRows queries of one head, of which each warp has 16.
template <typename T, int kChannels, GroupOnes kOnes>
class WarpGroupAttention
    : public WarpAttention<T, kChannels, /*kTiles=*/1, /*kHasPolynomial=*/true, GroupHead<kChannels>> {
 public:
  using Base = WarpAttention<T, kChannels, 1, true, GroupHead<kChannels>>;
  using Head = typename Base::Head;

  // Sets the sums to those of num_keys keys. keys, values: as in AddKeys, with zeros up to a multiple of
  // kGroupStepKeys. ones: kOnesBytes of ones, then kZeroBytes of zeros. sets_references: the first kSampleKeys keys set
  // the references. barrier: one for the warp group's threads. All warps of the warp group call it with the same
  // arguments.
  __device__ void AddKeysTogether(uint32_t keys, uint32_t values, uint32_t ones, int32_t num_keys, float longest_key,
                                  bool sets_references, int32_t barrier) {
    const uint32_t queries[4] = {this->queries_[0][0][0], this->queries_[0][0][1], this->queries_[0][1][0],
                                 this->queries_[0][1][1]};
    uint32_t last_queries[4] = {};  // of channels 16 to 31
    uint64_t key = KeyMatrix(keys), last_key = 0, value = ValueMatrix(values, ones);
    if constexpr (kIsWide) {
      last_queries[0] = this->queries_[0][2][0];
      last_queries[1] = this->queries_[0][2][1];
      const uint32_t last_keys = keys + 2 * Head::kMatrixBytes;
      last_key = PlainMatrix(last_keys, ones + kOnesBytes - last_keys, 8 * Head::kPitch);
    }
    float scores[kGroupStepKeys / 2], sums[12] = {};
    [[maybe_unused]] float sums_of_ones[4] = {};
    uint32_t weights[3][kGroupStepKeys / 16][4];  // the last for steps behind the pairs of whole ones
    const auto start_scores = [&] {
      constexpr uint64_t kNext = kGroupStepKeys * Head::kPitch >> 4;
      BeginProducts();
      MultiplyAddGroup<T>(scores, queries, key, /*adds=*/0);
      if constexpr (kIsWide) {
        MultiplyAddGroup<T>(scores, last_queries, last_key);
        // The keys go on by a step, while the zeros stay where they are.
        last_key += kNext - (kNext << 16);
      }
      CommitProducts();
      key += kNext;
    };
    const auto start_sums = [&](const uint32_t(&factors)[kGroupStepKeys / 16][4]) {
#pragma unroll
      for (int s = 0; s < kGroupStepKeys / 16; ++s) {
        MultiplyAddTransposedGroup<T>(sums, factors[s], value);
        if constexpr (kOnes == GroupOnes::kApart) {
          MultiplyAddTransposedGroup<T>(sums_of_ones, factors[s], PlainMatrix(ones, kOnesBytes / 2, 0));
        }
        // The values go on by 16 keys, while ones beside them stay where they are.
        constexpr uint64_t kNext = 16 * Head::kPitch >> 4;
        value += kOnes == GroupOnes::kBesideValues ? kNext - (kNext << 16) : kNext;
      }
      CommitProducts();
    };
    const auto weigh = [&](uint32_t(&factors)[kGroupStepKeys / 16][4], bool is_bounded) {
      if (is_bounded) {
        Weigh<true, true>(scores, kGroupStepKeys, factors);
      } else {
        Weigh<false, true>(scores, kGroupStepKeys, factors);
      }
    };
    start_scores();
    WaitForProducts<0>();
    HoldBackReads(scores);
    if (sets_references) SetReferences(scores, num_keys);
    const bool is_bounded = IsTrueForAll(this->IsBounded(longest_key), barrier);
#pragma unroll 1
    for (; num_keys >= 2 * kGroupStepKeys; num_keys -= 2 * kGroupStepKeys) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        weigh(weights[i], is_bounded);
        // After the last step these are scores of what is behind the keys, which nothing uses.
        start_scores();
        start_sums(weights[i]);
        WaitForProducts<1>();
        HoldBackReads(scores);
      }
    }
    if (!kSavesRegisters && num_keys >= kGroupStepKeys) {
      weigh(weights[0], is_bounded);
      start_scores();
      start_sums(weights[0]);
      WaitForProducts<1>();
      HoldBackReads(scores);
      num_keys -= kGroupStepKeys;
    }
    if constexpr (kSavesRegisters) {
#pragma unroll 1
      for (; num_keys > 0; num_keys -= kGroupStepKeys) {
        if (num_keys >= kGroupStepKeys) {
          weigh(weights[2], is_bounded);
        } else {
          Weigh<false, false>(scores, num_keys, weights[2]);
        }
        start_scores();
        start_sums(weights[2]);
        WaitForProducts<0>();
        HoldBackReads(scores);
      }
    } else if (num_keys > 0) {
      Weigh<false, false>(scores, num_keys, weights[2]);
      BeginProducts();
      start_sums(weights[2]);
    }
    WaitForProducts<0>();
    HoldBackReads(sums);
    HoldBackReads(sums_of_ones);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int v = 0; v < Head::kVectors; ++v) this->sums_[0][v][k] = sums[4 * v + k];
      if constexpr (kOnes == GroupOnes::kBesideValues) this->weights_[0][k] = sums[8 + k];
      if constexpr (kOnes == GroupOnes::kApart) this->weights_[0][k] = sums_of_ones[k];
      // The last of a row's four lanes has the last channel.
      if constexpr (kOnes == GroupOnes::kAmongValues) {
        this->weights_[0][k] = __shfl_sync(~0u, sums[4 * (Head::kVectors - 1) + k / 2 * 2 + 1], Base::Lane() | 3);
      }
    }
  }

 private:
  static constexpr bool kIsWide = kChannels > 16;  // queries and keys have more channels than one product takes
  // The steps after the last pair of whole ones share registers and wait for their products, or else the compiler makes
  // every product wait.
  static constexpr bool kSavesRegisters = kOnes == GroupOnes::kApart;
  static_assert(kChannels == 16 || kChannels == 24);
  static_assert((kOnes == GroupOnes::kBesideValues) == !kIsWide);

  // Return the descriptors of the first keys' channels 0 to 15, and of the first values.
  __device__ static uint64_t KeyMatrix(uint32_t keys) {
    if constexpr (kIsWide) {
      return PlainMatrix(keys, Head::kMatrixBytes, 8 * Head::kPitch);
    } else {
      return SwizzledMatrix<2 * kChannels>(keys);
    }
  }
  __device__ static uint64_t ValueMatrix(uint32_t values, uint32_t ones) {
    if constexpr (kIsWide) {
      return PlainMatrix(values, 8 * Head::kPitch, Head::kMatrixBytes);
    } else {
      return TransposedMatrix(values, ones);
    }
  }

  __device__ void SetReferences(const float (&scores)[kGroupStepKeys / 2], int32_t num_keys) {
    float largest[1][2] = {{Base::kNoScore, Base::kNoScore}}, factors[1][2];
#pragma unroll
    for (int i = 0; i < kSampleKeys / 2; ++i) {
      const bool exists = i / 4 * 8 + Base::Column() + i % 2 < num_keys;
      if (exists) largest[0][i % 4 / 2] = fmaxf(largest[0][i % 4 / 2], scores[i]);
    }
    this->RaiseReferencesTo(largest, factors);
  }

  // Computes the weights of a step's scores. kIsWhole: all keys count, otherwise the first num_keys.
  //
  // The compiler would place all other instructions before the exponentials of the special function unit, which are the
  // slowest. So the scale of 8 keys depends on an exponential of the keys kKeysAhead before: it is
  // fmaxf(scale, -weight). A weight is not negative, so that is the scale. fmaxf ignores NaN, so the NaN of one row
  // does not reach the thread's other row.
  template <bool kIsBounded, bool kIsWhole>
  __device__ void Weigh(const float (&scores)[kGroupStepKeys / 2], int32_t num_keys,
                        uint32_t (&weights)[kGroupStepKeys / 16][4]) const {
    constexpr int kAhead = kKeysAhead / 8;
    static_assert(kKeysAhead % 8 == 0 && kPolynomialScores < 13, "8 keys have an exponential that is no polynomial");
    float scales[kGroupStepKeys / 8];
#pragma unroll
    for (int j = 0; j < kGroupStepKeys / 8; ++j) {
      if (j < kAhead) scales[j] = this->scale_;
      float weight[4];
      bool needs_exponential = j + kAhead < kGroupStepKeys / 8;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float score = scores[4 * j + k];
        if (kIsBounded && Base::UsesPolynomial(4 * j + k)) {
          weight[k] = Base::PolynomialExp2(score, scales[j], this->Magic(0, k / 2));
        } else {
          weight[k] = Base::ScaledExp2(score, scales[j], this->Reference(0, k / 2));
          if (needs_exponential) scales[j + kAhead] = fmaxf(scales[j], -weight[k]);
          needs_exponential = false;
        }
        if (!kIsWhole && j * 8 + Base::Column() + k % 2 >= num_keys) weight[k] = 0;
      }
      weights[j / 2][j % 2 * 2] = RoundPair<T>(weight[0], weight[1]);
      weights[j / 2][j % 2 * 2 + 1] = RoundPair<T>(weight[2], weight[3]);
    }
  }
};

template <typename T, int kChannels, GroupOnes kOnes>
class WarpGroupRun {
 public:
  __device__ WarpGroupRun(const GroupAttentionArguments& arguments, unsigned char* shared)
      : arguments_(arguments), shared_(shared) {
    tiles_a_head_ = NumGroupParts(arguments.params.groups, kGroupTileRows);
    const int64_t num_tiles = tiles_a_head_ * arguments.params.num_heads;
    begin_ = num_tiles * blockIdx.x / gridDim.x;
    end_ = num_tiles * (blockIdx.x + 1) / gridDim.x;
  }

  __device__ void Run() {
    if (begin_ == end_) return;  // all threads of the block
    __shared__ uint64_t barriers[4];
    full_ = SharedAddress(barriers);
    empty_ = full_ + 2 * sizeof(uint64_t);
    if (threadIdx.x == 0) {
      for (uint32_t buffer = 0; buffer < 2; ++buffer) {
        InitBarrier(full_ + buffer * sizeof(uint64_t), kWarpGroupThreads);
        InitBarrier(empty_ + buffer * sizeof(uint64_t), kAttendingGroups * kWarpGroupThreads / 32 * kArrivalsAWarp);
      }
      PublishBarriers();
    }
    if (threadIdx.x < kOnesBytes / sizeof(uint32_t)) {
      reinterpret_cast<uint32_t*>(Ones())[threadIdx.x] = PairOf<T>::kOnes;
      PublishToProducts();
    }
    if constexpr (kChannels > 16) {
      for (uint32_t i = threadIdx.x; i < kZeroBytes<kChannels> / sizeof(uint32_t); i += kGroupRunThreads) {
        reinterpret_cast<uint32_t*>(Ones() + kOnesBytes)[i] = 0;
      }
      PublishToProducts();
    }
    // All threads read the first group.
    const int64_t end_of_first = ReadGroup<kGroupRunThreads, 4, 4>(begin_, 0);
    __syncthreads();
    // The number is the same in all lanes, which the compiler does not know.
    const int32_t warp_group = __shfl_sync(~0u, static_cast<int32_t>(threadIdx.x) / kWarpGroupThreads, 0);
    if (warp_group == 0) {
      SetRegisters<kReadingRegisters, /*kAreMore=*/false>();
      int64_t tile = end_of_first;
      for (int32_t g = 1; tile < end_; ++g) {
        if (g >= 2) WaitForBarrier(empty_ + g % 2 * sizeof(uint64_t), (g / 2 - 1) % 2);
        tile = ReadGroup<kWarpGroupThreads, 2, 8>(tile, g);
        ArriveAtBarrier(full_ + g % 2 * sizeof(uint64_t));
      }
    } else {
      SetRegisters<kAttendingRegisters, /*kAreMore=*/true>();
      AttendToGroups(warp_group - 1);
    }
  }

 private:
  using Attention = WarpGroupAttention<T, kChannels, kOnes>;
  using Head = typename Attention::Head;
  using Queries = WarpQueries<Attention>;
  static constexpr int kWordBatch = kChannels <= 16 ? 0 : 12;
  // The block's registers are shared out anew: it starts with kRegisters a thread.
  static constexpr int kRegisters = 65536 / kGroupRunThreads / 8 * 8;
  static constexpr int kReadingRegisters = 80;
  static constexpr int kAttendingRegisters =
      (kRegisters * (kAttendingGroups + 1) - kReadingRegisters) / kAttendingGroups / 8 * 8;
  static_assert(kReadingRegisters + kAttendingGroups * kAttendingRegisters <= kRegisters * (kAttendingGroups + 1));

  // A group in a buffer.
  struct Group {
    int64_t first_tile, end_tile;  // those of the run that belong to it
    int32_t first_place;           // of the first tile; among the group's keys
    int32_t num_keys;
    int32_t head;
    int32_t num_lengths;
    float longest_keys[kGroupRunThreads / 32];  // [num_lengths] of the warps that have read it
  };
  __device__ static Group& GroupAt(int32_t g) {
    __shared__ Group groups[2];
    return groups[g % 2];
  }

  __device__ unsigned char* Keys(int32_t g) const {
    return shared_ + g % 2 * 2 * arguments_.buffer_keys * Head::kPitch;
  }
  __device__ unsigned char* Ones() const { return shared_ + 4 * arguments_.buffer_keys * Head::kPitch; }
  __device__ int32_t* Rows(int32_t g) const {
    return reinterpret_cast<int32_t*>(Ones() + kOnesBytes + kZeroBytes<kChannels>) + g % 2 * arguments_.buffer_keys;
  }

  // Reads the group of a tile as group g of the run, with the first kThreads threads of the block. Returns the end of
  // its tiles.
  template <int32_t kThreads, int kBatch, int kCopyBatch>
  __device__ int64_t ReadGroup(int64_t tile, int32_t g) const {
    const int64_t head = tile / tiles_a_head_;
    const GroupPart part = GroupPartAt(arguments_.params.groups, kGroupTileRows, tile - head * tiles_a_head_);
    const int64_t end_tile = min(tile + part.parts_left, end_);
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const HeadReader<T, kChannels, kBatch, /*kMeasures=*/true, kGroupStepKeys, kCopyBatch, kWordBatch, Head,
                     kOnes == GroupOnes::kAmongValues>
        reader{arguments_, thread, kThreads};
    unsigned char* const keys = Keys(g);
    const float longest = reader.Read(static_cast<int32_t>(head), part.keys_begin, part.num_keys, keys,
                                      keys + arguments_.buffer_keys * Head::kPitch, Rows(g));
    Group& group = GroupAt(g);
    if (thread == 0) {
      group.first_tile = tile;
      group.end_tile = end_tile;
      group.first_place = static_cast<int32_t>(part.begin - part.keys_begin);
      group.num_keys = part.num_keys;
      group.head = static_cast<int32_t>(head);
      group.num_lengths = kThreads / 32;
    }
    if (thread % 32 == 0) group.longest_keys[thread / 32] = longest;
    PublishToProducts();
    return end_tile;
  }

  __device__ void AttendToGroups(int32_t warp_group) const {
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    const int32_t own_row = static_cast<int32_t>(threadIdx.x) % kWarpGroupThreads / 32 * 16;
    const uint32_t ones = SharedAddress(Ones());
    const int32_t barrier = warp_group + 1;  // 0 is that of __syncthreads
    int64_t tile = begin_ + warp_group;
    for (int32_t g = 0;; ++g) {
      if (g > 0) WaitForBarrier(full_ + g % 2 * sizeof(uint64_t), (g - 1) / 2 % 2);
      const Group& group = GroupAt(g);
      const float longest_key = LargestOfLanes(lane < group.num_lengths ? group.longest_keys[lane] : 0.0f);
      // The place of a tile's first row among the group's keys.
      const auto place_of = [&](int64_t of_tile) {
        return group.first_place + static_cast<int32_t>(of_tile - group.first_tile) * kGroupTileRows;
      };
      const auto queries_of = [&](int64_t of_tile) {
        const int32_t tile_place = place_of(of_tile), rows_left = group.num_keys - tile_place - own_row;
        // A warp without rows computes one that it does not store.
        const int32_t place = rows_left > 0 ? tile_place + own_row : tile_place;
        return Queries{.arguments = arguments_,
                       .head = group.head,
                       .begin = 0,
                       .num_rows = rows_left > 0 ? min(rows_left, 16) : 1,
                       .rows = Rows(g) + min(place, group.num_keys - 1)};
      };
      typename Attention::Queries next;
      if (tile < group.end_tile) queries_of(tile).Load(next);
#pragma unroll 1
      for (; tile < group.end_tile; tile += kAttendingGroups) {
        if (place_of(tile) >= group.num_keys) continue;  // behind the last place of a window's group
        Attention attention;
        attention.SetQueries(next, arguments_.params.scale);
        if (tile + kAttendingGroups < group.end_tile) queries_of(tile + kAttendingGroups).Load(next);
        const uint32_t keys = SharedAddress(Keys(g)), values = keys + arguments_.buffer_keys * Head::kPitch;
#pragma unroll 1
        for (bool is_again = false;; is_again = true) {
          attention.AddKeysTogether(keys, values, ones, group.num_keys, longest_key, !is_again, barrier);
          if (is_again || IsTrueForAll(!attention.IsTooHigh(), barrier)) break;
          float factors[1][2];
          attention.RaiseReferences(keys, group.num_keys, factors);
        }
        if (place_of(tile) + own_row < group.num_keys) StoreMeans<Attention>(queries_of(tile), attention);
      }
      const bool is_last = group.end_tile == end_;
      __syncwarp();
      if (ArrivesForWarp(lane)) ArriveAtBarrier(empty_ + g % 2 * sizeof(uint64_t));
      if (is_last) break;
    }
  }

  const GroupAttentionArguments& arguments_;
  // Two buffers of [buffer_keys] keys and as many values, kOnesBytes of ones, kZeroBytes of zeros, then the rows of
  // each buffer.
  unsigned char* const shared_;
  int64_t tiles_a_head_;
  int64_t begin_, end_;
  // Barriers, one for each buffer. On `full_` all threads that read arrive, but not for the first group, on `empty_`
  // each warp that attends.
  uint32_t full_ = 0, empty_ = 0;
};

#endif

}  // namespace voxserve::kernels::cuda
