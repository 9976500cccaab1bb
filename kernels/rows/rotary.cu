#include <algorithm>

#include "kernels/coordinates/morton_key.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_chunks.cuh"
#include "kernels/core/row_tiles.cuh"
#include "kernels/rows/rotary.h"

namespace voxserve::kernels::cuda {
namespace {

// A block first computes the sines and cosines of its rows, at most so many.
constexpr int32_t kBlockAngles = 2048;
// Rows of which a thread loads a pair before it rotates the first one. The loads then wait for the memory together.
constexpr int32_t kRowsAtOnce = 8;

// How the threads of a block divide rows: neighbouring threads take neighbouring pairs of a row, and threads left over
// take further rows.
struct Division {
  int32_t lanes;         // threads a row
  int32_t rows_at_once;  // of a block
  int32_t rows_a_block;  // of which a block computes the angles together

  explicit Division(const RotaryParams& params) {
    const int32_t head_pairs = params.PairsOfAnAxis() * params.dimension;
    lanes = std::min(params.num_heads * head_pairs, kBlockThreads);
    rows_at_once = kBlockThreads / lanes;
    rows_a_block = std::clamp(kBlockAngles / head_pairs, 1, rows_at_once * kRowsAtOnce);
  }
};

// ---- kernels

__device__ float ValueAt(const ConstRows& rows, int64_t row, int32_t column) {
  const int64_t at = row * rows.pitch + column;
  if (rows.dtype == DType::kFloat16) return ToFloat(static_cast<const __half*>(rows.data)[at]);
  if (rows.dtype == DType::kBfloat16) return ToFloat(static_cast<const __nv_bfloat16*>(rows.data)[at]);
  return static_cast<const float*>(rows.data)[at];
}

__device__ int32_t CoordinateOf(int32_t dimension, uint64_t key, int32_t axis) {
  switch (dimension) {
    case 1:
      return MortonKey<1>::Coordinate(key, axis);
    case 2:
      return MortonKey<2>::Coordinate(key, axis);
    case 3:
      return MortonKey<3>::Coordinate(key, axis);
    default:
      return MortonKey<4>::Coordinate(key, axis);
  }
}

// Returns the sine (x) and cosine (y) of a row's angle for a pair of a head.
template <typename Params>
__device__ float2 AngleOf(const Params& params, int64_t row, int32_t pair) {
  const int32_t pairs = params.PairsOfAnAxis(), axis = pair / pairs, j = pair % pairs;
  const float position = params.positions.data != nullptr
                             ? ValueAt(params.positions, row, axis)
                             : static_cast<float>(CoordinateOf(params.dimension, params.keys[row], axis));
  float2 angle;
  sincosf(position * params.frequencies[j], &angle.x, &angle.y);
  return angle;
}

// A block takes rows_a_block rows at a time. angles: dynamic shared memory, [rows_a_block, pairs of a head].
template <typename T, typename Out>
__global__ void __launch_bounds__(kBlockThreads)
    RotaryKernel(const Division division, const __grid_constant__ RotaryParams params) {
  extern __shared__ float2 angles[];  // the sine (x) and cosine (y) of each angle
  const int32_t pairs = params.PairsOfAnAxis(), head_pairs = params.dimension * pairs;
  const int32_t row_pairs = params.num_heads * head_pairs;
  const int64_t num_rows = NumRows(params.out.capacity, params.out.num_rows);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lanes = division.lanes, rows_at_once = division.rows_at_once;
  for (int64_t first = int64_t{blockIdx.x} * division.rows_a_block; first < num_rows;
       first += int64_t{gridDim.x} * division.rows_a_block) {
    const auto rows = static_cast<int32_t>(min(int64_t{division.rows_a_block}, num_rows - first));
    for (int32_t i = thread; i < rows * head_pairs; i += kBlockThreads) {
      angles[i] = AngleOf(params, first + i / head_pairs, i % head_pairs);
    }
    __syncthreads();
    const int32_t first_row = thread / lanes < rows_at_once ? thread / lanes : rows;
    for (int32_t pair = thread % lanes; pair < row_pairs; pair += lanes) {
      const int32_t channel = pair / pairs * 2 * pairs + pair % pairs, angle_of_row = pair % head_pairs;
      for (int32_t begin = first_row; begin < rows; begin += kRowsAtOnce * rows_at_once) {
        T u[kRowsAtOnce], v[kRowsAtOnce];
#pragma unroll
        for (int i = 0; i < kRowsAtOnce; ++i) {
          const int32_t row = begin + i * rows_at_once;
          if (row < rows) {
            const T* const in = static_cast<const T*>(params.in.data) + (first + row) * params.in.pitch + channel;
            u[i] = in[0];
            v[i] = in[pairs];
          }
        }
#pragma unroll
        for (int i = 0; i < kRowsAtOnce; ++i) {
          const int32_t row = begin + i * rows_at_once;
          if (row < rows) {
            const float2 angle = angles[row * head_pairs + angle_of_row];
            Out* const out = static_cast<Out*>(params.out.data) + (first + row) * params.out.pitch + channel;
            out[0] = FromFloat<Out>(ToFloat(u[i]) * angle.y - ToFloat(v[i]) * angle.x);
            out[pairs] = FromFloat<Out>(ToFloat(v[i]) * angle.y + ToFloat(u[i]) * angle.x);
          }
        }
      }
    }
    __syncthreads();
  }
}

// A thread computes one angle of the table.
__global__ void __launch_bounds__(kBlockThreads) RotaryAnglesKernel(const __grid_constant__ RotaryAnglesParams params) {
  const int32_t head_pairs = params.dimension * params.pairs, angles = head_pairs + kRepeatedAngles;
  const int64_t at = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x, row = at / angles;
  if (row >= NumRows(params.out.capacity, params.out.num_rows)) return;
  const auto angle = static_cast<int32_t>(at - row * angles);
  float2* const out = reinterpret_cast<float2*>(static_cast<float*>(params.out.data) + row * params.out.pitch);
  out[angle] = AngleOf(params, row, angle % head_pairs);
}

// ---- launchers

// Calls visit(T{}, Out{}) for the types that RotaryParams names.
template <typename Visitor>
cudaError_t VisitTypes(DType in, DType out, const Visitor& visit) {
  if (in != DType::kFloat32) return VisitInAndOutType(in, out, visit);
  return VisitFeatureType(out, [&](auto value) { return visit(float{}, value); });
}

}  // namespace

cudaError_t Rotary(const RotaryParams& params, cudaStream_t stream) {
  if (params.out.capacity == 0 || params.out.channels == 0) return cudaSuccess;
  const int32_t head_pairs = params.PairsOfAnAxis() * params.dimension;
  if (head_pairs < 1 || head_pairs > kMaxRotaryHeadChannels / 2) return cudaErrorInvalidValue;
  const NvtxRange range("Rotary");
  const Division division(params);
  const size_t angle_bytes = static_cast<size_t>(division.rows_a_block * head_pairs) * sizeof(float2);
  return VisitTypes(params.in.dtype, params.out.dtype, [&](auto in, auto out) {
    RotaryKernel<decltype(in), decltype(out)>
        <<<NumBlocks(params.out.capacity, division.rows_a_block), kBlockThreads, angle_bytes, stream>>>(division,
                                                                                                        params);
    return LaunchStatus(stream);
  });
}

cudaError_t RotaryAngles(const RotaryAnglesParams& params, cudaStream_t stream) {
  const int32_t head_pairs = params.dimension * params.pairs;
  if (head_pairs < 1 || head_pairs > kMaxRotaryHeadChannels / 2 || params.out.dtype != DType::kFloat32 ||
      params.out.channels != AngleTableChannels(head_pairs) ||
      CommonAlignment().Add(params.out).bytes() < static_cast<int64_t>(sizeof(float2))) {
    return cudaErrorInvalidValue;
  }
  if (params.out.capacity == 0) return cudaSuccess;
  const NvtxRange range("RotaryAngles");
  RotaryAnglesKernel<<<NumBlocks(params.out.capacity * (head_pairs + kRepeatedAngles)), kBlockThreads, 0, stream>>>(
      params);
  return LaunchStatus(stream);
}

}  // namespace voxserve::kernels::cuda
