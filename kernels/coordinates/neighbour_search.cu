#include <algorithm>
#include <bit>

#include "kernels/coordinates/coordinate_table.cuh"
#include "kernels/coordinates/morton_key.h"
#include "kernels/coordinates/neighbour_search.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/visit_dimension.cuh"

// A search is cut into pieces of a few dozen cells, a piece into tiles: kSearchThreads output rows times as many cells
// as a thread looks up at once. The tiles of all pieces of a launch are shared out among its blocks.

namespace voxserve::kernels::cuda {
namespace {

constexpr int kSearchThreads = 128;
constexpr int kCellsAThread = 7;  // 13, the first half of 27, are 7 and 6
constexpr int kCellsAPiece = 32;
constexpr int kMaxPiecesALaunch = 16;
constexpr int64_t kMaxSearchBlocks = 792;  // what is resident at once: 6 on each of 132 SMs
constexpr int kMaxFillsALaunch = 32;
constexpr int64_t kMaxBlocksAFill = 256;

enum class PieceKind : int32_t {
  kLookUp,
  kMirror,  // looks up cells of the first half alone, for both halves; the second's are -1 before
  kBlocks,  // reads the inputs' consecutive rows
};

struct Piece {
  PieceKind kind;
  const uint64_t* out_keys;
  int64_t out_capacity;
  const int64_t* num_out;
  int32_t* neighbours;
  uint32_t* row_offsets;  // or null
  int32_t num_offsets;    // K

  // kLookUp, kMirror
  CoordinateTable table;
  bool is_strided;
  int32_t stride[kMaxDimension];
  int32_t first_cell;
  int32_t num_cells;
  int32_t cells_a_thread;  // at most kCellsAThread
  int32_t num_chunks;      // threads of an output row
  uint64_t translation[kCellsAPiece];
  int16_t delta[kCellsAPiece][kMaxDimension];

