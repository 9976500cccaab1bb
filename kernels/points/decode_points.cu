#include <bit>
#include <cfloat>
#include <cstdint>

#include "kernels/core/launch.cuh"
#include "kernels/points/decode_points.h"

namespace voxserve::kernels::cuda {
namespace {

// Returns the length of a row of the block's tile in shared memory. It is odd, so that neighbouring threads write to
// different banks.
__host__ __device__ constexpr int TilePitch(int num_columns) { return num_columns | 1; }

// Reads a little-endian word at an address of any alignment.
template <typename Word>
__device__ Word LoadWord(const char* from) {
  if (reinterpret_cast<uintptr_t>(from) % sizeof(Word) == 0) return *reinterpret_cast<const Word*>(from);
  Word word = 0;
#pragma unroll
  for (int byte = 0; byte < static_cast<int>(sizeof(Word)); ++byte) {
    word |= static_cast<Word>(static_cast<Word>(static_cast<uint8_t>(from[byte])) << 8 * byte);
  }
  return word;
}

template <typename Word>
__device__ Word SwapBytes(Word word) {
  Word swapped = 0;
#pragma unroll
  for (int byte = 0; byte < static_cast<int>(sizeof(Word)); ++byte) {
    swapped = static_cast<Word>(swapped << 8 | (word >> 8 * byte & 0xFF));
  }
  return swapped;
}
__device__ inline uint8_t SwapBytes(uint8_t word) { return word; }

template <typename Word>
__device__ Word LoadRaw(const char* from, bool is_bigendian) {
  const Word word = LoadWord<Word>(from);
  return is_bigendian ? SwapBytes(word) : word;
}

// Converts exactly, also subnormals, infinities and NaN.
__device__ float Float16BitsToFloat(uint32_t bits) {
  const uint32_t sign = (bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 0x1f;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0x1f) return __uint_as_float(sign | 0x7f800000 | mantissa << 13);
  if (exponent == 0) {
    const float magnitude = __fmul_rn(static_cast<float>(mantissa), 0x1p-24F);
    return __uint_as_float(sign | __float_as_uint(magnitude));
  }
  return __uint_as_float(sign | (exponent + 112) << 23 | mantissa << 13);
}

__device__ float ClampToFloat(double value) {
  constexpr double kLargest = FLT_MAX;
  if (isfinite(value)) value = value < -kLargest ? -kLargest : (value > kLargest ? kLargest : value);
  return __double2float_rn(value);
}

template <typename T>
__device__ float ScaleField(T raw, const PointColumn& column) {
  if (column.field_scale != 1.0 || column.field_shift != 0.0) {
    return ClampToFloat(__dadd_rn(__dmul_rn(static_cast<double>(raw), column.field_scale), column.field_shift));
  }
  if constexpr (std::is_same_v<T, double>) return ClampToFloat(raw);
  return static_cast<float>(raw);
}

template <typename T>
__device__ auto NumberOf(BitsOf<T> bits) {
  if constexpr (std::is_same_v<T, Float16Bits>) {
    return Float16BitsToFloat(bits);
  } else {
    return std::bit_cast<T>(bits);
  }
}

__device__ float ReadField(const PointColumn& column, const char* from, bool is_bigendian) {
  return VisitPointFieldType(column.type, [&](auto value) {
    using T = decltype(value);
    return ScaleField(NumberOf<T>(LoadRaw<BitsOf<T>>(from, is_bigendian)), column);
  });
}

__device__ float ScaleColumn(float value, const PointColumn& column) {
  if (column.scale == 1.0F && column.shift == 0.0F) return value;
  return __fadd_rn(__fmul_rn(value, column.scale), column.shift);
}

__device__ float ReadColumn(const PointColumn& column, const char* point, bool is_bigendian) {
  const float value = column.has_field ? ReadField(column, point + column.offset, is_bigendian) : column.default_value;
  return ScaleColumn(value, column);
}

__device__ float PlaceAxis(const float row[4], float3 point) {
  const float xy = __fadd_rn(__fmul_rn(row[0], point.x), __fmul_rn(row[1], point.y));
  return __fadd_rn(__fadd_rn(xy, __fmul_rn(row[2], point.z)), row[3]);
}

__device__ float3 PlacePoint(const DecodePointsParams& params, const char* from) {
  const PointPlacement& placement = params.placement;
  const auto read = [&](int32_t axis) {
    return ReadColumn(params.columns[placement.axis_columns[axis]], from, params.is_bigendian);
  };
  const float3 point = make_float3(read(0), read(1), read(2));
  const float* const rows = placement.transform;
  return make_float3(PlaceAxis(rows, point), PlaceAxis(rows + 4, point), PlaceAxis(rows + 8, point));
}

// Says how a cloud's points are read.
enum class Reading {
  kPlain,   // every column is an aligned float32 of this machine's byte order, taken as it is
  kAny,     // columns of any kind
  kPlaced,  // columns of any kind, and a pose moves the points
};

// Each thread reads one point.
template <Reading kReading>
__global__ void __launch_bounds__(kBlockThreads) DecodePointsKernel(const __grid_constant__ DecodePointsParams params) {
  LetNextKernelStart();            // the next cloud's, or one that waits first
  extern __shared__ float tile[];  // [kBlockThreads, pitch] the block's rows: written by point, stored as one run
  const int num_columns = params.num_columns;
  const int pitch = TilePitch(num_columns);
  const int64_t first = int64_t{blockIdx.x} * kBlockThreads;
  const int64_t point = first + threadIdx.x;
  if (point < params.num_points) {
    const auto index = static_cast<uint64_t>(point);
    const uint64_t row = params.width == 0 ? 0 : index / params.width;
    const char* from = params.bytes + row * params.row_step + (index - row * params.width) * params.point_step;
    bool is_valid = true;
    float3 placed = {};
    if constexpr (kReading == Reading::kPlaced) placed = PlacePoint(params, from);
    for (int c = 0; c < num_columns; ++c) {
      const PointColumn& column = params.columns[c];
      float value;
      if constexpr (kReading == Reading::kPlain) {
        value = *reinterpret_cast<const float*>(from + column.offset);
      } else if (kReading == Reading::kPlaced && column.axis >= 0) {
        value = ScaleColumn(column.axis == 0 ? placed.x : (column.axis == 1 ? placed.y : placed.z), column);
      } else {
        value = ReadColumn(column, from, params.is_bigendian);
      }
      tile[static_cast<int>(threadIdx.x) * pitch + c] = value;
      is_valid = is_valid && fabsf(value) <= FLT_MAX;
    }
    params.is_valid[point] = is_valid ? 1 : 0;
  }
  __syncthreads();
  const int num_rows = static_cast<int>(min(int64_t{kBlockThreads}, params.num_points - first));
  float* const out = params.points + first * num_columns;
  for (int i = static_cast<int>(threadIdx.x); i < num_rows * num_columns; i += kBlockThreads) {
    const int tile_row = i / num_columns;
    out[i] = tile[tile_row * pitch + (i - tile_row * num_columns)];
  }
  WaitForEarlierKernels();
}

bool IsPlain(const DecodePointsParams& params) {
  constexpr uint64_t kMisaligned = alignof(float) - 1;
  uint64_t places = reinterpret_cast<uintptr_t>(params.bytes) | params.point_step | params.row_step;
  for (int c = 0; c < params.num_columns; ++c) {
    const PointColumn& column = params.columns[c];
    const bool is_as_sent = column.has_field && column.type == PointFieldType::kFloat32 && column.field_scale == 1.0 &&
                            column.field_shift == 0.0 && column.scale == 1.0F && column.shift == 0.0F;
    if (!is_as_sent) return false;
    places |= column.offset;
  }
  return !params.is_bigendian && (places & kMisaligned) == 0;
}

bool HasItsAxes(const DecodePointsParams& params) {
  for (const int32_t column : params.placement.axis_columns) {
    if (column < 0 || column >= params.num_columns) return false;
  }
  return true;
}

// Only the first cloud's kernel waits for the stream's earlier work. The others start beside it.
cudaError_t DecodeCloud(const DecodePointsParams& params, bool is_first, cudaStream_t stream) {
  DecodePointsParams rows = params;
  // If rows are packed, they are treated as one row, which needs no division by the width.
  if (rows.row_step == 0 || rows.row_step == rows.width * rows.point_step) rows.width = rows.row_step = 0;
  const unsigned num_blocks = NumBlocks(rows.num_points);
  const size_t tile_bytes = sizeof(float) * kBlockThreads * static_cast<size_t>(TilePitch(rows.num_columns));
  const auto kernel = rows.placement.is_moved ? DecodePointsKernel<Reading::kPlaced>
                      : IsPlain(rows)         ? DecodePointsKernel<Reading::kPlain>
                                              : DecodePointsKernel<Reading::kAny>;
  if (!is_first) return LaunchEarly(kernel, num_blocks, kBlockThreads, tile_bytes, stream, rows);
  kernel<<<num_blocks, kBlockThreads, tile_bytes, stream>>>(rows);
  return LaunchStatus(stream);
}

}  // namespace

cudaError_t DecodePoints(std::span<const DecodePointsParams> clouds, cudaStream_t stream) {
  const NvtxRange range("DecodePoints");
  for (const DecodePointsParams& cloud : clouds) {
    if (cloud.num_columns < 0 || cloud.num_columns > kMaxPointColumns) return cudaErrorInvalidValue;
    if (cloud.placement.is_moved && !HasItsAxes(cloud)) return cudaErrorInvalidValue;
  }
  bool is_first = true;
  for (const DecodePointsParams& cloud : clouds) {
    if (cloud.num_points == 0) continue;
    VOXSERVE_RETURN_IF_CUDA(DecodeCloud(cloud, is_first, stream));
    is_first = false;
  }
  return cudaSuccess;
}

}  // namespace voxserve::kernels::cuda
