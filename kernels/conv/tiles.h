#pragma once

// A rulebook in its tiles form, which an implicit GEMM reads (implicit_gemm.h). Output rows are reordered so that rows
// with neighbours in the same offsets are together. Each tile of 64 rows has the set of offsets that any of its rows
// has, and the input rows there. A product then skips the offsets that its tile does not have.
//
// The order:
// - Every row has a bit mask of its offsets. Offsets far from the centre, which few rows have, are the high bits. In
//   kernels of more than kSortBits offsets, offsets with neighbouring numbers share a bit.
// - A class is the set of rows with the same highest bit. Classes are in descending order of that bit.
// - Within a class the lower bits are ordered by how common they are in the class, and rows by the Gray rank of the
//   mask in that order, descending. Neighbouring masks then differ in few bits. How common a bit is, is counted in
//   kSampledRuns runs of 32 rows.
//
// spconv 2 sorts by the mask as a number, FlexGEMM by a Gray code. On a SemanticKITTI scan, tiles have 6% fewer offsets
// in this order than in the order of one Gray code.
//
// A row's result does not depend on its tile: products are added in the order of the offsets, and products of zeros
// with finite weights change no sum.
//
// Blocks that take the heaviest tiles first finish at about the same time (Graham, Bounds on Multiprocessing Timing
// Anomalies, 1969). So the form also lists its tiles by weight, which is the number of their offsets.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "kernels/conv/pair_tables.h"
#include "kernels/coordinates/conv_geometry.h"
#include "kernels/core/cuda_stream.h"

namespace voxserve::kernels {

inline constexpr int64_t kMaskTileRows = 64;
// The largest number of rows of a block; the form's rows are padded to a multiple of it.
inline constexpr int64_t kMaxBlockTileRows = 128;

// Returns the number of places for `rows` rows, including those that pad the last block.
constexpr int64_t NumTilePlaces(int64_t rows) {
  return (rows + kMaxBlockTileRows - 1) / kMaxBlockTileRows * kMaxBlockTileRows;
}

// Counters of implicit GEMMs: the items that blocks took, the blocks that are done and, for split K, the halves that
// are written, [tiles, kMaxSplitColumnTiles, kTileWarps]. MakeTiles sets them to zero, and every launch leaves them at
// zero. Launches that share a form must run one after the other.
inline constexpr int64_t kItemsTaken = 0;
inline constexpr int64_t kBlocksDone = 1;
inline constexpr int64_t kTileCounters = 2;  // the counters of the first tile
inline constexpr int32_t kTileWarps = 4;     // warps that make a tile's sums, 16 rows each
inline constexpr int32_t kMaxSplitColumnTiles = 8;
constexpr int64_t NumTileCounters(int64_t rows) {
  return kTileCounters + NumTilePlaces(rows) / kMaskTileRows * kTileWarps * kMaxSplitColumnTiles;
}

// Returns where the list for tiles of `tile_rows` rows begins: tiles of 64 rows come first, then tiles of 128.
constexpr int64_t TilesByWeightBegin(int64_t rows, int64_t tile_rows) {
  return tile_rows == kMaskTileRows ? 0 : NumTilePlaces(rows) / kMaskTileRows;
}
constexpr int64_t NumTilesByWeight(int64_t rows) {
  return TilesByWeightBegin(rows, kMaxBlockTileRows) + NumTilePlaces(rows) / kMaxBlockTileRows;
}

// A view of device memory. The code that made the form owns it. Places are numbered from 0, 64 per tile. out_rows and
// in_rows are aligned to 16 bytes.
struct TilesView {
  int32_t num_offsets = 0;            // K
  const int32_t* out_rows = nullptr;  // [places] the output row of a place, -1 behind the last row
  const uint32_t* masks = nullptr;    // [tiles, MaskWords(K)] the offsets that any row of the tile has
  const int32_t* in_rows = nullptr;   // [tiles, K, 64] the input row, or -1; defined only for offsets that the tile has
  int32_t* counters = nullptr;        // [NumTileCounters(out_capacity)]; null: blocks have fixed items
  // [NumTilesByWeight(out_capacity)] the numbers of the tiles that have rows, the heaviest first; null: not known.
  const int32_t* by_weight = nullptr;
  const int64_t* num_out = nullptr;  // [1] the number of rows
  int64_t out_capacity = 0;          // most rows
};
static_assert(std::is_trivially_copyable_v<TilesView>);

inline constexpr int kSortBits = 27;  // bits of a mask by which rows are sorted

// Bits are counted in runs of 32 rows. All rows are R runs, of which S = min(R, NumSampledRuns(K)) are sampled: for i
// from 0 to S - 1, the 32 rows from 32 * floor(i * R / S) on.
inline constexpr int kRunRows = 32;
inline constexpr int64_t kSampledRuns = 64;  // for kernels of at most kSortBits offsets
constexpr int64_t NumSampledRuns(int32_t num_offsets) {
  if (num_offsets <= kSortBits) return kSampledRuns;
  const int64_t runs = kSampledRuns * kSortBits / num_offsets;
  return runs < 8 ? 8 : runs;
}

// offset_of_bit[b]: the offset that is bit b of the sorted mask, in kernels of at most kSortBits offsets. Offsets
// nearest to the centre come first. In larger kernels offset k is bit k * kSortBits / K, and this order is not used.
using SortOrder = std::array<int8_t, kSortBits>;
SortOrder OffsetsByDistance(const ConvGeometry& geometry);

struct TilesParams {
  int32_t num_offsets = 0;              // K
  const int32_t* neighbours = nullptr;  // [K, pitch] input row or -1, as SearchNeighbours and SwapNeighbours make it
  int64_t pitch = 0;
  // Null, or for K <= kSortBits: [out_capacity] bit k is set if the row has an input row in offset k. SearchNeighbours
  // and SwapNeighbours write it.
  const uint32_t* row_masks = nullptr;
  // Null, or (only with row_masks) the lists that SearchNeighbours makes; they replace neighbours.
  const int32_t* row_inputs = nullptr;
  int64_t out_capacity = 0;          // most rows; at most pitch
  const int64_t* num_out = nullptr;  // [1]
  SortOrder order = {};

  // Output, described in TilesView, with NumTilePlaces(out_capacity) places. Nothing is written behind
  // NumTilePlaces(num_out). Unlike there, no pointer may be null.
  int32_t* out_rows = nullptr;
  uint32_t* masks = nullptr;
  int32_t* in_rows = nullptr;
  int32_t* counters = nullptr;
  int32_t* by_weight = nullptr;
};
static_assert(std::is_trivially_copyable_v<TilesParams>);

namespace cuda {

// Depends only on num_offsets and the capacities; a multiple of 256.
size_t TilesWorkspaceBytes(std::span<const TilesParams> params);
// Makes the tiles of all rulebooks of a network together: one sort serves 31 of them. The last command is not a kernel,
// so launches that start early (implicit_gemm.h) start after it. workspace: TilesWorkspaceBytes, 256-byte aligned.
// cudaErrorInvalidValue if row_masks is set and K is above kSortBits, or if row_inputs is set without row_masks.
cudaError_t MakeTiles(std::span<const TilesParams> params, void* workspace, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
