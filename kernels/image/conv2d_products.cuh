#pragma once

// These classes are the ways in which a block of kernels/image/conv2d.cuh multiplies the matrices in its shared memory:
// WarpProducts by single warps' tensor cores, WarpGroupProducts by Hopper's warp groups, and ScalarProducts in float32
// without tensor cores. They differ in which thread holds which sums. Only .cu files include this header.
//
// A stage is a buffer in shared memory with kRows rows of inputs (one per output position) and, after them, kColumns
// rows of weights (one per output channel). A row has kStageRowBytes. The 16-byte vector v of row r is stored at place
// v ^ (r % 8): copies and loads of 8 rows then use different banks, and warp groups expect this layout.
//
// An object of a class has the sums of one thread. Multiply adds the matrix product of a stage's inputs and weights to
// the sums of the block's threads. If kIsAsynchronous, the product may still run until Wait returns. Spill writes the
// thread's sums to shared memory, as a matrix [kRows, kColumns] with the pitch kSumPitch. RunsHere returns true if the
// present GPU architecture supports the class.

#include <cstdint>
#include <type_traits>

#include "kernels/core/epilogue.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/tensor_cores.cuh"
#include "kernels/core/warp_group_products.cuh"
#include "kernels/core/warp_products.cuh"

namespace voxserve::kernels::cuda {

inline constexpr int kStageRowBytes = 128;  // one chunk of the summed axis
inline constexpr int kVectorsARow = kStageRowBytes / 16;

template <typename T>
inline constexpr int kVectorValues = 16 / static_cast<int>(sizeof(T));
template <typename T>
inline constexpr int kChunkValues = kVectorsARow* kVectorValues<T>;

// Returns the offset of a vector in a stage's matrix.
__host__ __device__ constexpr int32_t SwizzledBytes(int32_t row, int32_t vector) {
  return row * kStageRowBytes + ((vector ^ (row % 8)) * 16);
}

// The values from one row of sums in shared memory to the next. If kColumns is a multiple of 32, each row begins
// 8 banks after the row before it.
template <int kColumns>
inline constexpr int kSumPitch = kColumns + 8;
// The values from one column of transposed sums to the next. If kRows is a multiple of 32, each column begins 12 banks
// after the column before it: then the writes of a warp use different banks, and reads of 3 neighbouring columns at 11
// neighbouring rows nearly so.
template <int kRows>
inline constexpr int kTransposedSumPitch = kRows + 12;

// Matrix products by the tensor cores of a block's warps, each warp for itself (mma.sync).
template <typename T, int kTileColumns, int kTileThreads = 128, int kTileRows = 128>
class WarpProducts {
 public:
  static constexpr int kThreads = kTileThreads;
  static constexpr int kRows = kTileRows;  // output positions per block
  static constexpr int kColumns = kTileColumns;
  static constexpr int kBlocksAnSm = kTileColumns > 32 ? 2 : 4;
  static constexpr bool kIsAsynchronous = false;
  static constexpr int kPending = 0;

  __host__ __device__ static constexpr bool RunsHere() {
#if defined(__CUDA_ARCH__)
    return __CUDA_ARCH__ >= 800;
#else
    return true;
#endif
  }

  __device__ void Multiply(const unsigned char* inputs, const unsigned char* weights) {
    tile_.Multiply(SharedAddress(inputs), SharedAddress(weights));
  }

  __device__ void Spill(float* to) const {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    float* const first = to + (Tile::WarpRow() + lane / 4) * kSumPitch<kColumns> + Tile::WarpColumn() + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < Tile::kRowTiles; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::kColumnTiles; ++j) {
        float* const tile = first + i * 16 * kSumPitch<kColumns> + j * 8;
        const float(&sums)[4] = tile_.sums[i][j];
        *reinterpret_cast<float2*>(tile) = make_float2(sums[0], sums[1]);
        *reinterpret_cast<float2*>(tile + 8 * kSumPitch<kColumns>) = make_float2(sums[2], sums[3]);
      }
    }
  }

  // Writes the sums like Spill, but as the transposed matrix [kColumns, kRows] with the pitch kTransposedSumPitch.
  __device__ void SpillTransposed(float* to) const {
    constexpr int kPitch = kTransposedSumPitch<kRows>;
    static_assert(kRows % 32 == 0, "neighbouring lanes use different banks");
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    float* const first = to + (Tile::WarpColumn() + lane % 4 * 2) * kPitch + Tile::WarpRow() + lane / 4;
#pragma unroll
    for (int i = 0; i < Tile::kRowTiles; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::kColumnTiles; ++j) {
        float* const tile = first + j * 8 * kPitch + i * 16;
        const float(&sums)[4] = tile_.sums[i][j];
        tile[0] = sums[0];
        tile[kPitch] = sums[1];
        tile[8] = sums[2];
        tile[kPitch + 8] = sums[3];
      }
    }
  }

 private:
  using Tile = WarpTile<T, kRows, kColumns, kThreads, kStageRowBytes>;

  Tile tile_;
};

