#pragma once

// Conv2dKernel is the main kernel of kernels/image/conv2d.h: an implicit GEMM. Only .cu files include this header.
//
// A block computes a tile of output positions (of one phase, across rows and images) and output channels (of one
// group). It sums over the (cell, channel) axis (conv2d_summed_axis.h), on which the channels of a cell are padded to
// whole vectors of 16 bytes. The axis is cut into chunks of kStageRowBytes. For each chunk, the threads gather the
// inputs and copy the weights to a stage, one of a ring of buffers in shared memory, before the chunk is multiplied.
//
// A thread copies the same 16-byte vector of the same few positions in every stage. So it computes only once where a
// position's first cell is and which of its cells are inside the image.

#include <cstdint>

#include "kernels/core/epilogue.cuh"
#include "kernels/core/tensor_cores.cuh"
#include "kernels/image/conv2d_arguments.cuh"
#include "kernels/image/conv2d_phase.h"
#include "kernels/image/conv2d_products.cuh"
#include "kernels/image/conv2d_summed_axis.h"

namespace voxserve::kernels::cuda {

inline constexpr int kMaxCells = kMaxConv2dKernelSize * kMaxConv2dKernelSize;
// The table has more entries than the kernel has cells, since the last chunk may have vectors after the last cell's.
inline constexpr int kCellTableSize = 64;
static_assert(kMaxCells + kVectorsARow <= kCellTableSize);

// Describes a position of the tile.
struct TilePosition {
  int64_t in;       // offset of the position's first cell from `in`, in values; the cell may be outside the image
  int64_t out;      // row of the output; -1: after the last position
  uint32_t inside;  // bit i: kernel row i is inside the image; bit kColumnBits + j: kernel column j is
};

// Describes a cell of the phase.
struct TileCell {
  int64_t in;       // offset from the first cell, in values
  uint32_t inside;  // the bits of the cell's row and column; a position's cell is in the image if the position has both
};
inline constexpr int kColumnBits = 16;
inline constexpr uint32_t kNoCell = uint32_t{1} << 31;
static_assert(kMaxConv2dKernelSize <= 15);

// The sizes of a block's shared memory. Product: one of the classes in conv2d_products.cuh.
template <typename Product, int kNumStages>
struct Conv2dBlock {
  static constexpr int kStages = kNumStages;
  static constexpr int kThreads = Product::kThreads;
  static constexpr int kBlocksAnSm = Product::kBlocksAnSm;
  static constexpr int kInputBytes = Product::kRows * kStageRowBytes;
  static constexpr int kStageBytes = kInputBytes + Product::kColumns * kStageRowBytes;
  static constexpr int kAlignment = 1024;
  static constexpr int kSumBytes = Product::kRows * kSumPitch<Product::kColumns> * int{sizeof(float)};
  static constexpr int kSharedBytes =
      (kSumBytes > kStages * kStageBytes ? kSumBytes : kStages * kStageBytes) + kAlignment;
  // The bytes of the static tables, which every block needs in addition to kSharedBytes.
  static constexpr int kTableBytes =
      Product::kRows * int{sizeof(TilePosition)} + kCellTableSize * int{sizeof(TileCell)};
};

// The work of one thread on its block's tile. T: the type of inputs and weights.
template <typename T, typename Product, int kNumStages>
class Conv2dTile {
 public:
  using Block = Conv2dBlock<Product, kNumStages>;

  __device__ Conv2dTile(const Conv2dArguments<T>& arguments, unsigned char* stages, TilePosition* positions,
                        TileCell* cells)
      : arguments_(arguments),
        stages_(stages),
        positions_(positions),
        cells_(cells),
        first_position_(int64_t{blockIdx.x / static_cast<unsigned>(arguments.num_column_tiles)} * Product::kRows),
        first_column_(static_cast<int32_t>(blockIdx.x % static_cast<unsigned>(arguments.num_column_tiles)) *
                      Product::kColumns),
        group_(static_cast<int32_t>(blockIdx.y)) {
    const auto phase = static_cast<int32_t>(blockIdx.z);
    const int32_t column_phases = NumPhases(arguments.geometry, 1);
    rows_ = PhaseOf(arguments.geometry, 0, arguments.in_rows, phase / column_phases);
    columns_ = PhaseOf(arguments.geometry, 1, arguments.in_columns, phase % column_phases);
  }

