#pragma once

// The arguments of the implicit GEMM kernels (kernels/conv/implicit_gemm/implicit_gemm.h), and the functions with which
// threads read the mask of a tile and look up and copy input rows. Only .cu files include this header.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/conv/implicit_gemm/implicit_gemm.h"
#include "kernels/conv/implicit_gemm/int8_epilogue.cuh"
#include "kernels/conv/implicit_gemm/slices.h"
#include "kernels/core/epilogue.cuh"
#include "kernels/core/row_tiles.cuh"
#include "kernels/core/tensor_cores.cuh"

namespace voxserve::kernels::cuda {

// Returns true if rows may be read 16 bytes at a time and have no partial vector at their end.
inline bool HasWholeVectors(const ConstRows& rows) {
  return CommonAlignment().Add(rows).bytes() == kVectorBytes &&
         rows.channels * static_cast<int32_t>(SizeOf(rows.dtype)) % kSliceVectorBytes == 0;
}

// The type of the sums of products of T, and their epilogue.
template <typename T>
using SumOf = std::conditional_t<sizeof(T) == 1, int32_t, float>;
template <typename T>
using EpilogueOf = std::conditional_t<sizeof(T) == 1, Int8Epilogue, Epilogue>;
template <typename T>
using TypedEpilogueOf = std::conditional_t<sizeof(T) == 1, TypedInt8Epilogue, TypedEpilogue<T, float>>;

// Returns true if the outputs of a thread may be stored as one vector: 16 bytes, with its bias and residual, or in 8
// bits the 8 values of a thread, with its residual and the epilogue's arrays.
inline bool HasOutVectors(const Rows& out, const Epilogue& epilogue) {
  CommonAlignment alignment;
  alignment.Add(out);
  AddEpilogue(epilogue, alignment);
  return alignment.bytes() == kVectorBytes;
}
inline bool HasOutVectors(const Rows& out, const Int8Epilogue& epilogue) {
  constexpr int64_t kValues = 8;
  CommonAlignment arrays;
  arrays.Add(epilogue.multiplier).Add(epilogue.bias).Add(epilogue.residual_scale);
  return CommonAlignment().Add(out).bytes() >= std::min(kValues * SizeOf(out.dtype), kVectorBytes) &&
         CommonAlignment().Add(epilogue.residual).bytes() >= kValues && arrays.bytes() == kVectorBytes;
}

// ImplicitGemmParams with typed pointers, and values that follow from them. T: the type of inputs and weights. The
// epilogue is given apart, since that of 8 bits is no part of ImplicitGemmParams.
template <typename T>
struct ImplicitGemmArguments {
  ImplicitGemmArguments(const ImplicitGemmParams& params, const EpilogueOf<T>& of_sums)
      : in(static_cast<const T*>(params.operands.in.data)),
        in_pitch_bytes(static_cast<int32_t>(params.operands.in.pitch_bytes())),
        in_channels(params.operands.in.channels),
        weights(static_cast<const unsigned char*>(params.operands.weights)),
        axis(params.tiles.num_offsets, in_channels, params.operands.in.dtype),
        padded_out_channels(PaddedOutChannels(params.operands.out.channels)),
        tiles(params.tiles),
        mask_words(MaskWords(params.tiles.num_offsets)),
        half_sums(static_cast<float4*>(params.workspace)),
        out(params.operands.out.data),
        out_pitch(params.operands.out.pitch),
        out_channels(params.operands.out.channels),
        is_out_float(!std::is_same_v<T, float> && params.operands.out.dtype == DType::kFloat32),
        labels(params.labels.data),
        has_wide_labels(params.labels.dtype == DType::kUint16),
        not_finite_label(params.not_finite_label),
        shortcut_in(static_cast<const T*>(params.operands.shortcut_in.data)),
        shortcut_pitch_bytes(static_cast<int32_t>(params.operands.shortcut_in.pitch_bytes())),
        shortcut_channels(params.operands.shortcut_in.channels),
        shortcut_weights(static_cast<const unsigned char*>(params.operands.shortcut_weights)),
        epilogue(of_sums),
        out_dtype(params.operands.out.dtype),
        angles(static_cast<const float2*>(params.rotation.angles.data)),
        angles_pitch(params.rotation.angles.pitch / 2),
        head_pairs(params.rotation.head_pairs),
        rotated_columns(angles == nullptr ? 0 : params.rotation.num_columns) {
    has_out_vectors = HasOutVectors(params.operands.out, of_sums);
    has_in_vectors = CommonAlignment().Add(params.operands.in).bytes() == kVectorBytes;
    has_whole_in_vectors = HasWholeVectors(params.operands.in);
    if (shortcut_in == nullptr) return;
    num_shortcut_slices = SliceAxis(1, shortcut_channels, params.operands.shortcut_in.dtype).num_slices;
  }

