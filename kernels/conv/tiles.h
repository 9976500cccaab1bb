#pragma once

// A rulebook in its tiles form, which an implicit GEMM reads (implicit_gemm.h): output rows in an order that brings
// those with neighbours in the same offsets together, and for each tile of 64 of them the offsets that any of them has
// and the input rows there. A product then skips the offsets that a tile has not.
//
// The order: offsets far from the centre, which few rows have, are the high bits of a row's mask; in kernels of more
// than kSortBits offsets neighbours in number share a bit. Rows of one class, those that have the same highest bit,
// stand together, the highest class first. Within a class the lower bits are taken from the commonest to the rarest of
// that class, and rows stand by the Gray rank of the mask that these make, descending: neighbouring masks differ in few
// bits. How common a bit is in a class is counted in kSampledRuns runs of 32 rows. (spconv 2 sorts by the mask as a
// number; FlexGEMM by a Gray code. On a SemanticKITTI scan tiles have 6% fewer offsets in this order than by one Gray
// code.) A row's result does not depend on its tile: its products are added in the order of the offsets, and products
// of zeros with finite weights change no sum.
//
// Blocks that take the heaviest tiles first are done at about the same time (Graham, Bounds on Multiprocessing Timing
// Anomalies, 1969), so the form lists its tiles by weight too: by the offsets that they have.

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
// A block takes at most so many; the form's rows are padded to it.
inline constexpr int64_t kMaxBlockTileRows = 128;

// Places for `rows` rows, those that pad the last block's included.
constexpr int64_t NumTilePlaces(int64_t rows) {
  return (rows + kMaxBlockTileRows - 1) / kMaxBlockTileRows * kMaxBlockTileRows;
}

// Counters of implicit GEMMs: the items that blocks took, the blocks that are done and, for split K, the halves that
// are there, [tiles, kMaxSplitColumnTiles, kTileWarps]. MakeTiles makes them zeros, and every launch leaves them so.
// Launches that share a form run one after the other.
inline constexpr int64_t kItemsTaken = 0;
inline constexpr int64_t kBlocksDone = 1;
inline constexpr int64_t kTileCounters = 2;  // the first tile's
inline constexpr int32_t kTileWarps = 4;     // that make a tile's sums, 16 rows each
inline constexpr int32_t kMaxSplitColumnTiles = 8;
constexpr int64_t NumTileCounters(int64_t rows) {
  return kTileCounters + NumTilePlaces(rows) / kMaskTileRows * kTileWarps * kMaxSplitColumnTiles;
}

// Tiles by weight: those of 64 rows, then those of 128.
constexpr int64_t TilesByWeightBegin(int64_t rows, int64_t tile_rows) {
  return tile_rows == kMaskTileRows ? 0 : NumTilePlaces(rows) / kMaskTileRows;
}
constexpr int64_t NumTilesByWeight(int64_t rows) {
  return TilesByWeightBegin(rows, kMaxBlockTileRows) + NumTilePlaces(rows) / kMaxBlockTileRows;
}

// A view of device memory; whoever made the form owns it. Places are numbered from 0, 64 a tile. out_rows and in_rows
// are aligned to 16 bytes.
struct TilesView {
  int32_t num_offsets = 0;            // K
  const int32_t* out_rows = nullptr;  // [places] the output row of a place, -1 behind the last row
  const uint32_t* masks = nullptr;    // [tiles, MaskWords(K)] the offsets that any row of the tile has
  const int32_t* in_rows = nullptr;   // [tiles, K, 64] the input row, or -1; of offsets that the tile has
  int32_t* counters = nullptr;        // [NumTileCounters(out_capacity)]; null: blocks have fixed items
  // [NumTilesByWeight(out_capacity)] the numbers of the tiles that have rows, the heaviest first; null: none are known.
  const int32_t* by_weight = nullptr;
  const int64_t* num_out = nullptr;  // [1] the number of rows
  int64_t out_capacity = 0;          // rows at most
};
static_assert(std::is_trivially_copyable_v<TilesView>);

inline constexpr int kSortBits = 27;  // of a mask that rows are sorted by

// Bits are counted in the 32 rows from 32 * floor(i * R / S) on, for i from 0 to S - 1: R runs hold all rows, of which
// S = min(R, NumSampledRuns(K)) are looked at.
inline constexpr int kRunRows = 32;
inline constexpr int64_t kSampledRuns = 64;  // of kernels of at most kSortBits offsets
constexpr int64_t NumSampledRuns(int32_t num_offsets) {
  if (num_offsets <= kSortBits) return kSampledRuns;
  const int64_t runs = kSampledRuns * kSortBits / num_offsets;
  return runs < 8 ? 8 : runs;
}

// offset_of_bit[b]: the offset whose presence is bit b of the sorted mask, for kernels of at most kSortBits offsets:
// those nearest to the centre first. Of larger kernels offset k is bit k * kSortBits / K, and the order is left out.
using SortOrder = std::array<int8_t, kSortBits>;
SortOrder OffsetsByDistance(const ConvGeometry& geometry);

struct TilesParams {
  int32_t num_offsets = 0;              // K
  const int32_t* neighbours = nullptr;  // [K, pitch] input row or -1, as SearchNeighbours and SwapNeighbours make it
  int64_t pitch = 0;
  // Null, or for K <= kSortBits: [out_capacity] bit k of a row says that it has input row k, as SearchNeighbours and
  // SwapNeighbours note it.
  const uint32_t* row_offsets = nullptr;
  // Null, or in place of neighbours where row_offsets are there: as SearchNeighbours lists them.
  const int32_t* row_inputs = nullptr;
  int64_t out_capacity = 0;          // of the next; at most pitch
  const int64_t* num_out = nullptr;  // [1]
  SortOrder order = {};

  // Output, as TilesView has it; of NumTilePlaces(out_capacity) places. Past NumTilePlaces(num_out) nothing is written.
  // None may be null, unlike there.
  int32_t* out_rows = nullptr;
  uint32_t* masks = nullptr;
  int32_t* in_rows = nullptr;
  int32_t* counters = nullptr;
  int32_t* by_weight = nullptr;
};
static_assert(std::is_trivially_copyable_v<TilesParams>);

namespace cuda {

// Follows from num_offsets and the capacities alone; a multiple of 256.
size_t TilesWorkspaceBytes(std::span<const TilesParams> params);
// Makes the tiles of all rulebooks of a network together: one sort serves 31 of them. Its last command is no kernel, so
// that launches which begin early (implicit_gemm.h) begin behind it. workspace: TilesWorkspaceBytes,
// 256-byte aligned.
// cudaErrorInvalidValue where row_offsets are there and K is above kSortBits, or row_inputs without row_offsets.
cudaError_t MakeTiles(std::span<const TilesParams> params, void* workspace, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