  __device__ void Run() {
    if (first_position_ >= arguments_.num_images * rows_.num_outputs * columns_.num_outputs) return;
    FindPositions();
    __syncthreads();
    TakePositions();
    Product product;
    Multiply(product);
    WaitForVectors<0>();
    __syncthreads();
    auto* const sums = reinterpret_cast<float*>(stages_);
    product.Spill(sums);
    __syncthreads();
    if (arguments_.is_out_float) {
      Store(sums, static_cast<float*>(arguments_.out));
    } else {
      Store(sums, static_cast<T*>(arguments_.out));
    }
  }

 private:
  static constexpr int kThreads = Block::kThreads;
  static constexpr int kRowsAtOnce = kThreads / kVectorsARow;
  static constexpr int kCopies = Product::kRows / kRowsAtOnce;  // inputs that a thread copies per stage
  static constexpr int kWeightCopies = (Product::kColumns + kRowsAtOnce - 1) / kRowsAtOnce;
  static_assert(kRowsAtOnce % 8 == 0, "all rows of a thread have the same swizzle");

  __device__ int32_t NumCells() const { return rows_.num_cells * columns_.num_cells; }
  __device__ bool IsByChannels() const {
    return Conv2dSummedAxis{.cell_channels = arguments_.padded_in_channels, .chunk_channels = kChunkValues<T>}
        .IsByChannels();
  }

  __device__ void FindPositions() const {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    for (int32_t cell = thread; cell < kCellTableSize; cell += kThreads) {
      if (cell >= NumCells()) {
        cells_[cell] = {.in = 0, .inside = kNoCell};
        continue;
      }
      const int32_t row = IsByChannels() ? cell % rows_.num_cells : cell / columns_.num_cells;
      const int32_t column = IsByChannels() ? cell / rows_.num_cells : cell % columns_.num_cells;
      const int64_t in_row = int64_t{row} * rows_.cell_reach;
      const int64_t in_column = int64_t{column} * columns_.cell_reach;
      cells_[cell] = {.in = (in_row * arguments_.in_columns + in_column) * arguments_.in_pitch,
                      .inside = uint32_t{1} << row | uint32_t{1} << (kColumnBits + column)};
    }
    const int64_t of_image = int64_t{rows_.num_outputs} * columns_.num_outputs;
    for (int32_t i = thread; i < Product::kRows; i += kThreads) {
      const int64_t position = first_position_ + i;
      const int64_t image = position / of_image;
      if (image >= arguments_.num_images) {
        positions_[i] = {.in = 0, .out = -1, .inside = 0};
        continue;
      }
      const int64_t in_image = position - image * of_image;
      const auto row = static_cast<int32_t>(in_image / columns_.num_outputs);
      const auto column = static_cast<int32_t>(in_image - int64_t{row} * columns_.num_outputs);
      const int64_t in_row = rows_.in_begin + int64_t{row} * rows_.in_step;
      const int64_t in_column = columns_.in_begin + int64_t{column} * columns_.in_step;
      uint32_t inside = 0;
      for (int32_t cell = 0; cell < rows_.num_cells; ++cell) {
        const int64_t at = in_row + int64_t{cell} * rows_.cell_reach;
        if (at >= 0 && at < arguments_.in_rows) inside |= uint32_t{1} << cell;
      }
      for (int32_t cell = 0; cell < columns_.num_cells; ++cell) {
        const int64_t at = in_column + int64_t{cell} * columns_.cell_reach;
        if (at >= 0 && at < arguments_.in_columns) inside |= uint32_t{1} << (kColumnBits + cell);
      }
      const int64_t out_row = rows_.out_begin + int64_t{row} * rows_.out_step;
      const int64_t out_column = columns_.out_begin + int64_t{column} * columns_.out_step;
      positions_[i] = {
          .in = ((image * arguments_.in_rows + in_row) * arguments_.in_columns + in_column) * arguments_.in_pitch,
          .out = (image * arguments_.out_rows + out_row) * arguments_.out_columns + out_column,
          .inside = inside};
    }
  }

