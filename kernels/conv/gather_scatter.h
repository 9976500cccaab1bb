#pragma once

// The gather and the scatter of the gather-GEMM-scatter dataflow (TorchSparse, Tang et al., MLSys 2022, section 4.3),
// which kernels/conv/gather_gemm_scatter.h implements. Gather copies the input rows of a rulebook's pairs to a dense
// buffer. Scatter adds the rows of a dense buffer to the output rows of the pairs.
//
// One launch serves all kernel offsets. Gather is input-stationary: it reads an input row once and writes it to the
// buffer row of each pair of this input row. Scatter is output-stationary: it sums the products of an output row in
// float32 registers, in ascending order of offsets, applies the epilogue, and stores the row once. Both read the
// rulebook as pair tables, and neither needs atomics.

#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/dtype.h"
#include "kernels/core/epilogue.h"
#include "kernels/core/rows.h"

namespace voxserve::kernels {

// The largest number of offsets of a convolution on a GPU: 5 x 5 x 5 x 5. The launchers return cudaErrorInvalidValue
// for more.
inline constexpr int32_t kMaxKernelVolume = 625;

// A view of a rulebook as pair tables, which kernels/conv/pair_tables.h makes. Pairs are numbered offset by offset. An
// inverse convolution uses the tables of the convolution that it inverts, with in and out swapped.
struct PairTablesView {
  int32_t num_offsets = 0;            // K
  const int32_t* in_pairs = nullptr;  // [K, in_capacity] number of the pair of offset k and an input row; -1: none
  int64_t in_capacity = 0;
  const int32_t* out_pairs = nullptr;  // [K, out_capacity] number of the pair of offset k and an output row; -1: none
  int64_t out_capacity = 0;
  const uint32_t* in_masks = nullptr;     // [num_in_rows, MaskWords(K)] bit k: the row has a pair in offset k
  const uint32_t* out_masks = nullptr;    // [num_out_rows, MaskWords(K)]
  const int64_t* offset_begin = nullptr;  // in host memory: [K + 1] first pair of each offset; [K]: number of pairs
  int64_t num_in_rows = 0;
  int64_t num_out_rows = 0;
  int32_t identity_offset = -1;  // its pairs are (o, o) for all rows: a submanifold convolution's centre; -1: none
};
static_assert(std::is_trivially_copyable_v<PairTablesView>);

// OffsetShifts says in which rows of a dense buffer the pairs of an offset are: pair p of offset k is in buffer row p +
// shift[k]. The buffer has fewer than 2^31 rows.
struct OffsetShifts {
  static constexpr int32_t kNotMoved = std::numeric_limits<int32_t>::min();  // the offset's pairs are skipped
  int32_t shift[kMaxKernelVolume] = {};
};
static_assert(std::is_trivially_copyable_v<OffsetShifts>);

struct GatherAllOffsetsParams {
  PairTablesView tables;
  OffsetShifts shifts;
  ConstRows from;      // [num_in_rows, channels]
  void* to = nullptr;  // [buffer rows, channels] in from.dtype, packed; rows without a pair keep their values
};
static_assert(std::is_trivially_copyable_v<GatherAllOffsetsParams>);

struct ScatterAllOffsetsParams {
  PairTablesView tables;
  OffsetShifts shifts;
  DType dtype = DType::kFloat32;  // the type of `from` and of the residual
  const void* from = nullptr;     // [buffer rows, channels], packed
  Rows to;                        // [num_out_rows, channels] in dtype or float32; may be the residual itself
  Epilogue epilogue;
};
static_assert(std::is_trivially_copyable_v<ScatterAllOffsetsParams>);

namespace cuda {

// Both return cudaErrorInvalidValue for more than kMaxKernelVolume offsets.
cudaError_t GatherAllOffsets(const GatherAllOffsetsParams& params, cudaStream_t stream);
cudaError_t ScatterAllOffsets(const ScatterAllOffsetsParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
