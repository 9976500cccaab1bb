#pragma once

// What a block of fetch-on-demand's kernel works on (kernels/conv/fetch_on_demand.cuh): its sizes, the lists of its
// pairs, and the order of its stages. Included by .cu files alone.

#include <cstdint>

#include "kernels/core/epilogue.cuh"
#include "kernels/core/launch.cuh"

namespace voxserve::kernels::cuda {

inline constexpr int kWarpLanes = 32;
inline constexpr int kPairTile = 8;           // pairs of one product
inline constexpr int kWarpChannels = 32;      // output channels of a warp
inline constexpr int kMaxStagePairs = 128;    // a multiple of 16, as a stage's pairs are
inline constexpr int kMaxChunkChannels = 64;  // of an input row in a stage
inline constexpr int kVectorChannels = 8;     // 16 bytes
inline constexpr int kRowPadding = 8;         // channels: rows of a stage begin 16 bytes further on among the banks
inline constexpr int kMinStages = 3;
inline constexpr int kMaxStages = 4;
inline constexpr int kMaxRowGroups = 16;  // neighbours that a thread loads at once; 32 rows are a group
inline constexpr int kMaxTileRows = kMaxRowGroups * kWarpLanes;

// Where an offset's pairs are in a block's lists.
struct PairRange {
  int32_t begin;  // even
  int32_t count;
};

// How far the lists of a block reach.
struct ListState {
  int32_t used;  // entries
  int32_t end;   // the first offset that had no room
  int32_t padding[2];
};

// The sizes of a block's work. Shared memory holds, one after the other, sums, stages, list state, ranges, input rows
// and output rows of the lists.
struct FetchOnDemandShape {
  int32_t block_channels = 0;  // output channels of a block; a multiple of kWarpChannels
  int32_t pair_groups = 0;     // warps that share a stage's pairs
  int32_t tile_rows = 0;       // a multiple of 32
  int32_t num_ranges = 0;      // offsets
  int32_t list_entries = 0;    // at least tile_rows, even
  int32_t stage_pairs = 0;     // a multiple of 16
  int32_t chunk_channels = 0;  // a multiple of 16
  int32_t num_chunks = 0;      // of an input row
  int32_t num_stages = 0;

  __host__ __device__ int32_t WeightPitch() const { return block_channels + kRowPadding; }   // 16-bit values
  __host__ __device__ int32_t FeaturePitch() const { return chunk_channels + kRowPadding; }  // likewise
  __host__ __device__ int32_t StageBytes() const {
    return 2 * (chunk_channels * WeightPitch() + stage_pairs * FeaturePitch());
  }
  __host__ __device__ int32_t SumBytes() const { return tile_rows * block_channels * int32_t{sizeof(float)}; }
  __host__ __device__ int32_t RangeBytes() const {
    return (num_ranges + 1) / 2 * 2 * int32_t{sizeof(PairRange)} + int32_t{sizeof(ListState)};
  }
  __host__ __device__ int32_t ListBytes() const { return list_entries * int32_t{sizeof(int32_t) + sizeof(uint16_t)}; }
  __host__ __device__ int32_t SharedBytes() const {
    return SumBytes() + num_stages * StageBytes() + RangeBytes() + ListBytes();
  }
};

template <typename T>
struct FetchOnDemandArguments {
  FetchOnDemandShape shape;
  const int32_t* neighbours;  // [num_offsets, neighbours_pitch]
  int64_t neighbours_pitch;
  int32_t num_offsets;
  bool is_symmetric;
  int64_t num_out_rows;
  const T* in;
  int64_t in_pitch;
  int32_t in_channels;
  bool in_vectors;  // input rows begin at multiples of 16 bytes
  const T* weights;
  bool weight_vectors;  // so do rows of weights
  int32_t out_channels;
  int32_t num_slices;  // of the output channels; a row tile's blocks are neighbours
  void* out;
  int64_t out_pitch;
  bool is_out_float;
  bool out_vectors;  // and outputs, residuals and biases, by kVectorChannels
  TypedEpilogue<T, float> epilogue;
};

// A block's pairs: of offset k the input rows and the rows of the tile that they go to, by ascending row.
struct PairLists {
  ListState* state;
  PairRange* ranges;  // [num_offsets]
  int32_t* in_rows;   // [list_entries]
  uint16_t* out_rows;

