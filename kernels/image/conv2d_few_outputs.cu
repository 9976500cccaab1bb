// The 2D convolution for groups with few output channels (conv2d_few_outputs.cuh). A block owns a square of input
// positions of one image, with the margin that its outputs' cells reach. So the block reads each input once instead of
// once per cell. It multiplies all these inputs by the weights of all cells of a few output channels, [positions,
// channels] by [channels, (cell, output)]. Then it adds up each output's products, taking each cell's product from the
// input position under that cell.
//
// On Hopper one thread of a block starts a tensor copy of the square, which writes zeros for positions outside the
// image. Then the block has half as many threads, each with twice the sums, so that fewer loads of weights compete with
// the copies for the shared memory. Every sum has the same terms in the same order either way.

#include <cudaTypedefs.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/core/barriers.cuh"
#include "kernels/core/tensor_map.cuh"
#include "kernels/core/warp_group_products.cuh"
#include "kernels/image/conv2d_few_outputs.cuh"
#include "kernels/image/conv2d_summed_axis.h"

namespace voxserve::kernels::cuda {
namespace {

constexpr int32_t kSquareSide = 16;
constexpr int32_t kSquareRows = kSquareSide * kSquareSide;
constexpr int32_t kCellOutputs = 32;  // columns of products: (cell, output)
constexpr int32_t kMaxGroupOutputs = 16;

constexpr int32_t kInputBytes = kSquareRows * kStageRowBytes;
constexpr int32_t kStageBytes = kInputBytes + kCellOutputs * kStageRowBytes;
constexpr int32_t kSumPitch = kTransposedSumPitch<kSquareRows>;
constexpr int32_t kSumBytes = kCellOutputs * kSumPitch * int32_t{sizeof(float)};  // sums overwrite stages at the end
constexpr int32_t kMaxStages = 2;
static_assert(kSumBytes <= kStageBytes);

// The sizes of a block.
template <bool kCopiesSquares>
struct SquareBlock {
  static constexpr int32_t kThreads = kCopiesSquares ? 128 : 256;
  static constexpr int32_t kBlocksAnSm = kCopiesSquares ? 5 : 3;
  static constexpr int32_t kAlignment = kCopiesSquares ? 1024 : 16;
  static constexpr int32_t SharedBytes(int32_t num_stages) { return num_stages * kStageBytes + kAlignment; }
};

// The numbers of a convolution that depend neither on its input channels nor on the images' size.
struct SquareShape {
  int32_t kernel_size[2];
  int32_t stride[2];
  int32_t dilation[2];
  int32_t rows;  // output rows of a square
  int32_t columns;
  int32_t outputs;  // outputs of a slice of a group
  int32_t slices;   // per group

