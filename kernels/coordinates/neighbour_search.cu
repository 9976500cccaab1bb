#include <algorithm>
#include <bit>

#include "kernels/coordinates/brick_table.cuh"
#include "kernels/coordinates/morton_key.h"
#include "kernels/coordinates/neighbour_search.h"
#include "kernels/core/device_code.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_tiles.cuh"
#include "kernels/core/visit_dimension.cuh"

// The search of one rulebook (neighbour_search.h) is cut into pieces of at most kCellsAPiece cells, or is one piece if
// its cells are a box within the same few bricks. A piece is cut into tiles of kSearchThreads output rows, one row per
// thread. The blocks of a launch share the tiles of all its pieces.

namespace voxserve::kernels::cuda {
namespace {

constexpr int kBoxRow = 5;  // the cells on the last axis of a box that is one piece, as in the 5^3 kernels of stems
// A launch takes longer if its parameters are large: 18 KB of them took 7 us on an H100. Up to 12 pieces and one list
// of cells fit into 4 KB.
constexpr int kMaxPiecesALaunch = 12;
constexpr int kSearchBlocksAnSm = 5;  // as many as an SM of an H100 holds: more would wait

enum class PieceKind : int32_t {
  kCube,       // all cells of a box with 3 cells per axis, within two bricks per axis
  kBox,        // all cells of a box within two bricks per axis: more than kCellsAPiece, kBoxRow on the last axis
  kNearCells,  // cells within two bricks per axis: these bricks are looked up, and the cells read from them
  kCells,      // cells farther apart, or fewer cells than two bricks per axis make: each cell looks up its brick
  kBlocks,     // an output's inputs are consecutive rows, which are known without a look-up
};

struct Piece {
  PieceKind kind;
  const uint64_t* out_keys;
  int64_t out_capacity;
  const int64_t* num_out;
  int32_t* neighbours;
  uint32_t* row_masks;  // may be null, as may row_inputs
  int32_t* row_inputs;
  int32_t num_offsets;  // K

  // kCube, kBox, kNearCells, kCells
  BrickTable table;
  bool is_strided;
  int32_t stride[kMaxDimension];
  int32_t first_cell;
  int32_t num_cells;
  uint64_t lowest;               // translation by the piece's smallest Delta on each axis
  int32_t reach[kMaxDimension];  // the largest Delta minus the smallest
  int32_t size[kMaxDimension];   // for kBox: the cells on each axis
  int32_t step[kMaxDimension];   // for kCube and kBox: the distance from one cell to the next on each axis

  // kBlocks
  const int32_t* first_in_rows;
  const uint64_t* in_keys;
  int64_t in_capacity;
  const int64_t* num_in;
  int32_t log2_stride;
  uint32_t* swapped_row_masks;  // may be null, with swapped_row_inputs
  int32_t* swapped_row_inputs;
};

// The cells of pieces of kind kNearCells and kCells: each cell's Delta minus the smallest, also as a translation.
struct CellList {
  uint64_t translation[kCellsAPiece];
  int16_t delta[kCellsAPiece][kMaxDimension];

  bool operator==(const CellList&) const = default;
};

struct PieceBatch {
  int32_t num_pieces;
  CellList cells;  // of every piece that has a list
  Piece pieces[kMaxPiecesALaunch];
};
static_assert(sizeof(PieceBatch) <= 4096);

// ---- Kernels -----------------------------------------------------------------------------------------------------

// Returns the key of stride * the output's coordinate, or kNoKey if a field of the key cannot hold that. Such an output
// has no neighbours: inputs are at least kCoordinateMargin from the ends of their fields, and no cell reaches farther.
// A cell that leaves a field from inside has no neighbour either: Translate wraps it to the margin on the other side,
// where no input is.
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

// Writes the input rows that a thread finds for an output row, in ascending order of the cells. kLists: as lists
// (row_inputs), otherwise as a table (neighbours).
template <int kDimension, bool kLists>
class RowWriter {
 public:
  __device__ RowWriter(const Piece& piece, int64_t row, NearBricks<kDimension>& near)
      : piece_(piece), row_(row), near_(near) {
    if constexpr (!kLists) to_ = piece.neighbours + piece.first_cell * piece.out_capacity + row;
  }

