#pragma once

// This header has the kernel of linear_rows.h. Only .cu files include it.
//
// A block computes kColumns columns of the output, whose weights it copies to shared memory once. Blocks with the same
// columns share the tiles of 64 rows among their multiplying warp groups: each group takes every n-th tile, computes
// all of the block's columns and stores its sums from registers. While one group stores, the others multiply. The warps
// of a block have roles:
// - Copiers, one thread in each of four warps: together they start the bulk copies of the weights. Then one for each
//   multiplying group starts tensor copies of the group's tiles, 128 bytes of each row at a time, into the group's own
//   ring of stages.
// - Products, kGroups warp groups.
//
// Two barriers guard a stage: `full` ends a phase when the stage's bytes have landed, `empty` when the group's four
// warps have multiplied it. The copies and the products are both of the asynchronous proxy, so the barriers alone order
// them. A copy writes zeros for channels after the last one and rows after the capacity. The rows between the number of
// rows and the capacity are multiplied and not stored.
//
// The products of a sum are added in the order of warp_groups.cuh, so the results are the same bytes.
//
// The kernel starts before its predecessor on the stream has ended. It reads the number of rows, the weights and the
// bias at once, so the predecessor must not write them (implicit_gemm.h).

#include <cuda.h>

#include <cstdint>

#include "kernels/conv/implicit_gemm/arguments.cuh"
#include "kernels/conv/implicit_gemm/store_sums.cuh"
#include "kernels/core/barriers.cuh"
#include "kernels/core/warp_group_products.cuh"

namespace voxserve::kernels::cuda {

// The sizes of a block. kMayRotate: the launch asks for a rotation (PairRotation).
template <int kTileColumns, int kWarpGroups, bool kMayRotateSums>
struct LinearRowsShape {
  static constexpr int kColumns = kTileColumns;
  static constexpr int kGroups = kWarpGroups;
  static constexpr bool kMayRotate = kMayRotateSums;
  static constexpr int kRows = 64;  // of a tile
  static constexpr int kThreads = (kGroups + 1) * 128;
  static constexpr int kStageRowBytes = 128;
  static constexpr int kStageBytes = kRows * kStageRowBytes;
  static constexpr int kMaxStages = 8;   // of a group
  static constexpr int kMaxChunks = 16;  // a chunk is the channels of a stage
  static constexpr int kBarriers = 2 * kGroups * kMaxStages + kMaxChunks;
  static constexpr int kAlignment = 1024;
  static constexpr int kStaticBytes = 2048;  // barriers and bias, at most
  static constexpr int kSharedBytes = 227 * 1024 - kStaticBytes;
  // kRegisters is a thread's share of an SM's registers at launch. The copiers lower their number to kCopyRegisters,
  // and the multiplying threads raise theirs to kProductRegisters.
  static constexpr int kRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kCopyRegisters = 32;
  static constexpr int kLeftRegisters = (kRegisters * kThreads - kCopyRegisters * 128) / (kGroups * 128) / 8 * 8;
  static constexpr int kProductRegisters = kLeftRegisters > 240 ? 240 : kLeftRegisters;
  static_assert(24 + kColumns / 2 <= kRegisters, "an instruction's sums begin at register 24");
  static_assert(kBarriers <= kThreads && kGroups <= 4);

  // Returns the bytes of a block's weights.
  static constexpr int64_t WeightBytes(int64_t num_slices) { return num_slices * kColumns * kSliceBytes; }
  // Returns how many stages fit each group's ring; below 2 the shape does not serve the layer.
  static constexpr int64_t NumStages(int64_t num_slices) {
    const int64_t left = kSharedBytes - kAlignment - WeightBytes(num_slices);
    const int64_t stages = left < 0 ? 0 : left / (kGroups * kStageBytes);
    return stages < kMaxStages ? stages : kMaxStages;
  }
};

template <typename T>
struct LinearRowsArguments {
  CUtensorMap in;  // boxes of 64 rows and 128 bytes
  ImplicitGemmArguments<T> gemm;
  int32_t num_stages;  // of a group's ring
  int32_t num_column_tiles;
};

#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS

// Starts to read a description that tensor copies are about to use.
__device__ inline void PrefetchMap(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(&map) : "memory");
}