  // Lists the pairs of offsets [first, end). A warp takes some offsets at a time and reserves their entries: where
  // those lie depends on who comes first, what they hold does not. Nothing is listed of an offset without room.
  // kRowGroups: at least the tile's.
  template <int kWarps, int kRowGroups, typename T>
  __device__ void Fill(const FetchOnDemandArguments<T>& arguments, int64_t first_row, int32_t num_rows, int32_t first,
                       int32_t end) const {
    constexpr int kOffsets = kMaxRowGroups / kRowGroups;
    const auto lane = static_cast<int32_t>(threadIdx.x % kWarpLanes);
    const auto warp = static_cast<int32_t>(threadIdx.x / kWarpLanes);
    for (int32_t k = first + warp * kOffsets; k < end; k += kWarps * kOffsets) {
      const int32_t* const neighbours = arguments.neighbours + k * arguments.neighbours_pitch + first_row;
      int32_t found[kOffsets][kRowGroups];
#pragma unroll
      for (int j = 0; j < kOffsets; ++j) {
#pragma unroll
        for (int group = 0; group < kRowGroups; ++group) {
          const int32_t row = group * kWarpLanes + lane;
          found[j][group] =
              k + j < end && row < num_rows ? __ldg(neighbours + j * arguments.neighbours_pitch + row) : -1;
        }
      }
#pragma unroll
      for (int j = 0; j < kOffsets; ++j) {
        if (k + j < end) FillOffset(k + j, found[j], lane, arguments.shape.list_entries);
      }
    }
  }

 private:
  // All lanes of a warp call it.
  template <int kRowGroups>
  __device__ void FillOffset(int32_t k, const int32_t (&found)[kRowGroups], int32_t lane, int32_t list_entries) const {
    int32_t count = 0;
#pragma unroll
    for (int group = 0; group < kRowGroups; ++group) count += __popc(__ballot_sync(~0u, found[group] >= 0));
    const int32_t reserved = (count + 1) / 2 * 2;
    int32_t begin = 0;
    if (lane == 0) begin = atomicAdd(&state->used, reserved);
    begin = __shfl_sync(~0u, begin, 0);
    if (begin + reserved > list_entries) {
      if (lane == 0) atomicMin(&state->end, k);
      return;
    }
    if (lane == 0) ranges[k] = {begin, count};
    int32_t entry = begin;
#pragma unroll
    for (int group = 0; group < kRowGroups; ++group) {
      const unsigned pairs = __ballot_sync(~0u, found[group] >= 0);
      if (found[group] >= 0) {
        const int32_t at = entry + __popc(pairs & ((1u << lane) - 1));
        in_rows[at] = found[group];
        out_rows[at] = static_cast<uint16_t>(group * kWarpLanes + lane);
      }
      entry += __popc(pairs);
    }
  }
};

// A stage in the order of offsets, pairs and chunks.
struct StageCursor {
  int32_t offset;
  int32_t end;  // of the offsets
  int32_t pair = 0;
  int32_t chunk = 0;
  PairRange range = {0, 0};

  __device__ StageCursor(int32_t first_offset, int32_t end_offset, const PairRange* ranges)
      : offset(first_offset), end(end_offset) {
    SkipEmptyOffsets(ranges);
  }

  __device__ bool IsAtEnd() const { return offset >= end; }
  __device__ int32_t NumPairs(const FetchOnDemandShape& shape) const {
    return min(range.count - pair, shape.stage_pairs);
  }
  __device__ void Advance(const FetchOnDemandShape& shape, const PairRange* ranges) {
    if (++chunk < shape.num_chunks) return;
    chunk = 0;
    pair += shape.stage_pairs;
    if (pair < range.count) return;
    pair = 0;
    ++offset;
    SkipEmptyOffsets(ranges);
  }

 private:
  __device__ void SkipEmptyOffsets(const PairRange* ranges) {
    for (; offset < end; ++offset) {
      range = ranges[offset];
      if (range.count > 0) return;
    }
  }
};

}  // namespace voxserve::kernels::cuda