  // has: there is an input, and `found` is its row. Otherwise `found` is not used.
  __device__ void Add(int32_t cell, bool has, int32_t found) {
    if constexpr (kLists) {
      if (has) near_.inputs[num_inputs_][threadIdx.x] = found;
      num_inputs_ += has ? 1 : 0;
    } else {
      *to_ = has ? found : -1;
      to_ += piece_.out_capacity;
    }
    offsets_ |= static_cast<uint32_t>(has) << cell % kRowMaskBits;  // means nothing if K > kRowMaskBits
  }

  // Must be called after the last cell.
  __device__ void Finish() const {
    if (piece_.row_masks != nullptr) piece_.row_masks[row_] = offsets_;
    if constexpr (!kLists) return;
    // The last group of eight may contain old values of an earlier row after the row's inputs.
    auto* const inputs = reinterpret_cast<int4*>(piece_.row_inputs + row_ * RowInputsPitch(piece_.num_offsets));
    const auto four = [&](int32_t i) {
      return int4{near_.inputs[i][threadIdx.x], near_.inputs[i + 1][threadIdx.x], near_.inputs[i + 2][threadIdx.x],
                  near_.inputs[i + 3][threadIdx.x]};
    };
    for (int32_t i = 0; i < num_inputs_; i += 8) {
      inputs[i / 4] = four(i);
      inputs[i / 4 + 1] = four(i + 4);
    }
  }

