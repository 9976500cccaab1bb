#pragma once

// The data movement that TorchSparse's authors start from (Tang et al., MLSys 2022, section 4.3 and Table 3), for the
// comparison with kernels/conv/gather_scatter.h: weight-stationary, so that a row is read (gather) or read, added to
// and written (scatter) once for every pair. Lives in benchmarks alone.

#include <cstdint>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/dtype.h"

namespace voxserve::bench {

enum class PlainMovement {
  kScalar,      // a launch per offset, a value a thread: pairs and channels as one index
  kVectorized,  // a launch per offset, 16 bytes a thread
  kFused,       // one launch, 16 bytes a thread; scatter adds with atomics on pairs of values
};

// The pairs of all offsets, numbered offset by offset; the dense buffer's row p is pair p's. The pairs of the identity
// offset are passed over: its product needs no gather and writes into the output.
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

// dense[p] = sparse[rows[p]]. Rows of a number of bytes that 8 divides and 16 does not are moved by 8 bytes a thread.
cudaError_t PlainGather(const PairListParams& params, PlainMovement movement, cudaStream_t stream);

// sparse[rows[p]] += dense[p], rounded to the dtype after every addition. Vectors need a multiple of 8 channels.
cudaError_t PlainScatter(const PairListParams& params, PlainMovement movement, cudaStream_t stream);

}  // namespace voxserve::bench