// Starts the tensor copy of a box that begins at a channel of a row.
__device__ inline void CopyBox(uint32_t to, const CUtensorMap& map, int32_t channel, int32_t row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
      "[%4];\n" ::"r"(to),
      "l"(&map), "r"(channel), "r"(row), "r"(barrier)
      : "memory");
}

// A place in a group's ring.
struct LinearRowsPlace {
  int32_t slot = 0;
  uint32_t parity = 0;

  __device__ void Advance(int32_t num_stages) {
    if (++slot == num_stages) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// The tiles of a multiplying group, and the addresses of what it uses in shared memory.
template <typename T, typename Shape>
struct LinearRowsWork {
  int32_t column;      // the first column
  int32_t first_tile;  // of 64 rows; the group's next tiles are `step` tiles apart
  int32_t step;
  int32_t num_tiles;  // of all groups
  bool has_tiles;     // the block's first group has a tile
  int32_t num_rows;
  uint32_t stages, full, empty;     // of the group
  uint32_t weights, weights_there;  // of the block; there is a barrier for each chunk of weights

  // shared: the block's dynamic memory. barriers: Shape::kBarriers.
  __device__ LinearRowsWork(const LinearRowsArguments<T>& arguments, uint32_t shared, uint32_t barriers,
                            int32_t group) {
    const TilesView& tiles = arguments.gemm.tiles;
    const auto block = static_cast<int32_t>(blockIdx.x);
    const int32_t blocks_a_column = static_cast<int32_t>(gridDim.x) / arguments.num_column_tiles;
    const int32_t in_column = block / arguments.num_column_tiles;
    column = (block - in_column * arguments.num_column_tiles) * Shape::kColumns;
    num_rows = static_cast<int32_t>(NumRows(tiles.out_capacity, tiles.num_out));
    num_tiles = in_column < blocks_a_column ? (num_rows + Shape::kRows - 1) / Shape::kRows : 0;
    has_tiles = in_column < num_tiles;
    first_tile = in_column + group * blocks_a_column;
    step = blocks_a_column * Shape::kGroups;
    const uint32_t first_stage = (shared + Shape::kAlignment - 1) / Shape::kAlignment * Shape::kAlignment;
    stages = first_stage + group * arguments.num_stages * Shape::kStageBytes;
    weights = first_stage + Shape::kGroups * arguments.num_stages * Shape::kStageBytes;
    full = barriers + group * Shape::kMaxStages * 8;
    empty = full + Shape::kGroups * Shape::kMaxStages * 8;
    weights_there = barriers + 2 * Shape::kGroups * Shape::kMaxStages * 8;
  }
};

// Starts the bulk copies of every fourth chunk of the block's weights. The block's first group waits for all of them,
// so that none is under way when the block ends.
template <typename T, typename Shape>
__device__ void CopyLinearWeights(const LinearRowsArguments<T>& arguments, const LinearRowsWork<T, Shape>& work,
                                  int32_t first_chunk) {
  const ImplicitGemmArguments<T>& gemm = arguments.gemm;
  const uint32_t bytes = min(Shape::kColumns, gemm.padded_out_channels - work.column) * kSliceBytes;
#pragma unroll 1
  for (int32_t chunk = first_chunk; chunk * kSlicesAStage < gemm.axis.num_slices; chunk += 4) {
    const uint32_t barrier = work.weights_there + chunk * 8;
    const int32_t first = chunk * kSlicesAStage, end = min(first + kSlicesAStage, gemm.axis.num_slices);
    ArriveExpecting(barrier, (end - first) * bytes);
#pragma unroll 1
    for (int32_t slice = first; slice < end; ++slice) {
      const int64_t row = int64_t{slice} * gemm.padded_out_channels + work.column;
      CopyBulk(work.weights + slice * Shape::kColumns * kSliceBytes, gemm.weights + row * kSliceBytes, bytes, barrier);
    }
  }
}

// Copies the tiles of a group to its ring. One thread calls it.
template <typename T, typename Shape>
__device__ void CopyLinearTiles(const LinearRowsArguments<T>& arguments, const LinearRowsWork<T, Shape>& work) {
  constexpr auto kChunkValues = static_cast<int32_t>(Shape::kStageRowBytes / sizeof(T));
  LinearRowsPlace place;
  for (int32_t tile = work.first_tile; tile < work.num_tiles; tile += work.step) {
    for (int32_t channel = 0; channel < arguments.gemm.in_channels; channel += kChunkValues) {
      const uint32_t full = work.full + place.slot * 8;
      WaitForBarrier(work.empty + place.slot * 8, place.parity ^ 1);
      ArriveExpecting(full, Shape::kStageBytes);
      CopyBox(work.stages + place.slot * Shape::kStageBytes, arguments.in, channel, tile * Shape::kRows, full);
      place.Advance(arguments.num_stages);
    }
  }
}

// Stores the sums of a warp where WarpSumsStore would store value by value, and load before each: at the end of rows
// whose last vector is not whole, and in float32. Load must be called before Store.
template <typename T, int kSums>
class RowEndStore {
 public:
  // Returns true if these columns are to be stored so. All threads of a block get the same answer.
  __device__ static bool Serves(const ImplicitGemmArguments<T>& arguments, int32_t first_column) {
    const bool has_end = first_column + 2 * kSums > arguments.out_channels;
    return (has_end || arguments.is_out_float) && arguments.has_out_vectors &&
           first_column >= arguments.rotated_columns;
  }

  __device__ void Load(const ImplicitGemmArguments<T>& arguments, const WarpRows& rows, int32_t first_column) {
    const TypedEpilogueOf<T>& epilogue = arguments.epilogue;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int32_t column = ColumnOf(first_column, j);
      const int32_t count = arguments.out_channels - column;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        residuals_[j][half] = {};
        if (epilogue.residual == nullptr || rows.rows[half] < 0 || count <= 0) continue;
        if (count >= kCount) {
          residuals_[j][half] = WordsOf(epilogue.template LoadResidual<kCount>(rows.rows[half], column));
        } else {
          const T* const from = epilogue.residual + rows.rows[half] * epilogue.residual_pitch + column;
          Pack<T, kCount> values = {};
#pragma unroll
          for (int i = 0; i < kCount - 1; ++i) {
            if (i < count) values.values[i] = from[i];
          }
          residuals_[j][half] = WordsOf(values);
        }
      }
    }
  }