  bool operator==(const SquareShape&) const = default;
};

// The last layers of most detection heads. A kernel for these alone knows the place of every product.
constexpr SquareShape kUsualShape = {.kernel_size = {3, 3},
                                     .stride = {1, 1},
                                     .dilation = {1, 1},
                                     .rows = kSquareSide - 2,
                                     .columns = kSquareSide - 2,
                                     .outputs = 3,
                                     .slices = 1};

struct FewOutputsTiling {
  bool is_possible = false;
  SquareShape shape = {};
  int32_t row_tiles = 0;  // per image
  int32_t column_tiles = 0;
  int32_t num_chunks = 0;
};

template <typename T>
FewOutputsTiling TilingOf(const Conv2dArguments<T>& arguments) {
  const Conv2dGeometry& geometry = arguments.geometry;
  FewOutputsTiling tiling;
  const int32_t cells = geometry.kernel_size[0] * geometry.kernel_size[1];
  if (geometry.is_transposed || arguments.group_out_channels > kMaxGroupOutputs || cells > kCellOutputs) return tiling;
  const auto outputs_of = [&](size_t axis) {  // returns 0 if the cells of one output do not fit the square
    const int64_t reach = int64_t{geometry.dilation[axis]} * (geometry.kernel_size[axis] - 1) + 1;
    return reach > kSquareSide ? 0 : static_cast<int32_t>((kSquareSide - reach) / geometry.stride[axis]) + 1;
  };
  const int32_t outputs = std::min(arguments.group_out_channels, kCellOutputs / cells);
  tiling.shape = {.kernel_size = {geometry.kernel_size[0], geometry.kernel_size[1]},
                  .stride = {geometry.stride[0], geometry.stride[1]},
                  .dilation = {geometry.dilation[0], geometry.dilation[1]},
                  .rows = outputs_of(0),
                  .columns = outputs_of(1),
                  .outputs = outputs,
                  .slices = (arguments.group_out_channels - 1) / outputs + 1};
  const SquareShape& shape = tiling.shape;
  tiling.is_possible = int64_t{kSquareRows} * shape.slices < int64_t{cells} * shape.rows * shape.columns;
  if (!tiling.is_possible) return tiling;
  tiling.row_tiles = (arguments.out_rows - 1) / shape.rows + 1;
  tiling.column_tiles = (arguments.out_columns - 1) / shape.columns + 1;
  tiling.num_chunks = (arguments.padded_in_channels - 1) / kChunkValues<T> + 1;
  return tiling;
}

// Returns threadIdx.x. The compiler keeps nothing that follows from it for later calls, since the sums need the
// registers.
[[maybe_unused]] __device__ inline int32_t ThreadAnew() {
  int32_t thread;
  asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(thread));
  return thread;
}

// kCopiesSquares: inputs arrive by tensor copies. kIsUsual: the shape is kUsualShape.
template <typename T, bool kCopiesSquares, bool kIsUsual>
class SquareTile {
 public:
  // map: of the inputs, for tensor copies. full: the address of a barrier for each stage, also for these alone.
  __device__ SquareTile(const Conv2dArguments<T>& arguments, const FewOutputsTiling& tiling, const CUtensorMap& map,
                        unsigned char* shared, uint32_t full)
      : arguments_(arguments),
        shape_(kIsUsual ? kUsualShape : tiling.shape),
        num_chunks_(tiling.num_chunks),
        map_(map),
        shared_(shared),
        full_(full) {
    // In the block's index, slices and groups vary fastest, since they read neighbouring channels.
    const Conv2dGeometry& geometry = arguments.geometry;
    const auto slices = static_cast<unsigned>(geometry.groups * shape_.slices);
    const auto row_tiles = static_cast<unsigned>(tiling.row_tiles);
    const auto column_tiles = static_cast<unsigned>(tiling.column_tiles);
    const unsigned tile = blockIdx.x / slices;
    const auto slice = static_cast<int32_t>(blockIdx.x - tile * slices);
    group_ = slice / shape_.slices;
    first_output_ = slice % shape_.slices * shape_.outputs;
    const unsigned tile_row = tile / column_tiles;  // of all images
    const unsigned image = tile_row / row_tiles;
    image_ = static_cast<int32_t>(image);
    first_row_ = static_cast<int32_t>(tile_row - image * row_tiles) * shape_.rows;
    first_column_ = static_cast<int32_t>(tile - tile_row * column_tiles) * shape_.columns;
    in_row_ = int64_t{first_row_} * shape_.stride[0] - geometry.padding[0];
    in_column_ = int64_t{first_column_} * shape_.stride[1] - geometry.padding[1];
  }

