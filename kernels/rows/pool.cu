#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/core/epilogue.cuh"
#include "kernels/core/row_launch.cuh"
#include "kernels/rows/pool.h"

namespace voxserve::kernels::cuda {
namespace {

// The offsets at which a block looks for neighbours at a time. Each thread looks up one of them for one row.
constexpr int kListed = 8;
constexpr int kMostTileRows = kBlockThreads / kListed;
// Neighbours that a thread loads before it adds up the first one. The loads then wait for the memory together. Most
// rows have fewer.
constexpr int kAtOnce = 4;
static_assert(kListed % kAtOnce == 0 && kAtOnce == sizeof(int4) / sizeof(int32_t));

// PoolEnd says which code follows the pooling of a row. kGelu has GELU for results of 16 bits in the kernel's own code.
// With kAny, all activations but ReLU are calls.
enum class PoolEnd { kNothing, kGelu, kAny };

// Returns as many blocks per SM as have registers for kAtOnce accesses of so many bytes, and for what follows them.
constexpr int PoolBlocksAnSm(PoolEnd end, size_t bytes) {
  return BlocksAnSm(end != PoolEnd::kNothing && bytes == kVectorBytes ? 4 : 5);
}

// A block takes tiles of a few rows. First its threads list each row's neighbours in shared memory, in ascending order
// of offsets and without those that do not exist: most do not. Then each thread computes kCount channels of one row,
// and reads only neighbours that exist. While it does so, it looks up a neighbour for the block's next tile.
template <PoolEnd kEnd, typename T, typename Out, int kCount>
__global__ void __launch_bounds__(kBlockThreads, PoolBlocksAnSm(kEnd, sizeof(T) * kCount))
    PoolKernel(const RowsOf<T, Out, kCount> rows, const __grid_constant__ PoolParams params,
               const TypedEpilogue<T, float> epilogue) {
  __shared__ __align__(16) int32_t lists[2][kMostTileRows][kListed];  // the lists of two tiles in turns
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t tile_rows = min(rows.chunks.rows_a_block, kMostTileRows);
  // The thread looks up this neighbour of this row of the tile.
  const int32_t listed_row = thread / kListed, listed_offset = thread % kListed;
  // The thread computes this chunk of this row. A row of more chunks than threads belongs to several blocks.
  const int32_t row_in_tile = thread / rows.chunks.lanes;
  const int32_t chunk = static_cast<int32_t>(blockIdx.x) * rows.chunks.lanes + thread - row_in_tile * rows.chunks.lanes;
  const bool has_chunk = row_in_tile < tile_rows && chunk < rows.chunks.chunks;
  const int32_t channel = chunk * kCount;
  const auto in_pitch_bytes = static_cast<uint32_t>(params.in.pitch * static_cast<int64_t>(sizeof(T)));
  const char* const in = static_cast<const char*>(params.in.data) + int64_t{channel} * sizeof(T);

  WaitForEarlierKernels();
  const int64_t num_rows = NumRows(rows.chunks.capacity, rows.chunks.num_rows);
  // Returns what the thread looks up for the tile that begins at row `begin`: its row's neighbour, or -1.
  const auto find = [&](int64_t begin, int32_t first_offset) {
    const int64_t row = begin + listed_row;
    const int32_t k = first_offset + listed_offset;
    const bool exists = listed_row < tile_rows && row < num_rows && k < params.neighbours.num_offsets;
    return exists ? params.neighbours.rows[k * params.neighbours.pitch + row] : -1;
  };
  const int64_t stride = int64_t{gridDim.y} * tile_rows;
  int64_t begin = int64_t{blockIdx.y} * tile_rows;
  int32_t found = find(begin, 0);
  int buffer = 0;
  for (; begin < num_rows; begin += stride) {
    const int64_t row = begin + row_in_tile;
    const bool has_row = has_chunk && row < num_rows;
    PackBits<T, kCount> residual;
    if constexpr (kEnd != PoolEnd::kNothing) {
      if (has_row && epilogue.residual != nullptr) {
        residual = LoadBits<kCount>(epilogue.residual + row * epilogue.residual_pitch + channel);
      }
    }
    float values[kCount] = {};
    int32_t num_pairs = 0;
    for (int32_t first_offset = 0; first_offset < params.neighbours.num_offsets; first_offset += kListed) {
      // The kListed threads of a row order its neighbours: those that exist come first.
      const int32_t first_lane = thread % kWarpThreads - listed_offset;
      const unsigned existing = __ballot_sync(~0u, found >= 0) >> first_lane & ((1u << kListed) - 1);
      const int32_t existing_before = __popc(existing & ((1u << listed_offset) - 1));
      const int32_t place = found >= 0 ? existing_before : __popc(existing) + listed_offset - existing_before;
      lists[buffer][listed_row][place] = found;
      const int32_t next_offset = first_offset + kListed;
      found = next_offset < params.neighbours.num_offsets ? find(begin, next_offset) : find(begin + stride, 0);
      // One barrier is enough: a thread that writes this buffer again has passed the next barrier, and so all threads
      // have read it.
      __syncthreads();
      if (has_row) {
        const auto* const list = reinterpret_cast<const int4*>(lists[buffer][row_in_tile]);
#pragma unroll 1
        for (int part = 0; part < kListed / kAtOnce; ++part) {
          const int4 four = list[part];
          const int32_t in_rows[kAtOnce] = {four.x, four.y, four.z, four.w};
          if (in_rows[0] < 0) break;
          PackBits<T, kCount> read[kAtOnce];
#pragma unroll
          for (int n = 0; n < kAtOnce; ++n) {
            if (in_rows[n] < 0) continue;
            read[n] = LoadBits<kCount>(
                reinterpret_cast<const T*>(in + uint64_t{static_cast<uint32_t>(in_rows[n])} * in_pitch_bytes));
          }
#pragma unroll
          for (int n = 0; n < kAtOnce; ++n) {
            if (in_rows[n] < 0) break;
            if (n == 0 && num_pairs == 0) {
#pragma unroll
              for (int i = 0; i < kCount; ++i) values[i] = ValueOf<T, kCount>(read[n], i);
            } else if (params.reduce == PoolReduce::kMax) {
#pragma unroll
              for (int i = 0; i < kCount; ++i) values[i] = LargerOrNan(values[i], ValueOf<T, kCount>(read[n], i));
            } else {
#pragma unroll
              for (int i = 0; i < kCount; ++i) values[i] += ValueOf<T, kCount>(read[n], i);
            }
            ++num_pairs;
          }
        }
      }
      buffer ^= 1;
    }
    if (!has_row) continue;
    if (params.reduce == PoolReduce::kAverage && num_pairs > 1) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] /= static_cast<float>(num_pairs);
    }
    if constexpr (kEnd == PoolEnd::kNothing) {
      rows.Store(values, params.out, row, channel);
    } else {
      if (params.scale != nullptr) {
        const Pack<float, kCount> factors = LoadConstantPack<kCount>(params.scale + channel);
#pragma unroll
        for (int i = 0; i < kCount; ++i) values[i] = __fmul_rn(values[i], factors.values[i]);
      }
      Pack<float, kCount> bias;
      if (epilogue.bias != nullptr) bias = epilogue.template LoadBias<kCount>(channel);
      const auto& of_residual = reinterpret_cast<const Pack<T, kCount>&>(residual);
      if constexpr (kEnd == PoolEnd::kGelu) {
        TypedEpilogue<T, float> without_activation = epilogue;
        without_activation.activation = {};
        Pack<float, kCount> sums;
        without_activation.Finish(values, bias, of_residual, sums.values);
#pragma unroll
        for (int i = 0; i < kCount; ++i) values[i] = Gelu16(sums.values[i]);
        rows.Store(values, params.out, row, channel);
      } else {
        epilogue.Finish(values, bias, of_residual, rows.Place(params.out, row, channel));
      }
    }
  }
}

