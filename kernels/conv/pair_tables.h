#pragma once

// The pair tables of a rulebook (rulebook.h), in GPU memory. They number the pairs (input row, output row) of every
// kernel offset. The gather and the scatter of gather_scatter.h read them (TorchSparse, Tang et al., MLSys 2022,
// section 4.3).
//
// Pairs are numbered offset by offset, and within an offset by ascending output row. A row occurs at most once in an
// offset. So entry [offset, row] of in_pairs holds the number of the pair of an input row, and the same entry of
// out_pairs that of an output row. Most rows have pairs in few offsets. A bit mask per row lists these offsets, so that
// kernels need not look at the entries of all of them.

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "kernels/core/cuda_stream.h"

namespace voxserve::kernels {

// Returns the 32-bit words of a row's mask. Offset k is bit k % 32 of word k / 32.
constexpr int32_t MaskWords(int32_t num_offsets) { return (num_offsets + 31) / 32; }

struct PairTablesParams {
  int32_t num_offsets = 0;              // K
  const int32_t* neighbours = nullptr;  // [K, out_capacity] input row or -1, as SearchNeighbours makes it
  int64_t out_capacity = 0;             // in rows; below 2^31, like in_capacity
  const int64_t* num_out = nullptr;     // [1] the number of output rows, at most out_capacity
  int64_t in_capacity = 0;
  const int64_t* num_in = nullptr;  // [1]
  // True if the input rows are the output rows, and offset K - 1 - k has the pairs of offset k reversed, as in a
  // submanifold convolution with a symmetric kernel.
  bool is_symmetric = false;

  // Output. Values of rows after num_in and num_out are undefined. offset_begin is right for any number of pairs. If
  // there are 2^31 pairs or more, the numbers in in_pairs and out_pairs are wrong: the caller must check
  // offset_begin[K] and refuse the rulebook.
  int32_t* in_pairs = nullptr;      // [K, in_capacity] number of the pair, or -1
  int32_t* out_pairs = nullptr;     // [K, out_capacity] number of the pair, or -1; may be the memory of `neighbours`
  uint32_t* in_masks = nullptr;     // [in_capacity, MaskWords(K)] bit k: the row has a pair in offset k
  uint32_t* out_masks = nullptr;    // [out_capacity, MaskWords(K)]
  int64_t* offset_begin = nullptr;  // [K + 1] first pair of each offset; [K] is the number of pairs

  void* workspace = nullptr;  // PairTablesWorkspaceBytes(*this), 16-byte aligned; PairTables overwrites it
};
static_assert(std::is_trivially_copyable_v<PairTablesParams>);

// The params of PairTablesFromLists, which makes pair tables from a rulebook that the CPU made (rulebook.h) and that
// was copied to the GPU. The pairs of an offset must be in ascending order of output rows.
struct PairListsParams {
  int32_t num_offsets = 0;                // K
  int64_t num_pairs = 0;                  // below 2^31
  const int32_t* in_rows = nullptr;       // [num_pairs]
  const int32_t* out_rows = nullptr;      // [num_pairs]
  const int64_t* offset_begin = nullptr;  // [K + 1]
  int64_t in_capacity = 0;
  int64_t out_capacity = 0;

  // Output, for all rows up to the capacities.
  int32_t* in_pairs = nullptr;    // [K, in_capacity]
  int32_t* out_pairs = nullptr;   // [K, out_capacity]
  uint32_t* in_masks = nullptr;   // [in_capacity, MaskWords(K)]
  uint32_t* out_masks = nullptr;  // [out_capacity, MaskWords(K)]
};
static_assert(std::is_trivially_copyable_v<PairListsParams>);

namespace cuda {

// Returns the size of the workspace, a multiple of 256. The size depends only on num_offsets and the capacities.
size_t PairTablesWorkspaceBytes(const PairTablesParams& params);
// Makes the pair tables of all rulebooks of a network together, since a single small rulebook does not fill a GPU.
cudaError_t PairTables(std::span<const PairTablesParams> params, cudaStream_t stream);
inline cudaError_t PairTables(const PairTablesParams& params, cudaStream_t stream) {
  return PairTables({&params, 1}, stream);
}

// Makes the pair tables of a rulebook whose pairs are given as lists.
cudaError_t PairTablesFromLists(const PairListsParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