  // Reads the positions whose inputs this thread copies.
  __device__ void TakePositions() {
    const auto thread = static_cast<int32_t>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const TilePosition& position = positions_[thread / kVectorsARow + i * kRowsAtOnce];
      in_begins_[i] = position.in;
      inside_[i] = position.inside;
    }
    // The thread's vector in the first chunk.
    channel_ = thread % kVectorsARow * kVectorValues<T>;
    cell_ = channel_ / arguments_.padded_in_channels;
    channel_ -= cell_ * arguments_.padded_in_channels;

    const int64_t slot = int64_t{blockIdx.z} * arguments_.geometry.groups + group_;
    const int64_t chunk_bytes = int64_t{arguments_.padded_out_channels} * kStageRowBytes;
    weights_ = arguments_.weights + slot * arguments_.num_chunks * chunk_bytes +
               int64_t{first_column_} * kStageRowBytes + thread * 16;
  }

  // Loads and multiplies all chunks. A stage may be overwritten when the multiplication of its chunk is done. Up to
  // kPending asynchronous multiplications may still run when the next round begins.
  __device__ void Multiply(Product& product) {
    const int32_t num_chunks = (NumCells() * arguments_.padded_in_channels + kChunkValues<T> - 1) / kChunkValues<T>;
    constexpr int kAhead = Block::kStages - 1 - Product::kPending;
    static_assert(kAhead > 0);
#pragma unroll
    for (int32_t chunk = 0; chunk < kAhead; ++chunk) LoadAhead(chunk, num_chunks, chunk);
    int32_t stage = 0, stage_ahead = kAhead;
    for (int32_t chunk = 0; chunk < num_chunks; ++chunk) {
      WaitForStage<kAhead - 1>();
      __syncthreads();  // the stage has arrived, and the stage that is loaded next is no longer read
      const unsigned char* const inputs = stages_ + stage * Block::kStageBytes;
      if constexpr (Product::kIsAsynchronous) {
        product.Multiply(inputs, inputs + Block::kInputBytes);
        LoadAhead(chunk + kAhead, num_chunks, stage_ahead);
        product.template Wait<Product::kPending>();
      } else {
        LoadAhead(chunk + kAhead, num_chunks, stage_ahead);
        product.Multiply(inputs, inputs + Block::kInputBytes);
      }
      if (++stage == Block::kStages) stage = 0;
      if (++stage_ahead == Block::kStages) stage_ahead = 0;
    }
    if constexpr (Product::kIsAsynchronous) product.template Wait<0>();
  }

  template <int kPendingCopies>
  __device__ static void WaitForStage() {
    WaitForVectors<kPendingCopies>();
#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS
    if constexpr (Product::kIsAsynchronous) PublishToProducts();
#endif
  }

  // Begins to load a chunk. Every call makes one group of copies, since WaitForStage counts groups. Behind the last
  // chunk, the group is empty.
  __device__ void LoadAhead(int32_t chunk, int32_t num_chunks, int32_t stage) {
    if (chunk < num_chunks) {
      unsigned char* const inputs = stages_ + stage * Block::kStageBytes;
      LoadInputs(inputs);
      LoadWeights(inputs + Block::kInputBytes);
    }
    CommitVectors();
  }