  __device__ void Run() {
    WarpProducts<T, kCellOutputs, kThreads, kSquareRows> products;
    InitBarriers();
    WaitForEarlierKernels();  // which write the inputs and the residual, and may still read the memory of the output
    Load(0);
    for (int32_t chunk = 0; chunk < num_chunks_; ++chunk) {
      Load(chunk + 1);
      WaitForVectors<1>();
      __syncthreads();  // the weights of all threads have arrived
      WaitForSquare(chunk);
      const unsigned char* const stage = Stage(chunk);
      products.Multiply(stage, stage + kInputBytes);
      __syncthreads();  // no thread reads the stage any more
    }
    WaitForVectors<0>();
    products.SpillTransposed(reinterpret_cast<float*>(shared_));
    __syncthreads();
    if (arguments_.is_out_float) {
      Store(static_cast<float*>(arguments_.out));
    } else {
      Store(static_cast<T*>(arguments_.out));
    }
  }

 private:
  static constexpr int32_t kThreads = SquareBlock<kCopiesSquares>::kThreads;
  static constexpr int32_t kRowsAtOnce = kThreads / kVectorsARow;
  static_assert(kRowsAtOnce % kSquareSide == 0 && kCellOutputs % kRowsAtOnce == 0);

  __device__ unsigned char* Stage(int32_t chunk) const { return shared_ + chunk % kMaxStages * kStageBytes; }
  __device__ uint32_t Full(int32_t chunk) const { return full_ + chunk % kMaxStages * 8; }

  // Makes the barriers of tensor copies. The thread that starts these may go on; the others meet it before they wait.
  __device__ void InitBarriers() const {
#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS
    if constexpr (kCopiesSquares) {
      if (threadIdx.x != 0) return;
      for (int32_t stage = 0; stage < kMaxStages; ++stage) InitBarrier(Full(stage), 1);
      PublishBarriers();
    }
#endif
  }

  // Starts one group of asynchronous copies. Behind the last chunk the group is empty.
  __device__ void Load(int32_t chunk) const {
    if (chunk < num_chunks_) {
      LoadInputs(chunk);
      LoadWeights(chunk);
    }
    CommitVectors();
  }

  // Waits for the tensor copy of a chunk's inputs.
  __device__ void WaitForSquare([[maybe_unused]] int32_t chunk) const {
#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS
    if constexpr (kCopiesSquares) WaitForBarrier(Full(chunk), chunk / kMaxStages % 2);
#endif
  }

  // Starts to copy a chunk of the square's inputs to its stage.
  __device__ void LoadInputs(int32_t chunk) const {
    if constexpr (!kCopiesSquares) {
      LoadInputVectors(chunk);
    } else {
#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS
      if (threadIdx.x != 0) return;
      ArriveExpecting(Full(chunk), kInputBytes);
      CopyImageBox(SharedAddress(Stage(chunk)), map_, group_ * arguments_.group_in_channels + chunk * kChunkValues<T>,
                   static_cast<int32_t>(in_column_), static_cast<int32_t>(in_row_), image_, Full(chunk));
#endif
    }
  }

  // Does the same by the copies of all threads.
  __device__ void LoadInputVectors(int32_t chunk) const {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const int32_t vector = thread % kVectorsARow;
    const int32_t position = thread / kVectorsARow;  // the first position
    const int32_t channel = chunk * kChunkValues<T> + vector * kVectorValues<T>;
    const int64_t column = in_column_ + position % kSquareSide;
    const bool is_column = column >= 0 && column < arguments_.in_columns;
    const int32_t count = is_column ? min(kVectorValues<T>, arguments_.group_in_channels - channel) : 0;
    int64_t row = in_row_ + position / kSquareSide;
    const T* from =
        arguments_.in + group_ * arguments_.group_in_channels + channel +
        ((int64_t{image_} * arguments_.in_rows + row) * arguments_.in_columns + column) * arguments_.in_pitch;
    constexpr int32_t kSquareRowsAtOnce = kRowsAtOnce / kSquareSide;
    const int64_t step = kSquareRowsAtOnce * int64_t{arguments_.in_columns} * arguments_.in_pitch;
    unsigned char* const to = Stage(chunk) + SwizzledBytes(position, vector);
#pragma unroll
    for (int i = 0; i < kSquareRows / kRowsAtOnce; ++i) {
      const bool is_row = row >= 0 && row < arguments_.in_rows;
      CopyInputs(to + i * kRowsAtOnce * kStageRowBytes, from, is_row ? max(0, count) : 0, arguments_);
      row += kSquareRowsAtOnce;
      from += step;
    }
  }