 private:
  const Piece& piece_;
  const int64_t row_;
  NearBricks<kDimension>& near_;
  int32_t* to_ = nullptr;
  int32_t num_inputs_ = 0;
  uint32_t offsets_ = 0;
};

// Adds the input of the cell at a position among the near bricks in a slot.
template <int kDimension, bool kLists>
__device__ void AddNearCell(int32_t cell, uint32_t near_place, const NearBricks<kDimension>& near, int slot,
                            RowWriter<kDimension, kLists>& writer) {
  const uint32_t word = near.words[near_place / 32][slot], bit = near_place % 32;
  const int32_t first_row = near.first_rows[near_place / 32][slot];
  writer.Add(cell, (word >> bit & 1) != 0, first_row + __popc(word & ((1u << bit) - 1)));
}

// Adds the inputs of a box's cells: all combinations of the places on the axes from kAxis on. near_place: of the axes
// before kAxis; last: the places on the last axis; cell: the number of the next cell.
template <int kDimension, int kAxis = 0>
__device__ void AddBox(const Piece& piece, const int32_t (&place)[kDimension], uint32_t near_place,
                       const uint32_t (&last)[kBoxRow], int32_t& cell, const NearBricks<kDimension>& near, int slot,
                       RowWriter<kDimension, false>& writer) {
  if constexpr (kAxis == kDimension - 1) {
#pragma unroll
    for (const uint32_t on_axis : last) AddNearCell(cell++, near_place | on_axis, near, slot, writer);
  } else {
#pragma unroll 1
    for (int32_t i = 0; i < piece.size[kAxis]; ++i) {
      const uint32_t on_axis = NearPlace<kDimension>(place[kAxis] + i * piece.step[kAxis], kAxis);
      AddBox<kDimension, kAxis + 1>(piece, place, near_place | on_axis, last, cell, near, slot, writer);
    }
  }
}

// Finds the inputs of an output row for cells within the near bricks. place: that of the lowest cell in its brick.
template <int kDimension, bool kLists>
__device__ void ReadNearCells(const Piece& piece, const CellList& cells, const int32_t (&place)[kDimension],
                              const NearBricks<kDimension>& near, int slot, RowWriter<kDimension, kLists>& writer) {
  if (piece.kind == PieceKind::kCube) {
    // A box in up to three axes has 27 cells; in four axes it would have more cells than a piece.
    if constexpr (kDimension <= 3) {
      uint32_t on_axis[kDimension][3];
#pragma unroll
      for (int axis = 0; axis < kDimension; ++axis) {
#pragma unroll
        for (int i = 0; i < 3; ++i) {
          on_axis[axis][i] = NearPlace<kDimension>(place[axis] + i * piece.step[axis], axis);
        }
      }
      constexpr int kCells = kDimension == 1 ? 3 : kDimension == 2 ? 9 : 27;
#pragma unroll
      for (int cell = 0; cell < kCells; ++cell) {
        uint32_t at = 0;
        int rest = cell;
#pragma unroll
        for (int axis = kDimension - 1; axis >= 0; --axis, rest /= 3) at |= on_axis[axis][rest % 3];
        AddNearCell(cell, at, near, slot, writer);
      }
    }
    return;
  }
  if constexpr (!kLists) {  // a box has too many cells for lists
    if (piece.kind == PieceKind::kBox) {
      uint32_t last[kBoxRow];
#pragma unroll
      for (int i = 0; i < kBoxRow; ++i) {
        last[i] = NearPlace<kDimension>(place[kDimension - 1] + i * piece.step[kDimension - 1], kDimension - 1);
      }
      int32_t cell = 0;
      AddBox(piece, place, 0, last, cell, near, slot, writer);
      return;
    }
  }
#pragma unroll 3
  for (int32_t cell = 0; cell < piece.num_cells; ++cell) {
    uint32_t at = 0;
#pragma unroll
    for (int axis = 0; axis < kDimension; ++axis) {
      at |= NearPlace<kDimension>(place[axis] + cells.delta[cell][axis], axis);
    }
    AddNearCell(cell, at, near, slot, writer);
  }
}

// Finds the inputs of an output row for cells anywhere. Each cell looks up its brick, several cells at a time.
template <int kDimension, bool kLists>
__device__ void LookUpCells(const Piece& piece, const CellList& cells, uint64_t lowest,
                            RowWriter<kDimension, kLists>& writer) {
  using Key = MortonKey<kDimension>;
  using Places = BrickPlaces<kDimension>;
  constexpr int kCellsAtOnce = 8;
  const BrickSlots slots(piece.table);
  for (int32_t first = 0; first < piece.num_cells; first += kCellsAtOnce) {
    uint64_t keys[kCellsAtOnce];
    uint32_t places[kCellsAtOnce];
    Brick bricks[kCellsAtOnce];
    const int32_t count = min(kCellsAtOnce, piece.num_cells - first);
#pragma unroll
    for (int i = 0; i < kCellsAtOnce; ++i) {
      const uint64_t key = i < count ? Key::Translate(lowest, cells.translation[first + i]) : lowest;
      keys[i] = Places::BrickOf(key);
      places[i] = Places::PlaceOf(key);
    }
    slots.Find(keys, (1u << count) - 1, bricks);
#pragma unroll
    for (int i = 0; i < kCellsAtOnce; ++i) {
      if (i >= count) break;
      const int32_t found = RowInBrick(bricks[i].mask, bricks[i].first_row, places[i]);
      writer.Add(first + i, found >= 0, found);
    }
  }
}

// Finds the inputs of an output row for all cells of the piece. All lanes of a warp call it. is_row: there is a row.
template <int kDimension, bool kLists>
__device__ void LookUpRow(const Piece& piece, const CellList& cells, int64_t row, bool is_row,
                          NearBricks<kDimension>& near) {
  using Key = MortonKey<kDimension>;
  using Places = BrickPlaces<kDimension>;
  const uint64_t base = is_row ? ScaledKey<kDimension>(piece, piece.out_keys[row]) : kNoKey;
  const uint64_t lowest = Key::Translate(base, piece.lowest);
  int32_t place[kDimension];
#pragma unroll
  for (int axis = 0; axis < kDimension; ++axis) place[axis] = Places::Coordinate(Places::PlaceOf(lowest), axis);
  int slot = 0;
  if (piece.kind != PieceKind::kCells) {
    slot = FindNearBricks(piece.table, piece.reach, base != kNoKey, lowest, place, near);
  }
  if (!is_row) return;
  RowWriter<kDimension, kLists> writer(piece, row, near);
  if (base == kNoKey) {
    for (int32_t cell = 0; cell < piece.num_cells; ++cell) writer.Add(cell, false, -1);
  } else if (piece.kind != PieceKind::kCells) {
    ReadNearCells(piece, cells, place, near, slot, writer);
  } else {
    LookUpCells(piece, cells, lowest, writer);
  }
  writer.Finish();
}

// Returns the kernel cell at place `block_place` of its block, in Morton order.
template <int kDimension>
__device__ int32_t CellAt(int32_t block_place, int32_t log2_stride) {
  int32_t cell = 0;
  for (int bit = 0; bit < log2_stride; ++bit) {
#pragma unroll
    for (int place = 0; place < kDimension; ++place) {  // the axis, counted from the last
      cell |= (block_place >> (bit * kDimension + place) & 1) << (place * log2_stride + bit);
    }
  }
  return cell;
}

// Writes the swapped outputs of an input row, which the output row `row` reads through `cell`.
__device__ void WriteSwapped(const Piece& piece, int64_t row, int32_t in_row, int32_t cell) {
  if (piece.swapped_row_masks == nullptr) return;
  piece.swapped_row_masks[in_row] = 1u << cell;
  piece.swapped_row_inputs[in_row] = static_cast<int32_t>(row);
}

// Does the same as ReadBlock for blocks of two cells on each axis, whose cells are in Morton order. All keys are read
// at once.
template <int kDimension>
__device__ uint32_t ReadSmallBlock(const Piece& piece, int64_t row, int32_t in_row, int32_t end) {
  constexpr int kCells = 1 << kDimension;
  uint32_t there = 0;
#pragma unroll
  for (int i = 0; i < kCells; ++i) {
    if (in_row + i >= end) continue;
    const auto cell = static_cast<int32_t>(static_cast<uint32_t>(__ldg(piece.in_keys + in_row + i)) % kCells);
    there |= 1u << cell;
    WriteSwapped(piece, row, in_row + i, cell);
  }
  if (piece.neighbours == nullptr) return there;
#pragma unroll
  for (int cell = 0; cell < kCells; ++cell) {
    const bool has = (there >> cell & 1) != 0;
    piece.neighbours[cell * piece.out_capacity + row] = has ? in_row + __popc(there & ((1u << cell) - 1)) : -1;
  }
  return there;
}

// Finds the cells of an output row's inputs, which are the rows from in_row to end - 1 in Morton order. Returns the
// row's mask, which means nothing if K > kRowMaskBits.
template <int kDimension>
__device__ uint32_t ReadBlock(const Piece& piece, int64_t row, int32_t in_row, int32_t end) {
  if (piece.log2_stride == 1) return ReadSmallBlock<kDimension>(piece, row, in_row, end);
  const uint64_t in_block = (uint64_t{1} << (kDimension * piece.log2_stride)) - 1;
  constexpr int32_t kNone = -1;
  int32_t next = in_row < end ? static_cast<int32_t>(__ldg(piece.in_keys + in_row) & in_block) : kNone;
  uint32_t there = 0;
  for (int32_t place = 0; place < piece.num_offsets; ++place) {
    const int32_t cell = CellAt<kDimension>(place, piece.log2_stride);
    if (piece.neighbours != nullptr) {
      piece.neighbours[cell * piece.out_capacity + row] = place == next ? in_row : -1;
    }
    if (place != next) continue;
    there |= 1u << (cell % kRowMaskBits);
    WriteSwapped(piece, row, in_row, cell);
    ++in_row;
    next = in_row < end ? static_cast<int32_t>(__ldg(piece.in_keys + in_row) & in_block) : kNone;
  }
  return there;
}

// Finds the inputs of an output row whose cells are a block of sites: the rows from its first input to the next
// output's first input.
template <int kDimension>
__device__ void FindBlock(const Piece& piece, int64_t row, int64_t num_out) {
  const int32_t in_row = piece.first_in_rows[row];
  const int32_t end =
      row + 1 < num_out ? piece.first_in_rows[row + 1] : static_cast<int32_t>(NumRows(piece.in_capacity, piece.num_in));
  const uint32_t there = ReadBlock<kDimension>(piece, row, in_row, end);
  if (piece.row_masks != nullptr) piece.row_masks[row] = there;
}

template <int kDimension>
__global__ void __launch_bounds__(kSearchThreads) SearchNeighboursKernel(const __grid_constant__ PieceBatch batch) {
  WaitForEarlierKernels();
  __shared__ NearBricks<kDimension> near;
  const BatchTiles<kMaxPiecesALaunch> tiles(batch.num_pieces, [&](int i) {
    const Piece& piece = batch.pieces[i];
    return (NumRows(piece.out_capacity, piece.num_out) + kSearchThreads - 1) / kSearchThreads;
  });
  int entry = 0;
  for (int64_t tile = blockIdx.x; tile < tiles.size(); tile += gridDim.x) {
    entry = tiles.Entry(tile, entry);
    const Piece& piece = batch.pieces[entry];
    const int64_t row = tiles.Within(entry, tile) * kSearchThreads + threadIdx.x;
    const int64_t num_out = NumRows(piece.out_capacity, piece.num_out);
    if (piece.kind == PieceKind::kBlocks) {
      if (row < num_out) FindBlock<kDimension>(piece, row, num_out);
    } else if (piece.row_inputs != nullptr) {
      LookUpRow<kDimension, true>(piece, batch.cells, row, row < num_out, near);
    } else {
      LookUpRow<kDimension, false>(piece, batch.cells, row, row < num_out, near);
    }
  }
}

// ---- Launchers -----------------------------------------------------------------------------------------------------

bool IsOfDimension(const NeighbourSearchParams& params, int32_t dimension) {
  const bool reads_table = params.first_in_rows == nullptr;
  return params.dimension == dimension && params.geometry.dimension == dimension &&
         (!reads_table || params.table.dimension == dimension);
}

// Collects pieces, and launches the kernel whenever the next piece does not fit beside them.
template <int kDimension>
class PieceQueue {
 public:
  explicit PieceQueue(cudaStream_t stream) : stream_(stream) {}

