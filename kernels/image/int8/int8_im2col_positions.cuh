#pragma once

// Int8PositionRows is the role of a multiplying warp group in the kernel of conv2d_im2col_kernel.cuh, and in that of
// conv2d_boxes_kernel.cuh, for inputs in 8 bits. As in PositionRows (conv2d_im2col_positions.cuh), positions are the
// rows of the products and channels their columns. Only .cu files include this header.

#include <cstdint>

#include "kernels/conv/implicit_gemm/store_int8_sums.cuh"
#include "kernels/image/conv2d_boxes_kernel.cuh"
#include "kernels/image/conv2d_im2col_tile.cuh"

namespace voxserve::kernels::cuda {

// Int8SumsStore reads these arguments.
struct Int8Im2colOutputs {
  void* out;
  int64_t out_pitch;
  int32_t out_channels;
  DType out_dtype;
  bool has_out_vectors;
  TypedInt8Epilogue epilogue;
};
template <>
struct Im2colOutputs<uint8_t> : Int8Im2colOutputs {};
template <>
struct Im2colOutputs<int8_t> : Int8Im2colOutputs {};

template <typename T, typename Shape>
class Int8PositionRows;

// A block of two to four warp groups, each of which has 64 positions of a tile and all its channels. A chunk of kBytes
// has as many channels. kWideStages: the stages that a ring of 128 bytes a row would have.
template <int kWarpGroups, int kTileChannels, int kWideStages, int kBytes>
struct Int8PositionRowsShape : Im2colBlock<kWarpGroups, kWarpGroups * 64, kTileChannels, kWideStages*(128 / kBytes),
                                           kNumKeptInt8Arrays * kKeptChannels, kBytes> {
  template <typename T>
  using Copier = Im2colCopier<T, Int8PositionRowsShape>;
  template <typename T>
  using Products = Int8PositionRows<T, Int8PositionRowsShape>;
  template <typename T>
  using Tiles = Im2colTiles<T, Int8PositionRowsShape>;
  template <typename T>
  using Ring = StageRing<T, Int8PositionRowsShape>;
};

// A block of three or four warp groups whose tiles are boxes, each slot of inputs for three cells. kWideInputSlots,
// kWideWeightSlots: the slots that rings of 128 bytes a row would have.
template <int kWarpGroups, int kTileChannels, int kWideInputSlots, int kWideWeightSlots, int kBytes>
struct Int8BoxShape : BoxBlock<kWarpGroups, kWarpGroups * 64 / kImageBoxColumns, kTileChannels, /*kCellsOfSlot=*/3,
                               kWideInputSlots*(128 / kBytes), kWideWeightSlots*(128 / kBytes),
                               kNumKeptInt8Arrays * kKeptChannels, kBytes> {
  static constexpr bool kHasPositionRows = true;

  template <typename T>
  using Copier = BoxCopier<T, Int8BoxShape>;
  template <typename T>
  using Products = Int8PositionRows<T, Int8BoxShape>;
  template <typename T>
  using Tiles = BoxTiles<T, Int8BoxShape>;
  template <typename T>
  using Ring = BoxRing<T, Int8BoxShape>;
};

#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS

template <typename T, typename Shape>
class Int8PositionRows {
 public:
  // kept: the shared memory in which the epilogue's arrays are kept.
  __device__ Int8PositionRows(const Im2colArguments<T>& arguments, uint32_t stages, uint32_t full, uint32_t empty,
                              uint32_t kept)
      : arguments_(arguments), stages_(stages), full_(full), empty_(empty), kept_(kept) {}

  __device__ void Run() {
    const Int8Im2colOutputs& outputs = arguments_.outputs;
    const uint32_t kept = KeepArrays<StorePart, kNumKeptInt8Arrays, Shape::kCopyThread>(outputs, kept_);
    WaitForEarlierKernels();  // which write the residual, and may still read the memory of the output
    const int32_t group = __shfl_sync(~0u, static_cast<int32_t>(threadIdx.x) / 128, 0);
    const uint64_t inputs = SwizzledMatrix<Shape::kRowBytes>(stages_ + group * 64 * Shape::kRowBytes);
    const uint64_t weights = SwizzledMatrix<Shape::kRowBytes>(stages_ + Shape::kWeightsBegin);
    typename Shape::template Ring<T> ring(full_, empty_);
    Tiles tiles(arguments_);
    for (auto number = static_cast<int32_t>(blockIdx.x); number < tiles.end();
         number += static_cast<int32_t>(gridDim.x)) {
      const Tile tile = tiles.At(number);
      if (tile.IsEmpty()) continue;
      int32_t sums[Shape::kChannels / 2];
      ring.Multiply(sums, inputs, weights, tile.NumChunks(arguments_.conv));
      const WarpRows rows = RowsOf(tile);
      StorePart stores[Shape::kPartsAhead];  // the first residuals arrive while products run
#pragma unroll
      for (int part = 0; part < Shape::kPartsAhead; ++part) {
        stores[part].Load(outputs, rows, tile.first_channel + part * kPartColumns);
      }
      WaitForProducts<0>();
      HoldBackReads(sums);
      ring.Release();
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        StorePart& store = stores[part % Shape::kPartsAhead];
        store.Store(outputs, PartOf(sums, part), rows, tile.first_channel + part * kPartColumns, kept);
        if (part + Shape::kPartsAhead < kParts) {
          store.Load(outputs, rows, tile.first_channel + (part + Shape::kPartsAhead) * kPartColumns);
        }
      }
    }
  }

 private:
  using Tiles = typename Shape::template Tiles<T>;
  using Tile = typename Tiles::Tile;
  static_assert(!Tiles::kCopies);
  static constexpr int kPartColumns = 32;  // columns stored at a time
  static constexpr int kParts = Shape::kChannels / kPartColumns;
  using StorePart = Int8SumsStore<Int8Im2colOutputs, kPartColumns / 2, /*kReadsArrays=*/true>;

  __device__ static const int32_t (&PartOf(const int32_t (&sums)[Shape::kChannels / 2], int part))[kPartColumns / 2] {
    return *reinterpret_cast<const int32_t(*)[kPartColumns / 2]>(&sums[part * (kPartColumns / 2)]);
  }

  // Returns the rows of the output whose sums the thread holds.
  __device__ WarpRows RowsOf(const Tile& tile) const {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t position = tile.first_position + static_cast<int32_t>(threadIdx.x / 32) * 16 + lane / 4;
    return {{static_cast<int32_t>(tile.OutRow(arguments_.conv, position)),
             static_cast<int32_t>(tile.OutRow(arguments_.conv, position + 8))}};
  }

  const Im2colArguments<T>& arguments_;
  const uint32_t stages_, full_, empty_, kept_;
};

#endif

}  // namespace voxserve::kernels::cuda
