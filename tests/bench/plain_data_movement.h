#pragma once

// Moves data as TorchSparse's authors do before their optimizations (Tang et al., MLSys 2022, section 4.3 and Table 3),
// to be compared with kernels/conv/gather_scatter.h. The movement is weight-stationary: a gather reads a row once for
// every pair, and a scatter reads, adds to and writes it once for every pair. Only benchmarks use it.

#include <cstdint>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/dtype.h"

namespace voxserve::bench {

enum class PlainMovement {
  kScalar,      // a launch per offset, a value per thread; pairs and channels form one index
  kVectorized,  // a launch per offset, 16 bytes per thread
  kFused,       // one launch, 16 bytes per thread; scatter adds with atomics on pairs of values
};

// The pairs of all offsets, numbered offset by offset. Row p of the dense buffer belongs to pair p. The pairs of the
// identity offset are skipped: its product needs no gather and is written into the output.
struct PairListParams {
  int32_t num_offsets = 0;                          // K; with kScalar all have fewer than 2^31 values together
  const int64_t* offset_begin = nullptr;            // host: [K + 1] first pair of each offset
  int32_t identity_offset = -1;                     // -1: none
  const int32_t* rows = nullptr;                    // [pairs] the sparse side's row; in an offset each at most once
  kernels::DType dtype = kernels::DType::kFloat32;  // float32 with kScalar, else float16
  int32_t channels = 0;
  const void* from = nullptr;  // packed, as `to`; 16-byte aligned
  void* to = nullptr;
};

// Computes dense[p] = sparse[rows[p]]. If the bytes of a row are a multiple of 8 but not of 16, a thread moves 8 bytes.
cudaError_t PlainGather(const PairListParams& params, PlainMovement movement, cudaStream_t stream);

// Computes sparse[rows[p]] += dense[p], rounded to the dtype after every addition. Vectors need a multiple of 8
// channels.
cudaError_t PlainScatter(const PairListParams& params, PlainMovement movement, cudaStream_t stream);

}  // namespace voxserve::bench