  // kBlocks
  const int32_t* first_in_rows;
  const uint64_t* in_keys;
  int64_t in_capacity;
  const int64_t* num_in;
  int32_t log2_stride;
};

struct PieceBatch {
  int32_t num_pieces;
  Piece pieces[kMaxPiecesALaunch];
};
static_assert(sizeof(PieceBatch) <= kMaxParamBytes);

// Columns [num_columns, capacity] whose first rows are set to -1.
struct ColumnFill {
  int32_t* columns;
  int32_t num_columns;
  int64_t capacity;
  const int64_t* num_rows;
};

struct FillBatch {
  ColumnFill fills[kMaxFillsALaunch];
};
static_assert(sizeof(FillBatch) <= kMaxParamBytes);

// ---- Kernels -----------------------------------------------------------------------------------------------------

__global__ void __launch_bounds__(kBlockThreads) FillColumnsKernel(const __grid_constant__ FillBatch batch) {
  const ColumnFill& fill = batch.fills[blockIdx.y];
  const int64_t num_rows = NumRows(fill.capacity, fill.num_rows);
  for (int64_t row = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x; row < num_rows;
       row += int64_t{gridDim.x} * kBlockThreads) {
    for (int32_t column = 0; column < fill.num_columns; ++column) fill.columns[column * fill.capacity + row] = -1;
  }
}

// The key of stride * the output's coordinate; kNoKey where a field cannot hold it. Inputs lie kCoordinateMargin inside
// their fields and no cell reaches further, so that such an output has no neighbours. Nor has a cell that leaves its
// field from inside: Translate brings it to the margin of the other side, where no input lies.
template <int kDimension>
__device__ uint64_t ScaledKey(const Piece& piece, uint64_t key) {
  using Key = MortonKey<kDimension>;
  if (!piece.is_strided) return key;
  constexpr auto kBias = static_cast<int64_t>(Key::kBias);
  Axes scaled = {0, 0, 0, 0};
#pragma unroll
  for (int axis = 0; axis < kDimension; ++axis) {
    const int64_t coordinate = int64_t{Key::Coordinate(key, axis)} * piece.stride[axis];
    if (coordinate < -kBias || coordinate >= kBias) return kNoKey;
    scaled[axis] = static_cast<int32_t>(coordinate);
  }
  return Key::Pack(Key::Sample(key), scaled);
}

// Both fill found[0, count) with rows, -1 where there is none. cell: the first one, within the piece.
template <int kDimension>
__device__ void FindInHash(const Piece& piece, uint64_t base, int32_t cell, int32_t count,
                           int32_t (&found)[kCellsAThread]) {
  uint64_t keys[kCellsAThread];
#pragma unroll
  for (int c = 0; c < kCellsAThread; ++c) {
    keys[c] = c < count ? MortonKey<kDimension>::Translate(base, piece.translation[cell + c]) : base;
  }
  HashTable(piece.table.slots, NumRows(piece.table.capacity, piece.table.num_keys)).Find(keys, count, found);
}

template <int kDimension>
__device__ void FindInGrid(const Piece& piece, uint64_t base, int32_t cell, int32_t count,
                           int32_t (&found)[kCellsAThread]) {
  using Distance = FieldInteger<kDimension>;
  const GridBox box = piece.table.boxes[MortonKey<kDimension>::Sample(base)];
  Distance from_lowest[kDimension];
#pragma unroll
  for (int axis = 0; axis < kDimension; ++axis) {
    from_lowest[axis] = static_cast<Distance>(int64_t{FieldOf<kDimension>(base, axis)} - int64_t{box.lowest[axis]});
  }
#pragma unroll
  for (int c = 0; c < kCellsAThread; ++c) {
    if (c < count) {
      Distance distance[kDimension];
#pragma unroll
      for (int axis = 0; axis < kDimension; ++axis) {
        distance[axis] = from_lowest[axis] + piece.delta[cell + c][axis];
      }
      const int64_t at = GridCell<kDimension>(box, distance);
      found[c] = at < 0 ? -1 : __ldg(piece.table.grid_cells + at);
    }
  }
}

// An output row and one chunk of the piece's cells.
template <int kDimension>
__device__ void LookUpRow(const Piece& piece, int64_t row, int32_t chunk) {
  const int32_t cell = chunk * piece.cells_a_thread;
  const int32_t count = min(piece.cells_a_thread, piece.num_cells - cell);

  int32_t found[kCellsAThread];
#pragma unroll
  for (int c = 0; c < kCellsAThread; ++c) found[c] = -1;
  const uint64_t base = ScaledKey<kDimension>(piece, piece.out_keys[row]);
  if (base != kNoKey) {
    if (piece.table.search == MapSearch::kGrid && *piece.table.uses_grid != 0) {
      FindInGrid<kDimension>(piece, base, cell, count, found);
    } else {
      FindInHash<kDimension>(piece, base, cell, count, found);
    }
  }

  const bool mirrors = piece.kind == PieceKind::kMirror;
  const bool notes = piece.row_offsets != nullptr;
  const int64_t first_offset = piece.first_cell + cell;
  uint32_t offsets = 0;
#pragma unroll
  for (int c = 0; c < kCellsAThread; ++c) {
    if (c < count) {
      const int64_t offset = first_offset + c;
      piece.neighbours[offset * piece.out_capacity + row] = found[c];
      offsets |= static_cast<uint32_t>(found[c] >= 0) << (offset % kMostRowOffsets);
      if (mirrors && found[c] >= 0) {
        const int64_t mirrored = piece.num_offsets - 1 - offset;
        piece.neighbours[mirrored * piece.out_capacity + found[c]] = static_cast<int32_t>(row);
        if (notes) atomicOr(piece.row_offsets + found[c], 1u << (mirrored % kMostRowOffsets));
      }
    }
  }
  if (mirrors && first_offset == 0) {
    const int32_t centre = piece.num_offsets / 2;
    piece.neighbours[centre * piece.out_capacity + row] = static_cast<int32_t>(row);
    offsets |= 1u << (centre % kMostRowOffsets);
  }
  if (notes && offsets != 0) atomicOr(piece.row_offsets + row, offsets);
}

// The kernel's cell at the place `block_place` of its block in Morton order.
template <int kDimension>
__device__ int32_t CellAt(int32_t block_place, int32_t log2_stride) {
  int32_t cell = 0;
  for (int bit = 0; bit < log2_stride; ++bit) {
#pragma unroll
    for (int place = 0; place < kDimension; ++place) {  // of the axis, from the last
      cell |= (block_place >> (bit * kDimension + place) & 1) << (place * log2_stride + bit);
    }
  }
  return cell;
}

// The inputs of an output row lie from its first one to the next output's, in Morton order.
template <int kDimension>
__device__ void ReadBlock(const Piece& piece, int64_t row, int64_t num_out) {
  const uint64_t in_block = (uint64_t{1} << (kDimension * piece.log2_stride)) - 1;
  int32_t in_row = piece.first_in_rows[row];
  const int32_t end =
      row + 1 < num_out ? piece.first_in_rows[row + 1] : static_cast<int32_t>(NumRows(piece.in_capacity, piece.num_in));
  constexpr int32_t kNone = -1;
  int32_t next = in_row < end ? static_cast<int32_t>(__ldg(piece.in_keys + in_row) & in_block) : kNone;
  uint32_t offsets = 0;
  for (int32_t place = 0; place < piece.num_offsets; ++place) {
    const int64_t offset = CellAt<kDimension>(place, piece.log2_stride);
    piece.neighbours[offset * piece.out_capacity + row] = place == next ? in_row : -1;
    if (place != next) continue;
    offsets |= 1u << (offset % kMostRowOffsets);
    ++in_row;
    next = in_row < end ? static_cast<int32_t>(__ldg(piece.in_keys + in_row) & in_block) : kNone;
  }
  if (piece.row_offsets != nullptr) piece.row_offsets[row] = offsets;
}

template <int kDimension>
__global__ void __launch_bounds__(kSearchThreads) SearchNeighboursKernel(const __grid_constant__ PieceBatch batch) {
  const BatchTiles<kMaxPiecesALaunch> tiles(batch.num_pieces, [&](int i) {
    const Piece& piece = batch.pieces[i];
    const int64_t num_out = NumRows(piece.out_capacity, piece.num_out);
    return (num_out + kSearchThreads - 1) / kSearchThreads * piece.num_chunks;
  });
  for (int64_t tile = blockIdx.x; tile < tiles.size(); tile += gridDim.x) {
    const int entry = tiles.Entry(tile);
    const Piece& piece = batch.pieces[entry];
    const auto within = static_cast<uint32_t>(tiles.Within(entry, tile));
    const auto num_chunks = static_cast<uint32_t>(piece.num_chunks);
    const int64_t row = int64_t{within / num_chunks} * kSearchThreads + threadIdx.x;
    const int64_t num_out = NumRows(piece.out_capacity, piece.num_out);
    if (row >= num_out) continue;
    if (piece.kind == PieceKind::kBlocks) {
      ReadBlock<kDimension>(piece, row, num_out);
    } else {
      LookUpRow<kDimension>(piece, row, static_cast<int32_t>(within % num_chunks));
    }
  }
}

// ---- Launchers -----------------------------------------------------------------------------------------------------

bool IsOfDimension(const NeighbourSearchParams& params, int32_t dimension) {
  const bool reads_table = params.first_in_rows == nullptr;
  return params.dimension == dimension && params.geometry.dimension == dimension &&
         (!reads_table || params.table.dimension == dimension);
}

bool Mirrors(const NeighbourSearchParams& params) { return params.same_sites && params.geometry.IsSymmetric(); }

// The second half of what mirrors.
cudaError_t FillMirrored(std::span<const NeighbourSearchParams> params, cudaStream_t stream) {
  FillBatch batch{};
  unsigned num_fills = 0;
  int64_t max_rows = 0;
  const auto launch = [&] {
    if (num_fills == 0) return cudaSuccess;
    const dim3 blocks(static_cast<unsigned>(std::min<int64_t>(kMaxBlocksAFill, NumBlocks(max_rows))), num_fills);
    FillColumnsKernel<<<blocks, kBlockThreads, 0, stream>>>(batch);
    num_fills = 0;
    max_rows = 0;
    return LaunchStatus(stream);
  };
  for (const NeighbourSearchParams& search : params) {
    const int32_t num_mirrored = search.geometry.NumOffsets() / 2;
    if (search.out_capacity == 0 || num_mirrored == 0 || !Mirrors(search)) continue;
    if (num_fills == kMaxFillsALaunch) VOXSERVE_RETURN_IF_CUDA(launch());
    batch.fills[num_fills++] = {.columns = search.neighbours + (int64_t{num_mirrored} + 1) * search.out_capacity,
                                .num_columns = num_mirrored,
                                .capacity = search.out_capacity,
                                .num_rows = search.num_out};
    max_rows = std::max(max_rows, search.out_capacity);
  }
  return launch();
}

// Pieces of one launch, which are launched when there are as many as it takes.
template <int kDimension>
class PieceQueue {
 public:
  explicit PieceQueue(cudaStream_t stream) : stream_(stream) {}

