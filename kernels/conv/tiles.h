#pragma once

// The tiles form of a rulebook (rulebook.h says what a rulebook is), which an implicit GEMM reads (implicit_gemm.h).
// The form reorders the output rows, so that rows with neighbours in the same kernel offsets are together. Each tile of
// 64 rows stores a mask, which says in which offsets any of its rows has a neighbour, and the input rows for these
// offsets. An implicit GEMM skips the offsets that the mask of a tile does not have.
//
// The order of the rows:
// - Every row has a bit mask of its offsets. Offsets far from the centre, which few rows have, are the high bits. In
//   kernels of more than kSortBits offsets, offsets with neighbouring numbers share a bit.
// - A class is the set of rows with the same highest bit. Classes are in descending order of that bit.
// - Within a class, the lower bits of a mask are first permuted, so that the bits that are most common in the class are
//   the lowest. Rows are then in descending order of the permuted mask's Gray rank, which is the number whose Gray code
//   the mask is. Neighbouring masks thus differ in few bits. The bits are counted in a sample of at most kSampledRows
//   rows. Small kernels have no classes (kPlainRankBits). A long rank is shortened (kRankBits).
// - Or the rows keep their own order (TilesParams::keeps_order). Then tiles have more offsets: 66 of 125 in place of 50
//   in a kernel of 5^3 cells on a SemanticKITTI scan, 18 of 27 in place of 7 in one of 3^3. But a tile's input rows are
//   read from neighbouring places, where sorted rows take a memory sector for each.
//
// spconv 2 sorts rows by the mask as a number, FlexGEMM by the mask's Gray code. On a SemanticKITTI scan, tiles have 6%
// fewer offsets in the order above than in the order of one Gray code.
//
// The result of a row does not depend on its tile: the products of a row are added in the order of the offsets, and an
// offset that only other rows of the tile have adds zeros (if the weights are finite).
//
// Thread blocks finish at about the same time if they take the heaviest tiles first (Graham, Bounds on Multiprocessing
// Timing Anomalies, 1969). So the form also lists its tiles by weight. The weight of a tile is the number of its
// offsets.

#include <algorithm>
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
// The largest number of output rows that a thread block computes. The rows of the form are padded to a multiple of this
// number.
inline constexpr int64_t kMaxBlockTileRows = 128;

// Returns the number of places for `rows` rows. A place is a row's position in the form. The places include those that
// pad the last block.
constexpr int64_t NumTilePlaces(int64_t rows) {
  return (rows + kMaxBlockTileRows - 1) / kMaxBlockTileRows * kMaxBlockTileRows;
}

// The counters of implicit GEMM kernels in TilesView::counters:
// - [kItemsTaken]: the number of work items that blocks have taken;
// - [kBlocksDone]: the number of blocks that have finished;
// - from [kTileCounters] on: for split K (ConvBlock::split_k), the number of halves of a tile's sums that are written,
//   [tiles, kMaxSplitColumnTiles, kTileWarps].
// MakeTiles sets the counters to zero, and every launch leaves them at zero. Launches that share a form must run one
// after the other.
inline constexpr int64_t kItemsTaken = 0;
inline constexpr int64_t kBlocksDone = 1;
inline constexpr int64_t kTileCounters = 2;  // the index of the first tile's counters
inline constexpr int32_t kTileWarps = 4;     // warps that compute the sums of a tile, 16 rows each
inline constexpr int32_t kMaxSplitColumnTiles = 8;
constexpr int64_t NumTileCounters(int64_t rows) {
  return kTileCounters + NumTilePlaces(rows) / kMaskTileRows * kTileWarps * kMaxSplitColumnTiles;
}

// Returns where the list of tiles of `tile_rows` rows (64 or 128) begins in by_weight: the tiles of 64 rows are first,
// then the tiles of 128.
constexpr int64_t TilesByWeightBegin(int64_t rows, int64_t tile_rows) {
  return tile_rows == kMaskTileRows ? 0 : NumTilePlaces(rows) / kMaskTileRows;
}
constexpr int64_t NumTilesByWeight(int64_t rows) {
  return TilesByWeightBegin(rows, kMaxBlockTileRows) + NumTilePlaces(rows) / kMaxBlockTileRows;
}

// An entry of the list of tiles by weight. With the masks in it, a reader needs one load where it would need two, one
// after the other.
struct alignas(16) WeighedTile {
  int32_t tile;  // the tile's number
  // In kernels of at most 32 offsets: the masks of the tile's rows, 64 rows each. A tile of 64 rows has only the first.
  // Undefined in larger kernels.
  uint32_t masks[kMaxBlockTileRows / kMaskTileRows];
};
static_assert(sizeof(WeighedTile) == 16);

// A view of device memory, which the code that made the form owns. Places are numbered from 0; tile t has the places
// from 64 t to 64 t + 63. out_rows, in_rows and by_weight are aligned to 16 bytes.
struct TilesView {
  int32_t num_offsets = 0;            // K
  const int32_t* out_rows = nullptr;  // [places] the output row of a place; -1: a padding place
  const uint32_t* masks = nullptr;    // [tiles, MaskWords(K)] the offsets that any row of the tile has
  const int32_t* in_rows = nullptr;   // [tiles, K, 64] the input row, or -1; undefined for offsets not in `masks`
  // [NumTileCounters(out_capacity)]; null: every block computes a fixed list of work items.
  int32_t* counters = nullptr;
  // [NumTilesByWeight(out_capacity)] the tiles that have rows, the heaviest first. Tiles of equal weight are in any
  // order, which may change from run to run. Null: tiles are taken in the order of their numbers.
  const WeighedTile* by_weight = nullptr;
  const int64_t* num_out = nullptr;  // [1] the number of output rows
  int64_t out_capacity = 0;          // the largest possible number of output rows
};
static_assert(std::is_trivially_copyable_v<TilesView>);