  // Adds the piece of a search that begins with a cell.
  cudaError_t Add(const NeighbourSearchParams& params, int32_t first_cell) {
    const ConvGeometry& geometry = params.geometry;
    Piece piece{};
    piece.out_keys = params.out_keys;
    piece.out_capacity = params.out_capacity;
    piece.num_out = params.num_out;
    piece.neighbours = params.neighbours;
    piece.row_masks = params.row_masks;
    piece.row_inputs = params.row_inputs;
    piece.num_offsets = geometry.NumOffsets();
    if (params.first_in_rows != nullptr) {
      piece.kind = PieceKind::kBlocks;
      piece.first_in_rows = params.first_in_rows;
      piece.in_keys = params.in_keys;
      piece.in_capacity = params.in_capacity;
      piece.num_in = params.num_in;
      piece.log2_stride = std::countr_zero(static_cast<uint32_t>(geometry.stride[0]));
      piece.swapped_row_masks = params.swapped_row_masks;
      piece.swapped_row_inputs = params.swapped_row_inputs;
      return Add(piece, nullptr);
    }
    piece.table = params.table;
    for (int axis = 0; axis < kDimension; ++axis) {
      piece.stride[axis] = geometry.stride[axis];
      piece.is_strided |= geometry.stride[axis] != 1;
    }
    piece.first_cell = first_cell;
    piece.num_cells = NumCells(params, first_cell);
    CellList cells{};
    SetCells(geometry, piece, cells);
    return Add(piece, piece.kind == PieceKind::kCube || piece.kind == PieceKind::kBox ? nullptr : &cells);
  }

