// The 2D convolution for groups with few output channels (conv2d_few_outputs.cuh). A block owns a square of input
// positions of one image, with the margin that its outputs' cells reach. So the block reads each input once instead of
// once per cell. It multiplies all these inputs by the weights of all cells of a few output channels, [positions,
// channels] by [channels, (cell, output)]. Then it adds up each output's products, taking each cell's product from the
// input position under that cell.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/image/conv2d_few_outputs.cuh"

namespace voxserve::kernels::cuda {
namespace {

constexpr int32_t kSquareSide = 16;
constexpr int32_t kSquareRows = kSquareSide * kSquareSide;
constexpr int32_t kCellOutputs = 32;  // columns of products: (cell, output)
constexpr int32_t kThreads = 256;
constexpr int32_t kMaxGroupOutputs = 16;

template <typename T>
using SquareProducts = WarpProducts<T, kCellOutputs, kThreads, kSquareRows>;

constexpr int32_t kInputBytes = kSquareRows * kStageRowBytes;
constexpr int32_t kStageBytes = kInputBytes + kCellOutputs * kStageRowBytes;
constexpr int32_t kSumPitch = kTransposedSumPitch<kSquareRows>;
constexpr int32_t kSumBytes = kCellOutputs * kSumPitch * int32_t{sizeof(float)};  // sums overwrite stages at the end
constexpr int32_t kMaxStages = 2;
static_assert(kSumBytes <= kStageBytes);

struct FewOutputsTiling {
  bool is_possible = false;
  int32_t rows = 0;  // output rows of a square
  int32_t columns = 0;
  int32_t row_tiles = 0;  // per image
  int32_t column_tiles = 0;
  int32_t outputs = 0;  // outputs of a slice of a group
  int32_t slices = 0;   // per group
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
  tiling.rows = outputs_of(0);
  tiling.columns = outputs_of(1);
  tiling.outputs = std::min(arguments.group_out_channels, kCellOutputs / cells);
  tiling.slices = (arguments.group_out_channels - 1) / tiling.outputs + 1;
  tiling.is_possible = int64_t{kSquareRows} * tiling.slices < int64_t{cells} * tiling.rows * tiling.columns;
  if (!tiling.is_possible) return tiling;
  tiling.row_tiles = (arguments.out_rows - 1) / tiling.rows + 1;
  tiling.column_tiles = (arguments.out_columns - 1) / tiling.columns + 1;
  tiling.num_chunks = (arguments.padded_in_channels - 1) / kChunkValues<T> + 1;
  return tiling;
}

template <typename T>
class SquareTile {
 public:
  __device__ SquareTile(const Conv2dArguments<T>& arguments, const FewOutputsTiling& tiling, unsigned char* shared)
      : arguments_(arguments), tiling_(tiling), shared_(shared) {
    // In the block's index, slices and groups vary fastest, since they read neighbouring channels.
    const Conv2dGeometry& geometry = arguments.geometry;
    const unsigned slices = geometry.groups * tiling.slices;
    const unsigned slice = blockIdx.x % slices;
    group_ = static_cast<int32_t>(slice) / tiling.slices;
    first_output_ = static_cast<int32_t>(slice) % tiling.slices * tiling.outputs;
    const auto tile = static_cast<int32_t>(blockIdx.x / slices);
    image_ = tile / (tiling.row_tiles * tiling.column_tiles);
    first_row_ = tile / tiling.column_tiles % tiling.row_tiles * tiling.rows;
    first_column_ = tile % tiling.column_tiles * tiling.columns;
    in_row_ = int64_t{first_row_} * geometry.stride[0] - geometry.padding[0];
    in_column_ = int64_t{first_column_} * geometry.stride[1] - geometry.padding[1];
  }