  // Starts to copy a chunk's weights to its stage. They are packed for the kernel of conv2d.cuh, which has the cells
  // along its summed axis (conv2d_summed_axis.h).
  __device__ void LoadWeights(int32_t chunk) const {
    const int32_t thread = ThreadAnew();
    const int32_t vector = thread % kVectorsARow;
    const int32_t num_vectors = arguments_.padded_in_channels / kVectorValues<T>;  // per cell
    const Conv2dSummedAxis axis = {.num_cell_rows = shape_.kernel_size[0],
                                   .num_cell_columns = shape_.kernel_size[1],
                                   .cell_channels = num_vectors,
                                   .chunk_channels = kVectorsARow};
    const int32_t of_cell = chunk * kVectorsARow + vector;
#pragma unroll
    for (int32_t i = 0; i < kCellOutputs / kRowsAtOnce; ++i) {
      const int32_t column = thread / kVectorsARow + i * kRowsAtOnce;
      const int32_t cell = column / shape_.outputs;
      const int32_t output = first_output_ + column % shape_.outputs;
      const bool is_there = cell < shape_.kernel_size[0] * shape_.kernel_size[1] &&
                            output < arguments_.group_out_channels && of_cell < num_vectors;
      const int32_t packed = axis.PlaceOf(cell / shape_.kernel_size[1], cell % shape_.kernel_size[1], of_cell);
      const int64_t row =
          (int64_t{group_} * arguments_.num_chunks + packed / kVectorsARow) * arguments_.padded_out_channels + output;
      const unsigned char* const from =
          arguments_.weights + row * kStageRowBytes + ((packed % kVectorsARow) ^ (output % 8)) * 16;
      CopyVector16(Stage(chunk) + kInputBytes + SwizzledBytes(column, vector), is_there ? from : arguments_.weights,
                   is_there ? 16 : 0);
    }
  }

  // Neighbouring threads have the outputs of one position, which are stored side by side. If the threads have several
  // rows at once, each stays with its column and output, and goes on by this number of rows.
  template <typename Out>
  __device__ void Store(Out* out) const {
    const int32_t row_items = shape_.columns * shape_.outputs;
    const int32_t rows_at_once = max(1, kThreads / row_items);
    for (int32_t item = ThreadAnew(); item < rows_at_once * row_items; item += kThreads) {
      const int32_t row = item / row_items;
      const int32_t in_row = item - row * row_items;
      const int32_t column = in_row / shape_.outputs;
      StoreColumn(row, rows_at_once, column, in_row - column * shape_.outputs, out);
    }
  }