  cudaError_t Add(const NeighbourSearchParams& params) {
    const ConvGeometry& geometry = params.geometry;
    Piece piece{};
    piece.out_keys = params.out_keys;
    piece.out_capacity = params.out_capacity;
    piece.num_out = params.num_out;
    piece.neighbours = params.neighbours;
    piece.row_offsets = params.row_offsets;
    piece.num_offsets = geometry.NumOffsets();
    if (params.first_in_rows != nullptr) {
      piece.kind = PieceKind::kBlocks;
      piece.num_chunks = 1;
      piece.first_in_rows = params.first_in_rows;
      piece.in_keys = params.in_keys;
      piece.in_capacity = params.in_capacity;
      piece.num_in = params.num_in;
      piece.log2_stride = std::countr_zero(static_cast<uint32_t>(geometry.stride[0]));
      return Add(piece);
    }
    piece.kind = Mirrors(params) ? PieceKind::kMirror : PieceKind::kLookUp;
    piece.table = params.table;
    for (int axis = 0; axis < kDimension; ++axis) {
      piece.stride[axis] = geometry.stride[axis];
      piece.is_strided |= geometry.stride[axis] != 1;
    }
    const int32_t num_searched = Mirrors(params) ? piece.num_offsets / 2 : piece.num_offsets;
    // Once even where there is only a centre, which needs no search.
    do {
      piece.num_cells = std::min(kCellsAPiece, num_searched - piece.first_cell);
      piece.num_chunks = std::max(1, (piece.num_cells + kCellsAThread - 1) / kCellsAThread);
      piece.cells_a_thread = (piece.num_cells + piece.num_chunks - 1) / piece.num_chunks;
      for (int32_t cell = 0; cell < piece.num_cells; ++cell) {
        const Axes delta = geometry.Delta(piece.first_cell + cell);
        piece.translation[cell] = MortonKey<kDimension>::Translation(delta);
        for (int axis = 0; axis < kDimension; ++axis) piece.delta[cell][axis] = static_cast<int16_t>(delta[axis]);
      }
      VOXSERVE_RETURN_IF_CUDA(Add(piece));
      piece.first_cell += piece.num_cells;
    } while (piece.first_cell < num_searched);
    return cudaSuccess;
  }