  // Returns the number of cells of the piece that begins with a cell; 0: there is none.
  static int32_t NumCells(const NeighbourSearchParams& params, int32_t first_cell) {
    const int32_t num_offsets = params.geometry.NumOffsets();
    if (params.first_in_rows != nullptr || IsLargeBox(params.geometry)) return first_cell == 0 ? num_offsets : 0;
    return std::clamp(num_offsets - first_cell, 0, kCellsAPiece);
  }

  cudaError_t Launch() {
    if (batch_.num_pieces == 0) return cudaSuccess;
    const auto blocks = static_cast<unsigned>(std::min(int64_t{kSearchBlocksAnSm} * NumSms(), max_tiles_));
    VOXSERVE_RETURN_IF_CUDA(
        LaunchEarly(SearchNeighboursKernel<kDimension>, blocks, kSearchThreads, 0, stream_, batch_));
    batch_.num_pieces = 0;
    has_cells_ = false;
    max_tiles_ = 0;
    return cudaSuccess;
  }

 private:
  // Returns true if the kernel is a whole box with 3 cells and the same dilation on every axis, and one piece holds all
  // its cells.
  static bool IsCube(const ConvGeometry& geometry) {
    if (geometry.num_listed_cells > 0 || geometry.NumOffsets() > kCellsAPiece) return false;
    for (int axis = 0; axis < kDimension; ++axis) {
      if (geometry.kernel_size[axis] != 3 || geometry.dilation[axis] != geometry.dilation[0]) return false;
    }
    return true;
  }

  // Returns true if the whole kernel can be one piece of kind kBox.
  static bool IsLargeBox(const ConvGeometry& geometry) {
    if (geometry.num_listed_cells > 0 || geometry.NumOffsets() <= kCellsAPiece) return false;
    if (geometry.kernel_size[kDimension - 1] != kBoxRow) return false;
    for (int axis = 0; axis < kDimension; ++axis) {
      const int64_t reach = int64_t{geometry.dilation[axis]} * (geometry.kernel_size[axis] - 1);
      if (reach > kNearReach) return false;
    }
    return true;
  }

  // The largest reach that stays within two bricks even from the last cell of a brick.
  static constexpr int32_t kNearReach = BrickPlaces<kDimension>::kSide;