  // Stores one output of the positions in a column of the square, in every rows_at_once-th row.
  template <typename Out>
  __device__ void StoreColumn(int32_t first_row, int32_t rows_at_once, int32_t column, int32_t output, Out* out) const {
    const int32_t channel = group_ * arguments_.group_out_channels + first_output_ + output;
    if (first_output_ + output >= arguments_.group_out_channels || first_column_ + column >= arguments_.out_columns) {
      return;
    }
    Pack<float, 1> bias;
    if (arguments_.epilogue.bias != nullptr) bias = arguments_.epilogue.template LoadBias<1>(channel);
    const float* of_row = reinterpret_cast<const float*>(shared_) + output * kSumPitch +
                          first_row * shape_.stride[0] * kSquareSide + column * shape_.stride[1];
    int64_t position = (int64_t{image_} * arguments_.out_rows + first_row_ + first_row) * arguments_.out_columns +
                       first_column_ + column;
    Out* to = out + position * arguments_.out_pitch + channel;
    const int64_t step = int64_t{rows_at_once} * arguments_.out_columns;
    const int32_t num_rows = min(shape_.rows, arguments_.out_rows - first_row_);
    const int32_t num_steps = (shape_.rows - 1) / rows_at_once + 1;
    constexpr int kStepsTogether = kIsUsual ? 5 : 1;
#pragma unroll kStepsTogether
    for (int32_t i = 0; i < num_steps; ++i) {
      if (first_row + i * rows_at_once >= num_rows) return;
      float sum[1] = {0};
      for (int32_t cell_row = 0; cell_row < shape_.kernel_size[0]; ++cell_row) {
        for (int32_t cell_column = 0; cell_column < shape_.kernel_size[1]; ++cell_column) {
          const int32_t cell = cell_row * shape_.kernel_size[1] + cell_column;
          sum[0] += of_row[cell * shape_.outputs * kSumPitch + cell_row * shape_.dilation[0] * kSquareSide +
                           cell_column * shape_.dilation[1]];
        }
      }
      Pack<T, 1> residual;
      if (arguments_.epilogue.residual != nullptr) {
        residual = arguments_.epilogue.template LoadResidual<1>(position, channel);
      }
      arguments_.epilogue.Finish(sum, bias, residual, to);
      of_row += rows_at_once * shape_.stride[0] * kSquareSide;
      position += step;
      to += step * arguments_.out_pitch;
    }
  }