  // kept_bias: as for WarpSumsStore::Store.
  __device__ void Store(const ImplicitGemmArguments<T>& arguments, const float (&sums)[kSums], const WarpRows& rows,
                        int32_t first_column, uint32_t kept_bias) const {
    if (arguments.is_out_float) {
      StoreAs<float>(arguments, sums, rows, first_column, kept_bias);
    } else {
      StoreAs<T>(arguments, sums, rows, first_column, kept_bias);
    }
  }

 private:
  static constexpr int kCount = 8;
  static constexpr int kVectors = kSums / 16;
  using Words = Pack<uint32_t, kCount / 2>;  // two values of T each

  template <typename Out>
  __device__ void StoreAs(const ImplicitGemmArguments<T>& arguments, const float (&sums)[kSums], const WarpRows& rows,
                          int32_t first_column, uint32_t kept_bias) const {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int32_t column = ColumnOf(first_column, j);
      const int32_t count = arguments.out_channels - column;
      if (count <= 0) continue;
      Pack<float, kCount> bias;
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        const float4 four = LoadSharedFloats(kept_bias + (column + i) * static_cast<uint32_t>(sizeof(float)));
        bias.values[i] = four.x, bias.values[i + 1] = four.y, bias.values[i + 2] = four.z, bias.values[i + 3] = four.w;
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (rows.rows[half] < 0) continue;
        float values[kCount];
#pragma unroll
        for (int i = 0; i < kCount; ++i) values[i] = sums[(j * 4 + i / 2) * 4 + half * 2 + i % 2];
        Pack<Out, kCount> result;
        arguments.epilogue.Finish(values, bias, reinterpret_cast<const Pack<T, kCount>&>(residuals_[j][half]),
                                  result.values);
        Out* const to = static_cast<Out*>(arguments.out) + rows.rows[half] * arguments.out_pitch + column;
        if (count >= kCount) {
          *reinterpret_cast<Pack<Out, kCount>*>(to) = result;
        } else {
#pragma unroll
          for (int i = 0; i < kCount - 1; ++i) {
            if (i < count) to[i] = result.values[i];
          }
        }
      }
    }
  }

  __device__ static int32_t ColumnOf(int32_t first_column, int vector) {
    return first_column + vector * 32 + static_cast<int32_t>(threadIdx.x) % 4 * kCount;
  }
  __device__ static Words WordsOf(const Pack<T, kCount>& values) { return reinterpret_cast<const Words&>(values); }

  Words residuals_[kVectors][2];
};

