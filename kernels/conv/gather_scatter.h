#pragma once

// The data movement of the gather-GEMM-scatter dataflow (TorchSparse, Tang et al., MLSys 2022, section 4.3): gather
// copies the input rows of a rulebook's pairs into a dense buffer, scatter adds a dense buffer's rows to the output
// rows of the pairs. kernels/conv/gather_gemm_scatter.h is the dataflow.
//
// All offsets move in one launch: gather is input-stationary (an input row is read once and written to each of its
// pairs), scatter output-stationary (an output row's products are summed in float32 registers, offset by offset in
// ascending order, and stored once, with the epilogue). Both read the rulebook as pair tables. Neither needs atomics.

#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/dtype.h"
#include "kernels/core/epilogue.h"
#include "kernels/core/rows.h"

namespace voxserve::kernels {

// Most offsets of a convolution on a GPU: 5 x 5 x 5 x 5. The launchers answer cudaErrorInvalidValue to more.
inline constexpr int32_t kMaxKernelVolume = 625;

// A rulebook as pair tables (kernels/conv/pair_tables.h makes them). Pairs are numbered offset by offset. An inverse
// convolution's is that of the convolution it inverts with in and out swapped.
struct PairTablesView {
  int32_t num_offsets = 0;            // K
  const int32_t* in_pairs = nullptr;  // [K, in_capacity] the pair of offset k and an input row; -1: none
  int64_t in_capacity = 0;
  const int32_t* out_pairs = nullptr;  // [K, out_capacity] the pair of offset k and an output row; -1: none
  int64_t out_capacity = 0;
  const uint32_t* in_masks = nullptr;     // [num_in_rows, MaskWords(K)] the offsets in which a row has a pair
  const uint32_t* out_masks = nullptr;    // [num_out_rows, MaskWords(K)]
  const int64_t* offset_begin = nullptr;  // host: [K + 1] first pair of each offset; [K] is the number of pairs
  int64_t num_in_rows = 0;
  int64_t num_out_rows = 0;
  int32_t identity_offset = -1;  // whose pairs are (o, o) for all rows: a submanifold convolution's centre; -1: none
};
static_assert(std::is_trivially_copyable_v<PairTablesView>);

// Where a dense buffer holds an offset's pairs: pair p of offset k is its row p + shift[k]. The buffer has fewer than
// 2^31 rows.
struct OffsetShifts {
  static constexpr int32_t kNotMoved = std::numeric_limits<int32_t>::min();  // this offset is passed over
  int32_t shift[kMaxKernelVolume] = {};
};
static_assert(std::is_trivially_copyable_v<OffsetShifts>);

struct GatherAllOffsetsParams {
  PairTablesView tables;
  OffsetShifts shifts;
  ConstRows from;      // [num_in_rows, channels]
  void* to = nullptr;  // [buffer rows, channels] in from.dtype, packed; rows without a pair are left as they are
};
static_assert(std::is_trivially_copyable_v<GatherAllOffsetsParams>);

struct ScatterAllOffsetsParams {
  PairTablesView tables;
  OffsetShifts shifts;
  DType dtype = DType::kFloat32;  // of from and residual
  const void* from = nullptr;     // [buffer rows, channels], packed
  Rows to;                        // [num_out_rows, channels] in dtype or float32; may be the residual itself
  Epilogue epilogue;
};
static_assert(std::is_trivially_copyable_v<ScatterAllOffsetsParams>);

namespace cuda {

cudaError_t GatherAllOffsets(const GatherAllOffsetsParams& params, cudaStream_t stream);
cudaError_t ScatterAllOffsets(const ScatterAllOffsetsParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