// Matrix products by warp groups (wgmma). Each warp group has 64 of the rows. A call of Multiply begins one
// asynchronous series of products; the last kPendingSeries series may still run when the next series begins.
template <typename T, int kWarpGroups, int kTileColumns, int kBlocks, int kPendingSeries>
class WarpGroupProducts {
 public:
  static constexpr int kThreads = kWarpGroups * 128;
  static constexpr int kRows = kWarpGroups * 64;
  static constexpr int kColumns = kTileColumns;
  static constexpr int kBlocksAnSm = kBlocks;
  static constexpr bool kIsAsynchronous = true;
  static constexpr int kPending = kPendingSeries;

  __host__ __device__ static constexpr bool RunsHere() { return VOXSERVE_HAS_WARP_GROUP_PRODUCTS; }

  __device__ void Multiply([[maybe_unused]] const unsigned char* inputs,
                           [[maybe_unused]] const unsigned char* weights) {
#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS
    const uint64_t a = SwizzledMatrix(SharedAddress(inputs) + threadIdx.x / 128 * 64 * kStageRowBytes);
    const uint64_t b = SwizzledMatrix(SharedAddress(weights));
    BeginProducts();
#pragma unroll
    for (int step = 0; step < kVectorsARow / 2; ++step) {
      constexpr int kStepAddress = 32 >> 4;
      MultiplyAddGroup<T>(sums_, a + step * kStepAddress, b + step * kStepAddress);
    }
    CommitProducts();
#endif
  }
  template <int kStillPending>
  __device__ void Wait() {
#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS
    WaitForProducts<kStillPending>();
    if constexpr (kStillPending == 0) HoldBackReads(sums_);
#endif
  }

  __device__ void Spill(float* to) const {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const auto warp = static_cast<int32_t>(threadIdx.x / 32);
    float* const first = to + (warp * 16 + lane / 4) * kSumPitch<kColumns> + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      float* const tile = first + j * 8;
      *reinterpret_cast<float2*>(tile) = make_float2(sums_[4 * j], sums_[4 * j + 1]);
      *reinterpret_cast<float2*>(tile + 8 * kSumPitch<kColumns>) = make_float2(sums_[4 * j + 2], sums_[4 * j + 3]);
    }
  }

 private:
  float sums_[kColumns / 2] = {};
};

// Matrix products without tensor cores. The block has 16 x 16 threads; each has every 16th row and every 16th column.
template <typename T, int kTileColumns>
class ScalarProducts {
 public:
  static constexpr int kThreads = 256;
  static constexpr int kRows = 128;
  static constexpr int kColumns = kTileColumns;
  static constexpr int kBlocksAnSm = 1;
  static constexpr bool kIsAsynchronous = false;
  static constexpr int kPending = 0;

  // Returns true for float32, and for 16-bit types only on GPUs before sm_80, where WarpProducts cannot run.
  __host__ __device__ static constexpr bool RunsHere() {
#if defined(__CUDA_ARCH__)
    return std::is_same_v<T, float> || __CUDA_ARCH__ < 800;
#else
    return true;
#endif
  }

  __device__ void Multiply(const unsigned char* inputs, const unsigned char* weights) {
#pragma unroll 1
    for (int32_t v = 0; v < kVectorsARow; ++v) {
      Pack<T, kVectorValues<T>> b[kColumnsAThread];
#pragma unroll
      for (int j = 0; j < kColumnsAThread; ++j) b[j] = Load(weights, Column() + 16 * j, v);
#pragma unroll
      for (int i = 0; i < kRowsAThread; ++i) {
        const Pack<T, kVectorValues<T>> a = Load(inputs, Row() + 16 * i, v);
#pragma unroll
        for (int e = 0; e < kVectorValues<T>; ++e) {
#pragma unroll
          for (int j = 0; j < kColumnsAThread; ++j) {
            sums_[i][j] = fmaf(ToFloat(a.values[e]), ToFloat(b[j].values[e]), sums_[i][j]);
          }
        }
      }
    }
  }

  __device__ void Spill(float* to) const {
#pragma unroll
    for (int i = 0; i < kRowsAThread; ++i) {
#pragma unroll
      for (int j = 0; j < kColumnsAThread; ++j) {
        to[(Row() + 16 * i) * kSumPitch<kColumns> + Column() + 16 * j] = sums_[i][j];
      }
    }
  }

 private:
  static constexpr int kRowsAThread = kRows / 16;
  static constexpr int kColumnsAThread = kTileColumns / 16;

  __device__ static int32_t Row() { return static_cast<int32_t>(threadIdx.x / 16); }
  __device__ static int32_t Column() { return static_cast<int32_t>(threadIdx.x % 16); }
  __device__ static Pack<T, kVectorValues<T>> Load(const unsigned char* rows, int32_t row, int32_t vector) {
    return *reinterpret_cast<const Pack<T, kVectorValues<T>>*>(rows + SwizzledBytes(row, vector));
  }

  float sums_[kRowsAThread][kColumnsAThread] = {};
};

}  // namespace voxserve::kernels::cuda