  const Conv2dArguments<T>& arguments_;
  const SquareShape shape_;
  const int32_t num_chunks_;
  const CUtensorMap& map_;
  unsigned char* const shared_;
  const uint32_t full_;
  int32_t group_;
  int32_t first_output_;  // within the group
  int32_t image_;
  int32_t first_row_;  // first output row
  int32_t first_column_;
  int64_t in_row_;  // the square's first input row; may be outside the image
  int64_t in_column_;
};

// The grid has one block per square of an image and slice of a group; groups and slices vary fastest.
template <typename T, bool kCopiesSquares, bool kIsUsual>
__global__ void __launch_bounds__(SquareBlock<kCopiesSquares>::kThreads, SquareBlock<kCopiesSquares>::kBlocksAnSm)
    FewOutputsKernel([[maybe_unused]] const __grid_constant__ Conv2dArguments<T> arguments,
                     [[maybe_unused]] const __grid_constant__ FewOutputsTiling tiling,
                     [[maybe_unused]] const __grid_constant__ CUtensorMap map) {
  if constexpr (WarpProducts<T, kCellOutputs>::RunsHere() && (!kCopiesSquares || VOXSERVE_HAS_WARP_GROUP_PRODUCTS)) {
    extern __shared__ __align__(128) unsigned char square[];
    __shared__ uint64_t full[kMaxStages];
    unsigned char* const stages = square + (0u - SharedAddress(square)) % SquareBlock<kCopiesSquares>::kAlignment;
    SquareTile<T, kCopiesSquares, kIsUsual>(arguments, tiling, map, stages, SharedAddress(full)).Run();
  }
}

// Describes the inputs to tensor copies of squares. Returns false if these do not support the convolution.
template <typename T>
bool FillSquareMap(const Conv2dArguments<T>& arguments, const DeviceTraits& traits, CUtensorMap& map) {
  if constexpr (sizeof(T) != 2) return false;
  if (traits.code_version != kWarpGroupCode || !arguments.in_vectors ||
      arguments.group_in_channels % kChunkValues<T> != 0) {
    return false;
  }
  const Conv2dGeometry& geometry = arguments.geometry;
  constexpr int64_t kMaxCoordinate = std::numeric_limits<int32_t>::max();
  if (int64_t{arguments.in_rows} + geometry.padding[0] > kMaxCoordinate ||
      int64_t{arguments.in_columns} + geometry.padding[1] > kMaxCoordinate) {
    return false;
  }
  static const auto encode = FindMapFunction<PFN_cuTensorMapEncodeTiled_v12000>("cuTensorMapEncodeTiled");
  if (encode == nullptr) return false;
  // Sizes go from the innermost axis outwards: channels, columns, rows, images.
  const cuuint64_t row_bytes = static_cast<cuuint64_t>(arguments.in_pitch) * sizeof(T);
  const auto width = static_cast<cuuint64_t>(arguments.in_columns), height = static_cast<cuuint64_t>(arguments.in_rows);
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(arguments.group_in_channels) * geometry.groups, width, height,
                              static_cast<cuuint64_t>(arguments.num_images)};
  const cuuint64_t strides[] = {row_bytes, row_bytes * width, row_bytes * width * height};
  const cuuint32_t box[] = {kChunkValues<T>, kSquareSide, kSquareSide, 1};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  return encode(&map, kTensorMapType<T>, 4, const_cast<T*>(arguments.in), sizes, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <bool kCopiesSquares, bool kIsUsual, typename T>
cudaError_t LaunchSquares(const Conv2dArguments<T>& arguments, const FewOutputsTiling& tiling, const CUtensorMap& map,
                          const DeviceTraits& traits, cudaStream_t stream) {
  using Block = SquareBlock<kCopiesSquares>;
  static std::atomic<uint64_t> allowed = 0;
  const auto kernel = FewOutputsKernel<T, kCopiesSquares, kIsUsual>;
  VOXSERVE_RETURN_IF_CUDA(AllowSharedMemory(kernel, Block::SharedBytes(kMaxStages), traits.device, allowed));
  const int64_t image_tiles = int64_t{tiling.row_tiles} * tiling.column_tiles;
  const int64_t slices = int64_t{arguments.geometry.groups} * tiling.shape.slices;
  if (arguments.num_images > std::numeric_limits<int32_t>::max() / slices / image_tiles) return cudaErrorInvalidValue;
  const auto num_blocks = static_cast<unsigned>(arguments.num_images * image_tiles * slices);
  const int32_t bytes = Block::SharedBytes(std::min(kMaxStages, tiling.num_chunks));
  return LaunchEarly(kernel, dim3(num_blocks), Block::kThreads, static_cast<size_t>(bytes), stream, arguments, tiling,
                     map);
}

}  // namespace

template <typename T>
bool IsForFewOutputs(const Conv2dArguments<T>& arguments) {
  return TilingOf(arguments).is_possible;
}

template <typename T>
cudaError_t LaunchFewOutputs(const Conv2dArguments<T>& arguments, const DeviceTraits& traits, cudaStream_t stream) {
  const FewOutputsTiling tiling = TilingOf(arguments);
  CUtensorMap map{};  // stays empty without tensor copies
  const bool copies_squares = FillSquareMap(arguments, traits, map);
  const bool is_usual = tiling.shape == kUsualShape;
  if constexpr (sizeof(T) == 2) {
    if (copies_squares) {
      return is_usual ? LaunchSquares<true, true>(arguments, tiling, map, traits, stream)
                      : LaunchSquares<true, false>(arguments, tiling, map, traits, stream);
    }
  }
  return is_usual ? LaunchSquares<false, true>(arguments, tiling, map, traits, stream)
                  : LaunchSquares<false, false>(arguments, tiling, map, traits, stream);
}

template bool IsForFewOutputs(const Conv2dArguments<float>&);
template bool IsForFewOutputs(const Conv2dArguments<__half>&);
template bool IsForFewOutputs(const Conv2dArguments<__nv_bfloat16>&);
template cudaError_t LaunchFewOutputs(const Conv2dArguments<float>&, const DeviceTraits&, cudaStream_t);
template cudaError_t LaunchFewOutputs(const Conv2dArguments<__half>&, const DeviceTraits&, cudaStream_t);
template cudaError_t LaunchFewOutputs(const Conv2dArguments<__nv_bfloat16>&, const DeviceTraits&, cudaStream_t);

}  // namespace voxserve::kernels::cuda