// A warp group that multiplies its tiles and stores their sums.
template <typename T, typename Shape>
class LinearRowsProducts {
 public:
  __device__ LinearRowsProducts(const LinearRowsArguments<T>& arguments, const LinearRowsWork<T, Shape>& work,
                                uint32_t kept_bias)
      : arguments_(arguments),
        work_(work),
        inputs_(SwizzledMatrix<Shape::kStageRowBytes>(work.stages)),
        weights_(SwizzledMatrix<kSliceBytes>(work.weights)),
        kept_bias_(kept_bias) {}

  __device__ void Run() {
    KeepBias();
    WaitForEarlierKernels();  // which write the inputs and the residual, and may still read the memory of the output
    if (EndStore::Serves(arguments_.gemm, work_.column)) {
      RunTiles<EndStore>();
    } else {
      RunTiles<Store>();
    }
  }

 private:
  static constexpr int kAddressUnit = 16;      // bytes of one step of the address in a matrix descriptor
  static constexpr int kProductRowBytes = 32;  // bytes of a row that one product takes
  using Store = WarpSumsStore<T, Shape::kColumns / 2, false, Shape::kMayRotate>;
  using EndStore = RowEndStore<T, Shape::kColumns / 2>;

  template <typename StoreOfSums>
  __device__ void RunTiles() {
    const uint32_t bias = kept_bias_ - work_.column * static_cast<uint32_t>(sizeof(float));  // of column 0
    const int32_t num_slices = arguments_.gemm.axis.num_slices, num_chunks = num_slices / kSlicesAStage;
    const bool has_half_chunk = num_slices % kSlicesAStage != 0;
    float sums[Shape::kColumns / 2] = {};
    for (int32_t tile = work_.first_tile; tile < work_.num_tiles; tile += work_.step) {
      StoreOfSums store;
      store.Load(arguments_.gemm, RowsOf(tile), Anew(work_.column));
      const bool is_first = tile == work_.first_tile;
      uint32_t held = 0;  // the barrier of the slot that products may still read
#pragma unroll 1
      for (int32_t chunk = 0; chunk < num_chunks; ++chunk) {
        WaitForChunk(chunk, is_first);
        BeginProducts();
        MultiplySlice(chunk, 0, chunk > 0 ? 1 : 0, sums);
        MultiplySlice(chunk, 1, 1, sums);
        CommitProducts();
        WaitForProducts<1>();
        held = Release(held);
      }
      if (has_half_chunk) {
        WaitForChunk(num_chunks, is_first);
        BeginProducts();
        MultiplySlice(num_chunks, 0, num_chunks > 0 ? 1 : 0, sums);
        CommitProducts();
        WaitForProducts<1>();
        held = Release(held);
      }
      WaitForProducts<0>();
      HoldBackReads(sums);
      if (held != 0 && threadIdx.x % 32 == 0) ArriveAtBarrier(held);
      store.Store(arguments_.gemm, sums, RowsOf(Anew(tile)), Anew(work_.column), bias);
    }
  }

  // Returns the value. The compiler keeps nothing that follows from it for the next tile or for the time after the
  // products, since the sums need the registers.
  __device__ static int32_t Anew(int32_t value) {
    asm volatile("" : "+r"(value));
    return value;
  }

  // Keeps the bias of the block's columns in shared memory.
  __device__ void KeepBias() const {
    for (auto i = static_cast<int32_t>(threadIdx.x); i < Shape::kColumns; i += Shape::kGroups * 128) {
      StoreSharedFloat(kept_bias_ + i * static_cast<uint32_t>(sizeof(float)),
                       Store::ValueToKeep(arguments_.gemm, 0, work_.column + i));
    }
    SyncFirstThreads<Shape::kGroups * 128>();
  }

  __device__ void WaitForChunk(int32_t chunk, bool is_first) const {
    WaitForBarrier(work_.full + place_.slot * 8, place_.parity);
    if (is_first) WaitForBarrier(work_.weights_there + chunk * 8, 0);
  }

