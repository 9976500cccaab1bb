#pragma once

// A rulebook on the GPU as pair tables: the pairs (input row, output row) of every kernel offset, numbered, for
// TorchSparse's input-stationary gather and output-stationary scatter (Tang et al., MLSys 2022, section 4.3).
//
// Pairs are numbered offset by offset, within an offset by ascending output row. A row occurs at most once in an
// offset, so entry [offset, row] holds the number of its pair: in_pairs for input rows, out_pairs for output rows. Most
// rows have pairs in few offsets. A bit mask per row lists these offsets, so that kernels need not look through all of
// them.

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
  int64_t out_capacity = 0;             // below 2^31; in_capacity too
  const int64_t* num_out = nullptr;     // [1]
  int64_t in_capacity = 0;
  const int64_t* num_in = nullptr;  // [1]
  // The input rows are the output rows, and offset K - 1 - k has the pairs of offset k reversed, as in a submanifold
  // convolution with a symmetric kernel.
  bool is_symmetric = false;

  // Output. Values of rows behind num_in and num_out are undefined. offset_begin is right however many pairs there are.
  // From 2^31 pairs on, the numbers in in_pairs and out_pairs are invalid; the caller must check offset_begin[K] and
  // refuse the rulebook.
  int32_t* in_pairs = nullptr;      // [K, in_capacity] number of the pair, or -1
  int32_t* out_pairs = nullptr;     // [K, out_capacity] number of the pair, or -1; may be the memory of `neighbours`
  uint32_t* in_masks = nullptr;     // [in_capacity, MaskWords(K)] bit k: the row has a pair in offset k
  uint32_t* out_masks = nullptr;    // [out_capacity, MaskWords(K)]
  int64_t* offset_begin = nullptr;  // [K + 1] first pair of each offset; [K] is the number of pairs

  void* workspace = nullptr;  // PairTablesWorkspaceBytes(*this), 16-byte aligned, contents free
};
static_assert(std::is_trivially_copyable_v<PairTablesParams>);

// Makes pair tables from a rulebook of the host, as lists of pairs that are numbered as above.
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

// Depends only on num_offsets and the capacities; a multiple of 256.
size_t PairTablesWorkspaceBytes(const PairTablesParams& params);
// Makes the tables of all rulebooks of a network together, since a small rulebook does not fill a GPU.
cudaError_t PairTables(std::span<const PairTablesParams> params, cudaStream_t stream);
inline cudaError_t PairTables(const PairTablesParams& params, cudaStream_t stream) {
  return PairTables({&params, 1}, stream);
}

cudaError_t PairTablesFromLists(const PairListsParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