  __device__ void Run() {
    SquareProducts<T> products;
    Load(0);
    for (int32_t chunk = 0; chunk < tiling_.num_chunks; ++chunk) {
      Load(chunk + 1);
      WaitForVectors<1>();
      __syncthreads();
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
  static constexpr int32_t kRowsAtOnce = kThreads / kVectorsARow;
  static_assert(kRowsAtOnce % kSquareSide == 0 && kRowsAtOnce == kCellOutputs);

  __device__ unsigned char* Stage(int32_t chunk) const { return shared_ + chunk % kMaxStages * kStageBytes; }

  // Starts one group of asynchronous copies. Behind the last chunk the group is empty.
  __device__ void Load(int32_t chunk) const {
    if (chunk < tiling_.num_chunks) {
      LoadInputs(chunk, Stage(chunk));
      LoadWeights(chunk, Stage(chunk) + kInputBytes);
    }
    CommitVectors();
  }

  __device__ void LoadInputs(int32_t chunk, unsigned char* to) const {
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
    to += SwizzledBytes(position, vector);
#pragma unroll
    for (int i = 0; i < kSquareRows / kRowsAtOnce; ++i) {
      const bool is_row = row >= 0 && row < arguments_.in_rows;
      CopyInputs(to + i * kRowsAtOnce * kStageRowBytes, from, is_row ? max(0, count) : 0, arguments_);
      row += kSquareRowsAtOnce;
      from += step;
    }
  }

  // The weights are packed for the kernel of conv2d.cuh, which has the cells along its summed axis.
  __device__ void LoadWeights(int32_t chunk, unsigned char* to) const {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const int32_t column = thread / kVectorsARow;
    const int32_t vector = thread % kVectorsARow;
    const int32_t cell = column / tiling_.outputs;
    const int32_t output = first_output_ + column % tiling_.outputs;
    const int32_t num_vectors = arguments_.padded_in_channels / kVectorValues<T>;  // per cell
    const int32_t of_cell = chunk * kVectorsARow + vector;
    const bool is_there = cell < arguments_.geometry.kernel_size[0] * arguments_.geometry.kernel_size[1] &&
                          output < arguments_.group_out_channels && of_cell < num_vectors;
    const int32_t packed = cell * num_vectors + of_cell;
    const int64_t row =
        (int64_t{group_} * arguments_.num_chunks + packed / kVectorsARow) * arguments_.padded_out_channels + output;
    const unsigned char* const from =
        arguments_.weights + row * kStageRowBytes + ((packed % kVectorsARow) ^ (output % 8)) * 16;
    CopyVector16(to + SwizzledBytes(column, vector), is_there ? from : arguments_.weights, is_there ? 16 : 0);
  }

  template <typename Out>
  __device__ void Store(Out* out) const {
    const Conv2dGeometry& geometry = arguments_.geometry;
    const auto* const products = reinterpret_cast<const float*>(shared_);
    for (auto i = static_cast<int32_t>(threadIdx.x); i < tiling_.rows * tiling_.columns; i += kThreads) {
      const int32_t row = i / tiling_.columns;
      const int32_t column = i - row * tiling_.columns;
      if (first_row_ + row >= arguments_.out_rows || first_column_ + column >= arguments_.out_columns) continue;
      const int64_t position =
          (int64_t{image_} * arguments_.out_rows + first_row_ + row) * arguments_.out_columns + first_column_ + column;
      const float* const first = products + row * geometry.stride[0] * kSquareSide + column * geometry.stride[1];
      const int32_t num_outputs = min(tiling_.outputs, arguments_.group_out_channels - first_output_);
      for (int32_t output = 0; output < num_outputs; ++output) {
        const float* of_cell = first + output * kSumPitch;
        float sum[1] = {0};
        for (int32_t cell_row = 0; cell_row < geometry.kernel_size[0]; ++cell_row) {
          const int32_t row_begin = cell_row * geometry.dilation[0] * kSquareSide;
          for (int32_t cell_column = 0; cell_column < geometry.kernel_size[1]; ++cell_column) {
            sum[0] += of_cell[row_begin + cell_column * geometry.dilation[1]];
            of_cell += tiling_.outputs * kSumPitch;
          }
        }
        const int32_t channel = group_ * arguments_.group_out_channels + first_output_ + output;
        arguments_.epilogue.Store(sum, position, channel, out + position * arguments_.out_pitch + channel);
      }
    }
  }

  const Conv2dArguments<T>& arguments_;
  const FewOutputsTiling& tiling_;
  unsigned char* const shared_;
  int32_t group_;
  int32_t first_output_;  // within the group
  int32_t image_;
  int32_t first_row_;  // first output row
  int32_t first_column_;
  int64_t in_row_;  // the square's first input row; may be outside the image
  int64_t in_column_;
};

// The grid has one block per square of an image and slice of a group; groups and slices vary fastest.
template <typename T>
__global__ void __launch_bounds__(kThreads, 3)
    FewOutputsKernel([[maybe_unused]] const __grid_constant__ Conv2dArguments<T> arguments,
                     [[maybe_unused]] const __grid_constant__ FewOutputsTiling tiling) {
  if constexpr (SquareProducts<T>::RunsHere()) {
    extern __shared__ __align__(128) unsigned char square[];
    SquareTile<T>(arguments, tiling, square).Run();
  }
}

}  // namespace

template <typename T>
bool IsForFewOutputs(const Conv2dArguments<T>& arguments) {
  return TilingOf(arguments).is_possible;
}

template <typename T>
cudaError_t LaunchFewOutputs(const Conv2dArguments<T>& arguments, const DeviceTraits& traits, cudaStream_t stream) {
  static std::atomic<uint64_t> allowed = 0;
  VOXSERVE_RETURN_IF_CUDA(AllowSharedMemory(FewOutputsKernel<T>, kMaxStages * kStageBytes, traits.device, allowed));
  const FewOutputsTiling tiling = TilingOf(arguments);
  const int64_t image_tiles = int64_t{tiling.row_tiles} * tiling.column_tiles;
  const int64_t slices = int64_t{arguments.geometry.groups} * tiling.slices;
  if (arguments.num_images > std::numeric_limits<int32_t>::max() / slices / image_tiles) return cudaErrorInvalidValue;
  const int32_t bytes = std::min(kMaxStages, tiling.num_chunks) * kStageBytes;
  FewOutputsKernel<T><<<static_cast<unsigned>(arguments.num_images * image_tiles * slices), kThreads, bytes, stream>>>(
      arguments, tiling);
  return LaunchStatus(stream);
}

template bool IsForFewOutputs(const Conv2dArguments<float>&);
template bool IsForFewOutputs(const Conv2dArguments<__half>&);
template bool IsForFewOutputs(const Conv2dArguments<__nv_bfloat16>&);
template cudaError_t LaunchFewOutputs(const Conv2dArguments<float>&, const DeviceTraits&, cudaStream_t);
template cudaError_t LaunchFewOutputs(const Conv2dArguments<__half>&, const DeviceTraits&, cudaStream_t);
template cudaError_t LaunchFewOutputs(const Conv2dArguments<__nv_bfloat16>&, const DeviceTraits&, cudaStream_t);

}  // namespace voxserve::kernels::cuda