  static void SetCells(const ConvGeometry& geometry, Piece& piece, CellList& cells) {
    Axes least = geometry.Delta(piece.first_cell), most = least;
    for (int32_t cell = 0; cell < piece.num_cells; ++cell) {
      const Axes delta = geometry.Delta(piece.first_cell + cell);
      for (int axis = 0; axis < kDimension; ++axis) {
        least[axis] = std::min(least[axis], delta[axis]);
        most[axis] = std::max(most[axis], delta[axis]);
      }
    }
    piece.kind = piece.num_cells < NearBricks<kDimension>::kCount ? PieceKind::kCells : PieceKind::kNearCells;
    for (int axis = 0; axis < kDimension; ++axis) {
      piece.reach[axis] = most[axis] - least[axis];
      if (piece.reach[axis] > kNearReach) piece.kind = PieceKind::kCells;
      piece.size[axis] = geometry.kernel_size[axis];
      piece.step[axis] = geometry.dilation[axis];
    }
    if (piece.kind == PieceKind::kNearCells && IsCube(geometry)) piece.kind = PieceKind::kCube;
    if (IsLargeBox(geometry)) piece.kind = PieceKind::kBox;
    piece.lowest = MortonKey<kDimension>::Translation(least);
    if (piece.kind == PieceKind::kCube || piece.kind == PieceKind::kBox) return;
    for (int32_t cell = 0; cell < piece.num_cells; ++cell) {
      Axes delta = geometry.Delta(piece.first_cell + cell);
      for (int axis = 0; axis < kDimension; ++axis) {
        delta[axis] -= least[axis];
        cells.delta[cell][axis] = static_cast<int16_t>(delta[axis]);
      }
      cells.translation[cell] = MortonKey<kDimension>::Translation(delta);
    }
  }

  // cells: the piece's list; null: it has none.
  cudaError_t Add(const Piece& piece, const CellList* cells) {
    const bool has_room = batch_.num_pieces < kMaxPiecesALaunch;
    if (!has_room || (cells != nullptr && has_cells_ && batch_.cells != *cells)) VOXSERVE_RETURN_IF_CUDA(Launch());
    if (cells != nullptr) {
      batch_.cells = *cells;
      has_cells_ = true;
    }
    batch_.pieces[batch_.num_pieces++] = piece;
    max_tiles_ += NumBlocks(piece.out_capacity, kSearchThreads);
    return cudaSuccess;
  }

  cudaStream_t stream_;
  PieceBatch batch_{};
  bool has_cells_ = false;
  int64_t max_tiles_ = 0;
};

}  // namespace

cudaError_t SearchNeighbours(std::span<const NeighbourSearchParams> params, cudaStream_t stream) {
  const NvtxRange range("SearchNeighbours");
  if (params.empty()) return cudaSuccess;
  for (const NeighbourSearchParams& search : params) {
    if (!IsOfDimension(search, params[0].dimension)) return cudaErrorInvalidValue;
    if (search.row_masks != nullptr && search.geometry.NumOffsets() > kRowMaskBits) return cudaErrorInvalidValue;
    const bool can_list = search.row_masks != nullptr && search.first_in_rows == nullptr;
    if (search.row_inputs != nullptr && search.out_capacity > 0 && !can_list) return cudaErrorInvalidValue;
    const bool has_swapped = search.swapped_row_masks != nullptr;
    const bool can_swap = search.first_in_rows != nullptr && search.geometry.NumOffsets() <= kRowMaskBits;
    if (has_swapped != (search.swapped_row_inputs != nullptr) || (has_swapped && !can_swap)) {
      return cudaErrorInvalidValue;
    }
  }
  return VisitDimension(params[0].dimension, [&](auto dimension) {
    PieceQueue<dimension()> pieces(stream);
    // Pieces of searches alike have the same cells and so follow each other, to share a launch.
    int32_t most_cells = 0;
    for (const NeighbourSearchParams& search : params) most_cells = std::max(most_cells, search.geometry.NumOffsets());
    for (int32_t first_cell = 0; first_cell < most_cells; first_cell += kCellsAPiece) {
      for (const NeighbourSearchParams& search : params) {
        if (search.out_capacity == 0 || pieces.NumCells(search, first_cell) == 0) continue;
        VOXSERVE_RETURN_IF_CUDA(pieces.Add(search, first_cell));
      }
    }
    return pieces.Launch();
  });
}

}  // namespace voxserve::kernels::cuda
