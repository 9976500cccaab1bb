#pragma once

// The data movement of the gather-GEMM-scatter dataflow (TorchSparse, Tang et al., MLSys 2022, section 4.3): gather
// copies the input rows of a rulebook's pairs into a dense buffer, scatter adds a dense buffer's rows to the output
// rows of the pairs.
//
// cpu::GatherGemmScatter is the dataflow: a thread owns a block of output rows and goes through the offsets one by one
// with a buffer that holds one offset's rows of the block, so that both buffers stay in its cache (unblocked they would
// be written to memory and read back for every pair). Deterministic: an output row is added to by one thread, offset by
// offset.

#include <cstdint>
#include <type_traits>

#include "kernels/epilogue.h"
#include "kernels/rulebook.h"
#include "kernels/thread_pool.h"

namespace voxserve::kernels {

struct GatherParams {
  const int32_t* rows = nullptr;  // [num_rows] rows of `from`
  int64_t num_rows = 0;
  const float* from = nullptr;  // [.., channels], rows from_pitch apart
  int64_t from_pitch = 0;       // floats, as all pitches
  int32_t channels = 0;
  float* to = nullptr;  // [num_rows, channels], packed
};
static_assert(std::is_trivially_copyable_v<GatherParams>);

struct ScatterAddParams {
  const int32_t* rows = nullptr;  // [num_rows] rows of `to`, each at most once
  int64_t num_rows = 0;
  const float* from = nullptr;  // [num_rows, channels], packed
  int32_t channels = 0;
  float* to = nullptr;  // [.., channels], rows to_pitch apart
  int64_t to_pitch = 0;
};
static_assert(std::is_trivially_copyable_v<ScatterAddParams>);

struct GatherGemmScatterParams {
  RulebookView rulebook;
  const float* in = nullptr;  // [num_in_rows, in_channels], rows in_pitch apart
  int64_t in_pitch = 0;
  int32_t in_channels = 0;
  const float* weights = nullptr;  // [K, in_channels, out_channels]
  float* out = nullptr;            // [num_out_rows, out_channels], rows out_pitch apart; must not overlap `in`
  int64_t out_pitch = 0;
  int32_t out_channels = 0;
  Epilogue epilogue;
  int32_t block_rows = 0;  // output rows that a thread keeps in cache; 0: 512
};
static_assert(std::is_trivially_copyable_v<GatherGemmScatterParams>);

namespace cpu {

// Both run on the calling thread.
void Gather(const GatherParams& params);
void ScatterAdd(const ScatterAddParams& params);

void GatherGemmScatter(const GatherGemmScatterParams& params, ThreadPool& pool);

}  // namespace cpu
}  // namespace voxserve::kernels