  __device__ void LoadInputs(unsigned char* inputs) {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    unsigned char* const to = inputs + SwizzledBytes(thread / kVectorsARow, thread % kVectorsARow);
    const TileCell cell = cells_[cell_];
    const int32_t count = min(kVectorValues<T>, arguments_.group_in_channels - channel_);
    const T* const in = arguments_.in + group_ * arguments_.group_in_channels + channel_ + cell.in;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const bool is_inside = (inside_[i] & cell.inside) == cell.inside;
      unsigned char* const vector = to + i * kRowsAtOnce * kStageRowBytes;
      CopyInputs(vector, in + in_begins_[i], is_inside ? count : 0, arguments_);
    }
    if (IsByChannels()) {
      if (++cell_ < NumCells()) return;
      cell_ = 0;
      channel_ += kChunkValues<T>;
      return;
    }
    channel_ += kChunkValues<T>;
    while (channel_ >= arguments_.padded_in_channels) {
      channel_ -= arguments_.padded_in_channels;
      ++cell_;
    }
    cell_ = min(cell_, kCellTableSize - 1);  // after all cells
  }

  // Copies a chunk's weights, which are packed in the layout of a stage. Rows after the last output channel are
  // multiplied too, but their sums are never read.
  __device__ void LoadWeights(unsigned char* weights) {
    const auto thread = static_cast<int32_t>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < kWeightCopies; ++i) {
      const int32_t row = thread / kVectorsARow + i * kRowsAtOnce;
      if (Product::kColumns % kRowsAtOnce != 0 && row >= Product::kColumns) break;
      const bool is_there = first_column_ + row < arguments_.padded_out_channels;
      CopyVector16(weights + (thread + i * kThreads) * 16, is_there ? weights_ + i * kThreads * 16 : arguments_.weights,
                   is_there ? 16 : 0);
    }
    weights_ += int64_t{arguments_.padded_out_channels} * kStageRowBytes;
  }

  template <typename Out>
  __device__ void Store(const float* sums, Out* out) const {
    if (arguments_.out_vectors) {
      StoreVectors<kVectorValues<T>>(sums, out);
    } else {
      StoreVectors<1>(sums, out);
    }
  }

  template <int kCount, typename Out>
  __device__ void StoreVectors(const float* sums, Out* out) const {
    const int32_t num_columns = min(Product::kColumns, arguments_.group_out_channels - first_column_);
    const int32_t first_channel = group_ * arguments_.group_out_channels + first_column_;
    constexpr int32_t kVectors = Product::kColumns / kCount;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < Product::kRows * kVectors; i += kThreads) {
      const int32_t row = i / kVectors;
      const int32_t column = i % kVectors * kCount;
      const int64_t out_row = positions_[row].out;
      if (out_row < 0 || column >= num_columns) continue;
      Pack<float, kCount> values = LoadPack<kCount>(sums + row * kSumPitch<Product::kColumns> + column);
      const int32_t channel = first_channel + column;
      arguments_.epilogue.Store(values.values, out_row, channel, out + out_row * arguments_.out_pitch + channel);
    }
  }

  const Conv2dArguments<T>& arguments_;
  unsigned char* const stages_;
  TilePosition* const positions_;  // [Product::kRows]
  TileCell* const
      cells_;  // [kCellTableSize] in the order of the axis; after the phase's cells: cells that are never inside
  const int64_t first_position_;
  const int32_t first_column_;
  const int32_t group_;
  Conv2dPhase rows_;
  Conv2dPhase columns_;

  // The thread's vector of the next chunk to load.
  int32_t cell_;
  int32_t channel_;
  const unsigned char* weights_;
  int64_t in_begins_[kCopies];
  uint32_t inside_[kCopies];
};

// The grid: x counts tiles of positions and, fastest, tiles of channels; y counts groups; z counts phases.
template <typename T, typename Product, int kNumStages>
__global__ void __launch_bounds__(Product::kThreads, BlocksAnSm(Product::kBlocksAnSm))
    Conv2dKernel([[maybe_unused]] const __grid_constant__ Conv2dArguments<T> arguments) {
  using Block = Conv2dBlock<Product, kNumStages>;
  if constexpr (Product::RunsHere()) {
    extern __shared__ unsigned char shared[];
    __shared__ TilePosition positions[Product::kRows];
    __shared__ TileCell cells[kCellTableSize];
    unsigned char* const stages = shared + (0u - SharedAddress(shared)) % Block::kAlignment;
    Conv2dTile<T, Product, kNumStages>(arguments, stages, positions, cells).Run();
  }
}

}  // namespace voxserve::kernels::cuda