template <PoolEnd kEnd, typename T, typename Out, int kCount>
cudaError_t Launch(const RowsOf<T, Out, kCount>& rows, const PoolParams& params, cudaStream_t stream) {
  constexpr int blocks_an_sm = PoolBlocksAnSm(kEnd, sizeof(T) * kCount);
  const RowChunks& chunks = rows.chunks;
  const int64_t tile_rows = std::min<int64_t>(chunks.rows_a_block, kMostTileRows);
  const int64_t num_tiles = (chunks.capacity + tile_rows - 1) / tile_rows;
  const int64_t blocks_a_row = (chunks.chunks + chunks.lanes - 1) / chunks.lanes;
  const int64_t most_blocks = std::max<int64_t>(int64_t{NumSms()} * blocks_an_sm / blocks_a_row, 1);
  const dim3 blocks(static_cast<unsigned>(blocks_a_row), static_cast<unsigned>(std::min(num_tiles, most_blocks)));
  return LaunchEarly(PoolKernel<kEnd, T, Out, kCount>, blocks, kBlockThreads, 0, stream, rows, params,
                     TypedEpilogue<T, float>(params.epilogue));
}

}  // namespace

cudaError_t Pool(const PoolParams& params, cudaStream_t stream) {
  // The kernel has the pitch in 32 bits.
  if (params.in.pitch_bytes() < 0 || params.in.pitch_bytes() > int64_t{UINT32_MAX}) return cudaErrorInvalidValue;
  CommonAlignment others;
  AddEpilogue(params.epilogue, others.Add(params.scale));
  return LaunchRows("Pool", params.in, params.out, others,
                    [&]<typename T, typename Out, int kCount>(const RowsOf<T, Out, kCount>& rows) {
                      if (params.scale == nullptr && params.epilogue.IsEmpty()) {
                        return Launch<PoolEnd::kNothing>(rows, params, stream);
                      }
                      if constexpr (sizeof(Out) == 2) {
                        if (params.epilogue.activation.function == ActivationFunction::kGelu) {
                          return Launch<PoolEnd::kGelu>(rows, params, stream);
                        }
                      }
                      return Launch<PoolEnd::kAny>(rows, params, stream);
                    });
}

}  // namespace voxserve::kernels::cuda
