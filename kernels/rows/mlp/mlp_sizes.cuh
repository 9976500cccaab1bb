#pragma once

// The sizes of Mlp's kernels (mlp.cuh), and their rings of weights. Only .cu files include this header.

#include <cstddef>
#include <cstdint>

#include "kernels/core/row_tiles.cuh"
#include "kernels/rows/mlp/mlp_layout.h"

namespace voxserve::kernels::cuda {

// ---- Tuning. An SM has 65,536 registers and, for a block, 227 KiB of shared memory.

// The warp groups that compute. Each thread has registers for a tile's sums (padded_out / 2), a chunk's sums (32) and
// their rounded values (16), and for the input's tile where it is in registers (padded_in / 4).
constexpr int MlpGroups(int32_t padded_out) { return padded_out > 128 ? 2 : 3; }
// The registers of each of their threads, and of the threads of the warp group that copies. All groups together have as
// many as at the start, which is what the block's threads leave to each other: 168 or 128.
constexpr int MlpComputingRegisters(int groups) { return groups == 2 ? 232 : 160; }
constexpr int MlpCopyingRegisters(int groups) { return groups == 2 ? 40 : 32; }
// True where the input's tile lies in shared memory.
constexpr bool MlpSharesInput(int32_t padded_in) { return padded_in >= 128; }
// The most stages of each ring.
constexpr int32_t MlpMaxStages(int32_t padded_out) {
  return padded_out > 192 ? 2 : padded_out > 128 ? 3 : padded_out > 96 ? 5 : 8;
}

// ----

// The sizes of a kernel.
template <int kIn, int kOut>
struct MlpSizes {
  static constexpr int kGroups = MlpGroups(kOut);
  static constexpr int kGroupThreads = 128;
  static constexpr int kThreads = (kGroups + 1) * kGroupThreads;
  static constexpr int kTileRows = 64;
  static constexpr bool kSharesInput = MlpSharesInput(kIn);
  static constexpr int32_t kMaxStages = MlpMaxStages(kOut);
  static constexpr uint32_t kFirstBytes = MlpFirstValues(kIn) * 2;
  static constexpr uint32_t kSecondBytes = MlpSecondValues(kOut) * 2;
  static constexpr uint32_t kInputBytes = kSharesInput ? kTileRows * kIn * 2 : 0;  // of a group
  static constexpr uint32_t kAlignment = 1024;                                     // of 8 rows of 128 bytes

  static constexpr size_t SharedBytes(int32_t num_chunks) {
    const int32_t stages = num_chunks < kMaxStages ? num_chunks : kMaxStages;
    return kAlignment + stages * size_t{kFirstBytes + kSecondBytes} + kGroups * size_t{kInputBytes} +
           num_chunks * size_t{kMlpChunk} * sizeof(float);
  }
};

// A stage of a ring and the parity of its present phase.
struct MlpStage {
  int32_t stage = 0;
  uint32_t parity = 0;

  __device__ void Advance(int32_t stages) {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

// A ring of stages in shared memory.
struct MlpRing {
  uint32_t stages = 0;           // the first stage
  uint32_t full = 0, empty = 0;  // barriers of the first stage
  uint32_t bytes = 0;            // of a stage

  __device__ uint32_t Stage(int32_t stage) const { return stages + stage * bytes; }
  __device__ uint32_t Full(int32_t stage) const { return full + stage * sizeof(uint64_t); }
  __device__ uint32_t Empty(int32_t stage) const { return empty + stage * sizeof(uint64_t); }
};

}  // namespace voxserve::kernels::cuda
