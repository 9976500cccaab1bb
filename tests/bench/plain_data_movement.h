#pragma once

// Copies the rows of a gather-GEMM-scatter convolution as TorchSparse did before its optimizations (Tang et al., MLSys
// 2022, section 4.3 and Table 3). Only a benchmark uses these kernels, to compare them with
// kernels/conv/gather_scatter.h. They work offset by offset: the gather reads a row once for every pair (an input row
// and an output row that a kernel offset connects), and the scatter reads, adds to and writes a row once for every
// pair.

#include <cstdint>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/dtype.h"

namespace voxserve::bench {

enum class PlainMovement {
  kScalar,      // a launch per offset, a value per thread; pairs and channels form one index
  kVectorized,  // a launch per offset, 16 bytes per thread
  kFused,       // one launch, 16 bytes per thread; scatter adds with atomics on pairs of values
};

// The pairs of all offsets, numbered offset by offset. Row p of the dense buffer belongs to pair p. The kernels skip
// the pairs of the identity offset, which connects each row with itself: its matrix product needs no copies.
struct PairListParams {
  int32_t num_offsets = 0;                          // K; with kScalar pairs * channels must be below 2^31
  const int64_t* offset_begin = nullptr;            // host: [K + 1] first pair of each offset
  int32_t identity_offset = -1;                     // -1: none
  const int32_t* rows = nullptr;                    // [pairs] row of the sparse tensor; at most once in each offset
  kernels::DType dtype = kernels::DType::kFloat32;  // float32 with kScalar, else float16
  int32_t channels = 0;
  // Rows without padding, 16-byte aligned: a gather reads the sparse tensor and writes the dense buffer, a scatter the
  // other way round.
  const void* from = nullptr;
  void* to = nullptr;
};

// Computes dense[p] = sparse[rows[p]]. If the bytes of a row are a multiple of 8 but not of 16, a thread moves 8 bytes.
cudaError_t PlainGather(const PairListParams& params, PlainMovement movement, cudaStream_t stream);

// Computes sparse[rows[p]] += dense[p], rounded to the dtype after every addition. kVectorized and kFused need a
// multiple of 8 channels.
cudaError_t PlainScatter(const PairListParams& params, PlainMovement movement, cudaStream_t stream);

}  // namespace voxserve::bench