  const T* in;
  int32_t in_pitch_bytes;
  int32_t in_channels;
  bool has_in_vectors;        // input rows may be read 16 bytes at a time
  bool has_whole_in_vectors;  // input rows also have no partial vector at their end
  const unsigned char* weights;
  SliceAxis axis;
  int32_t padded_out_channels;
  TilesView tiles;
  int32_t mask_words;
  float4* half_sums;  // split K: where the halves of sums are kept (split_sums.cuh)
  void* out;
  int64_t out_pitch;
  int32_t out_channels;
  bool is_out_float;     // the output is float32 while T is not; otherwise its type is T
  bool has_out_vectors;  // HasOutVectors
  void* labels;          // null: the sums are stored in `out`
  bool has_wide_labels;  // labels are uint16, not uint8
  int32_t not_finite_label;
  const T* shortcut_in;  // null: no shortcut
  int32_t shortcut_pitch_bytes;
  int32_t shortcut_channels;
  const unsigned char* shortcut_weights;
  int32_t num_shortcut_slices = 0;
  TypedEpilogueOf<T> epilogue;
  DType out_dtype;
  const float2* angles;  // PairRotation::angles; null: nothing is rotated
  int64_t angles_pitch;  // in angles
  int32_t head_pairs;
  int32_t rotated_columns;
};

// Returns the largest number of tiles that a launch can have, for Shape's rows and columns.
template <typename Shape, typename T>
int64_t NumBlockTiles(const ImplicitGemmArguments<T>& arguments) {
  const int64_t row_tiles = (arguments.tiles.out_capacity + Shape::kRows - 1) / Shape::kRows;
  return row_tiles * ((arguments.out_channels + Shape::kColumns - 1) / Shape::kColumns);
}

// Returns one word of the mask of a tile of 64 rows. Without masks there is one kernel offset, which every tile has.
template <typename T>
__device__ uint32_t MaskWordOf(const ImplicitGemmArguments<T>& arguments, int64_t tile, int32_t word) {
  if (arguments.tiles.masks == nullptr) return 1;
  return __ldg(arguments.tiles.masks + tile * arguments.mask_words + word);
}

// Loads four indices if `are_there` is true. Otherwise loads nothing and returns -1 four times.
__device__ inline int4 LoadIndicesIf(bool are_there, const int32_t* from) {
  int4 indices;
  asm volatile(
      "{\n"
      ".reg .pred there;\n"
      "setp.ne.s32 there, %5, 0;\n"
      "mov.s32 %0, -1;\n"
      "mov.s32 %1, -1;\n"
      "mov.s32 %2, -1;\n"
      "mov.s32 %3, -1;\n"
      "@there ld.global.nc.v4.s32 {%0, %1, %2, %3}, [%4];\n"
      "}\n"
      : "=r"(indices.x), "=r"(indices.y), "=r"(indices.z), "=r"(indices.w)
      : "l"(from), "r"(static_cast<int32_t>(are_there)));
  return indices;
}

// Loads an index if `is_there` is true. Otherwise loads nothing and returns -1.
__device__ inline int32_t LoadIndexIf(bool is_there, const int32_t* from) {
  int32_t index;
  asm volatile(
      "{\n"
      ".reg .pred there;\n"
      "setp.ne.s32 there, %2, 0;\n"
      "mov.s32 %0, -1;\n"
      "@there ld.global.nc.s32 %0, [%1];\n"
      "}\n"
      : "=r"(index)
      : "l"(from), "r"(static_cast<int32_t>(is_there)));
  return index;
}

// Returns the output row of a place of the tiles form, or -1 after the last row.
template <typename T>
__device__ int32_t OutRowOf(const ImplicitGemmArguments<T>& arguments, int64_t place, int64_t num_out) {
  if (place >= num_out) return -1;
  if (arguments.tiles.out_rows == nullptr) return static_cast<int32_t>(place);
  return __ldg(arguments.tiles.out_rows + place);
}

// Starts an asynchronous copy of 16 bytes of input row `row` to shared memory. `in` is the address of these bytes in
// row 0, and rows are pitch_bytes apart. For row -1 the copy writes zeros.
__device__ inline void CopyRowVectorAsync(uint32_t to, const char* in, int32_t row, int32_t pitch_bytes) {
  asm volatile(
      "{\n"
      ".reg .pred none;\n"
      "setp.lt.s32 none, %2, 0;\n"
      "cp.async.cg.shared.global [%0], [%1], 16, none;\n"
      "}\n" ::"r"(to),
      "l"(in + int64_t{row} * pitch_bytes), "r"(row)
      : "memory");
}

// Does the same for the first `bytes` bytes of the vector, and writes zeros after them. For row -1 all 16 bytes become
// zeros.
__device__ inline void CopyRowPartAsync(uint32_t to, const char* in, int32_t row, int32_t pitch_bytes, int32_t bytes) {
  CopyAsync16(to, in + int64_t{row} * pitch_bytes, row < 0 ? 0 : bytes);
}

// Copies the first `count` values of a row's 16-byte vector to shared memory, from any alignment, and writes zeros
// after them. `in` is the address of the vector in row 0. For row -1 it writes only zeros. Not inlined, since few
// networks need it.
template <typename T>
__device__ __noinline__ void CopyValues(uint32_t to, const char* in, int32_t row, int32_t count,
                                        const ImplicitGemmArguments<T>& arguments) {
  constexpr int32_t kValues = kSliceVectorBytes / static_cast<int32_t>(sizeof(T));
  const T* const from = reinterpret_cast<const T*>(in + int64_t{row} * arguments.in_pitch_bytes);
  Pack<T, kValues> vector;
#pragma unroll
  for (int32_t i = 0; i < kValues; ++i) vector.values[i] = row >= 0 && i < count ? from[i] : T(0.0f);
  const auto& words = *reinterpret_cast<const uint4*>(&vector);
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(to), "r"(words.x), "r"(words.y), "r"(words.z),
               "r"(words.w)
               : "memory");
}

}  // namespace voxserve::kernels::cuda