inline constexpr int kSortBits = 27;  // bits of a mask by which rows are sorted

// MakeTiles counts the bits of the rows' masks, for the order within a class, only in a sample of the rows. If there
// are R rows, the sample has S = min(R, NumSampledRows(K)) rows: floor(i * R / S) for i from 0 to S - 1.
inline constexpr int64_t kSampledRows = 1024;  // for kernels of at most kSortBits offsets
constexpr int64_t NumSampledRows(int32_t num_offsets) {
  if (num_offsets <= kSortBits) return kSampledRows;
  return std::max<int64_t>(kSampledRows / 4, kSampledRows * kSortBits / num_offsets);
}

// Kernels of at most kPlainRankBits offsets have no classes: their rows are in descending order of the Gray rank of the
// mask, in which bit k is offset k.
inline constexpr int kPlainRankBits = 9;

// A rank of more than 18 bits is shortened to 18, since each pass of the sort takes 9. Its upper 5 bits are the class
// plus 1 (0: no bit is set), its lower 13 bits the upper bits of the mask's place in its class, a number below
// kPlaceOne. The place is the one of arithmetic coding (Rissanen and Langdon, Arithmetic Coding, 1979) over the
// permuted masks in the order of their Gray ranks, as if each bit were set in 7 of 23 rows. Rows of equal ranks keep
// their order. On a SemanticKITTI scan, tiles have 0.1% more offsets than in the order of whole ranks.
inline constexpr int kRankBits = 18;
inline constexpr int kPlaceBits = 13;
inline constexpr uint32_t kPlaceOne = 1u << 24;
static_assert(kSortBits < 1 << (kRankBits - kPlaceBits));
// Returns how many of `share` places belong to the masks without a given bit.
constexpr uint32_t ShareWithoutBit(uint32_t share) { return share * 16 / 23; }
// The place of a mask is found from its lowest bit to its highest. At first it is half the share of the masks without
// any bit. Each set bit moves it: places below the bit run backwards from the end of the share of the masks that have
// no bit above it, and are 7/16 as wide.
constexpr uint32_t PlaceWithBit(uint32_t share, uint32_t place) { return share - place * 7 / 16; }
// Returns the bits of the keys by which MakeTiles sorts the rows of a kernel.
constexpr int NumKeyBits(int32_t num_offsets) { return std::min<int>(num_offsets, kRankBits); }

// SortOrder[b] is the offset that is bit b of the sorted mask: a permutation of 0 to K - 1, the nearest to the centre
// first. It is read if kPlainRankBits < K <= kSortBits. In larger kernels offset k is bit k * kSortBits / K.
using SortOrder = std::array<int8_t, kSortBits>;
SortOrder OffsetsByDistance(const ConvGeometry& geometry);

struct TilesParams {
  int32_t num_offsets = 0;              // K
  bool keeps_order = false;             // rows are not sorted; `order` is not read
  const int32_t* neighbours = nullptr;  // [K, pitch] input row or -1, as SearchNeighbours and SwapNeighbours make it
  int64_t pitch = 0;
  // For K <= kSortBits, optional (null: not given): [out_capacity] bit k is set exactly if the row has an input row in
  // offset k. SearchNeighbours and SwapNeighbours write these masks.
  const uint32_t* row_masks = nullptr;
  // Optional, and only with row_masks: [out_capacity, row_inputs_pitch] each row's input rows in the order of their
  // offsets, as SearchNeighbours makes them. MakeTiles then reads them instead of `neighbours`.
  const int32_t* row_inputs = nullptr;
  int64_t row_inputs_pitch = 0;      // values from one row's list to the next; above 0 if row_inputs is set
  int64_t out_capacity = 0;          // the largest possible number of output rows; at most pitch
  const int64_t* num_out = nullptr;  // [1]
  SortOrder order = {};

  // Output. TilesView describes the arrays, which have NumTilePlaces(out_capacity) places. MakeTiles writes nothing
  // after place NumTilePlaces(num_out). Here no pointer may be null.
  int32_t* out_rows = nullptr;
  uint32_t* masks = nullptr;
  int32_t* in_rows = nullptr;
  int32_t* counters = nullptr;
  WeighedTile* by_weight = nullptr;
};
static_assert(std::is_trivially_copyable_v<TilesParams>);

namespace cuda {

// Returns the size of the workspace, a multiple of 256. The size depends only on num_offsets, keeps_order and the
// capacities.
size_t TilesWorkspaceBytes(std::span<const TilesParams> params);
// Makes the tiles forms of all rulebooks of a network together: one sort serves up to 24 rulebooks. The last kernel
// only writes counters. So an implicit GEMM, whose kernel may start before the previous kernel has ended
// (implicit_gemm.h), starts after all other kernels of this function have ended.
// workspace: TilesWorkspaceBytes of device memory, 256-byte aligned.
// Returns cudaErrorInvalidValue if row_masks is set and K is above kSortBits, if row_inputs is set without row_masks or
// without a pitch, or if an order that is read is no permutation.
cudaError_t MakeTiles(std::span<const TilesParams> params, void* workspace, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