  cudaError_t Launch() {
    if (batch_.num_pieces == 0) return cudaSuccess;
    const auto blocks = static_cast<unsigned>(std::min(kMaxSearchBlocks, max_tiles_));
    SearchNeighboursKernel<kDimension><<<blocks, kSearchThreads, 0, stream_>>>(batch_);
    batch_.num_pieces = 0;
    max_tiles_ = 0;
    return LaunchStatus(stream_);
  }

 private:
  cudaError_t Add(const Piece& piece) {
    if (batch_.num_pieces == kMaxPiecesALaunch) VOXSERVE_RETURN_IF_CUDA(Launch());
    batch_.pieces[batch_.num_pieces++] = piece;
    max_tiles_ += int64_t{NumBlocks(piece.out_capacity, kSearchThreads)} * piece.num_chunks;
    return cudaSuccess;
  }

  cudaStream_t stream_;
  PieceBatch batch_{};
  int64_t max_tiles_ = 0;
};

}  // namespace

cudaError_t SearchNeighbours(std::span<const NeighbourSearchParams> params, cudaStream_t stream) {
  const NvtxRange range("SearchNeighbours");
  if (params.empty()) return cudaSuccess;
  for (const NeighbourSearchParams& search : params) {
    if (!IsOfDimension(search, params[0].dimension)) return cudaErrorInvalidValue;
    if (search.row_offsets != nullptr && search.geometry.NumOffsets() > kMostRowOffsets) return cudaErrorInvalidValue;
  }
  VOXSERVE_RETURN_IF_CUDA(FillMirrored(params, stream));
  return VisitDimension(params[0].dimension, [&](auto dimension) {
    PieceQueue<dimension()> pieces(stream);
    for (const NeighbourSearchParams& search : params) {
      if (search.out_capacity > 0) VOXSERVE_RETURN_IF_CUDA(pieces.Add(search));
    }
    return pieces.Launch();
  });
}

}  // namespace voxserve::kernels::cuda
