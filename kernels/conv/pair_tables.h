#pragma once

// A rulebook on the GPU: pairs (input row, output row) of every kernel offset as two tables of buffer rows, for
// TorchSparse's input-stationary gather and output-stationary scatter (Tang et al., MLSys 2022, section 4.3).
//
// Pairs are numbered offset by offset, within an offset by ascending output row. A row stands at most once in an
// offset, so [offset, row] finds its pair: in_pairs for input rows, out_pairs for output rows. Most rows have a pair in
// few offsets; a mask of bits a row says in which, so that nobody has to look through them all.

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "kernels/core/cuda_stream.h"

namespace voxserve::kernels {

// 32-bit words of a row's mask: bit k % 32 of word k / 32 is offset k's.
constexpr int32_t MaskWords(int32_t num_offsets) { return (num_offsets + 31) / 32; }

struct PairTablesParams {
  int32_t num_offsets = 0;              // K
  const int32_t* neighbours = nullptr;  // [K, out_capacity] input row or -1, as SearchNeighbours makes it
  int64_t out_capacity = 0;             // below 2^31, as in_capacity
  const int64_t* num_out = nullptr;     // [1]
  int64_t in_capacity = 0;
  const int64_t* num_in = nullptr;  // [1]
  // Input rows are the output rows, and offset K - 1 - k has offset k's pairs the other way round, as in a submanifold
  // convolution of a symmetric kernel.
  bool is_symmetric = false;

  // Output. Of rows past num_in and num_out nothing is promised. offset_begin is right however many pairs there are;
  // with 2^31 or more the numbers in in_pairs and out_pairs are rubbish, and the caller, who sees offset_begin[K],
  // refuses the rulebook.
  int32_t* in_pairs = nullptr;      // [K, in_capacity] number of the pair, or -1
  int32_t* out_pairs = nullptr;     // [K, out_capacity] likewise; may be `neighbours` itself
  uint32_t* in_masks = nullptr;     // [in_capacity, MaskWords(K)] the offsets in which a row has a pair
  uint32_t* out_masks = nullptr;    // [out_capacity, MaskWords(K)]
  int64_t* offset_begin = nullptr;  // [K + 1] first pair of each offset; [K] is the number of pairs

  void* workspace = nullptr;  // PairTablesWorkspaceBytes(*this), 16-byte aligned, contents free
};
static_assert(std::is_trivially_copyable_v<PairTablesParams>);

// From lists of pairs, numbered as above: a rulebook that the host made.
struct PairListsParams {
  int32_t num_offsets = 0;                // K
  int64_t num_pairs = 0;                  // below 2^31
  const int32_t* in_rows = nullptr;       // [num_pairs]
  const int32_t* out_rows = nullptr;      // [num_pairs]
  const int64_t* offset_begin = nullptr;  // [K + 1]
  int64_t in_capacity = 0;
  int64_t out_capacity = 0;

  // Output, all rows up to the capacities.
  int32_t* in_pairs = nullptr;    // [K, in_capacity]
  int32_t* out_pairs = nullptr;   // [K, out_capacity]
  uint32_t* in_masks = nullptr;   // [in_capacity, MaskWords(K)]
  uint32_t* out_masks = nullptr;  // [out_capacity, MaskWords(K)]
};
static_assert(std::is_trivially_copyable_v<PairListsParams>);

namespace cuda {

// Of num_offsets and the capacities alone; a multiple of 256.
size_t PairTablesWorkspaceBytes(const PairTablesParams& params);
// Of all rulebooks of a network together: small ones do not fill a GPU.
cudaError_t PairTables(std::span<const PairTablesParams> params, cudaStream_t stream);
inline cudaError_t PairTables(const PairTablesParams& params, cudaStream_t stream) {
  return PairTables({&params, 1}, stream);
}

cudaError_t PairTablesFromLists(const PairListsParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