  // Releases the slot whose barrier is `held`, and returns that of the present one.
  __device__ uint32_t Release(uint32_t held) {
    if (held != 0 && threadIdx.x % 32 == 0) ArriveAtBarrier(held);
    const uint32_t present = work_.empty + place_.slot * 8;
    place_.Advance(arguments_.num_stages);
    return present;
  }

  // Adds the products of a slice of the present stage to the sums.
  __device__ void MultiplySlice(int32_t chunk, int half, int32_t adds, float (&sums)[Shape::kColumns / 2]) const {
    constexpr int kStepAddress = kProductRowBytes / kAddressUnit;
    constexpr int kSliceAddress = Shape::kColumns * kSliceBytes / kAddressUnit;
    const uint64_t a = inputs_ + static_cast<uint64_t>(place_.slot) * (Shape::kStageBytes / kAddressUnit) +
                       half * (kSliceBytes / kAddressUnit);
    const uint64_t b = weights_ + static_cast<uint64_t>(chunk * kSlicesAStage + half) * kSliceAddress;
#pragma unroll
    for (int step = 0; step < kSliceBytes / kProductRowBytes; ++step) {
      MultiplyAddGroup<T>(sums, a + step * kStepAddress, b + step * kStepAddress, step == 0 ? adds : 1);
    }
  }

  // Returns the output rows whose sums the thread holds.
  __device__ WarpRows RowsOf(int32_t tile) const {
    const int32_t thread = static_cast<int32_t>(threadIdx.x) % 128;
    const int32_t first = tile * Shape::kRows + thread / 32 * 16 + thread % 32 / 4;
    return {{first < work_.num_rows ? first : -1, first + 8 < work_.num_rows ? first + 8 : -1}};
  }

  const LinearRowsArguments<T>& arguments_;
  const LinearRowsWork<T, Shape> work_;
  const uint64_t inputs_, weights_;  // matrix descriptors of the first stage and of the first slice of weights
  const uint32_t kept_bias_;         // the address of the bias of the block's columns
  LinearRowsPlace place_;
};

#endif

template <typename T, typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    LinearRowsKernel([[maybe_unused]] const __grid_constant__ LinearRowsArguments<T> arguments) {
#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS
  extern __shared__ unsigned char shared[];
  __shared__ uint64_t barriers[Shape::kBarriers];
  __shared__ alignas(16) float kept_bias[Shape::kColumns];
  static_assert(sizeof(barriers) + sizeof(kept_bias) <= Shape::kStaticBytes);
  const uint32_t first_barrier = SharedAddress(barriers);
  if (threadIdx.x < Shape::kBarriers) {
    const auto barrier = static_cast<int>(threadIdx.x);
    constexpr int kEmpty = Shape::kGroups * Shape::kMaxStages, kWeights = 2 * kEmpty;
    InitBarrier(first_barrier + barrier * 8, barrier >= kEmpty && barrier < kWeights ? 4 : 1);
    PublishBarriers();
  }
  __syncthreads();
  constexpr int kFirstCopying = Shape::kGroups * 128;
  if (threadIdx.x < kFirstCopying) {
    SetRegisters<Shape::kProductRegisters, true>();
    // The value passes through a shuffle, so that the compiler knows that it is the same in all lanes.
    const int32_t group = __shfl_sync(~0u, static_cast<int32_t>(threadIdx.x) / 128, 0);
    const LinearRowsWork<T, Shape> work(arguments, SharedAddress(shared), first_barrier, group);
    LinearRowsProducts<T, Shape>(arguments, work, SharedAddress(kept_bias)).Run();
  } else {
    SetRegisters<Shape::kCopyRegisters, false>();
    const int32_t warp = static_cast<int32_t>(threadIdx.x - kFirstCopying) / 32;
    if (threadIdx.x % 32 == 0) {
      const LinearRowsWork<T, Shape> work(arguments, SharedAddress(shared), first_barrier, warp);
      if (work.has_tiles) CopyLinearWeights(arguments, work, warp);
      if (warp == 0) PrefetchMap(arguments.in);
      WaitForEarlierKernels();  // which write the inputs
      if (warp < Shape::kGroups) CopyLinearTiles(arguments, work);
    }
  }
#else
  __trap();  // unreachable: CodeVersion tells callers that this code is missing
#endif
}

}  // namespace voxserve::kernels::cuda
