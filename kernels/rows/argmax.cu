#include <cuda/std/limits>
#include <type_traits>

#include "kernels/core/floats.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_tiles.cuh"
#include "kernels/rows/argmax.h"

namespace voxserve::kernels::cuda {
namespace {

// The number of neighbouring threads that share a row. Eight threads read a whole memory sector of float32 values.
constexpr int kLanes = 8;
constexpr int kRowsPerBlock = kBlockThreads / kLanes;
static_assert(kWarpThreads % kLanes == 0 && kBlockThreads % kWarpThreads == 0);

// No thread leaves before the end, since the warp's shuffles need all of them.
template <typename T, typename Label>
__global__ void __launch_bounds__(kBlockThreads)
    ArgmaxKernel(const __grid_constant__ ArgmaxParams params, Label not_finite_label, Label* labels) {
  const auto* const in = static_cast<const T*>(params.in.data);
  const int64_t num_rows = NumRows(params.in.capacity, params.in.num_rows);
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % kLanes;
  const int64_t row = int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / kLanes;
  float best_value = -::cuda::std::numeric_limits<float>::infinity();
  int32_t best = 0;
  bool is_finite = true;
  if (row < num_rows) {
    for (int32_t c = lane; c < params.in.channels; c += kLanes) {
      const float value = ToFloat(in[row * params.in.pitch + c]);
      is_finite = is_finite && IsFinite(value);
      if (value > best_value) {
        best_value = value;
        best = c;
      }
    }
  }
  const auto first_lane = static_cast<int32_t>(threadIdx.x) % kWarpThreads / kLanes * kLanes;
  const unsigned not_finite = __ballot_sync(~0u, !is_finite) >> first_lane & ((1u << kLanes) - 1);
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    const float other_value = __shfl_xor_sync(0xffffffffu, best_value, distance);
    const int32_t other = __shfl_xor_sync(0xffffffffu, best, distance);
    if (other_value > best_value || (other_value == best_value && other < best)) {
      best_value = other_value;
      best = other;
    }
  }
  if (lane == 0 && row < num_rows) labels[row] = not_finite != 0 ? not_finite_label : static_cast<Label>(best);
}

}  // namespace

cudaError_t Argmax(const ArgmaxParams& params, cudaStream_t stream) {
  if (params.in.capacity == 0) return cudaSuccess;
  const NvtxRange range("Argmax");
  return VisitFeatureType(params.in.dtype, [&](auto value) {
    using T = decltype(value);
    const auto num_blocks = static_cast<unsigned>((params.in.capacity + kRowsPerBlock - 1) / kRowsPerBlock);
    const auto launch = [&](auto* labels) {
      using Label = std::remove_pointer_t<decltype(labels)>;
      ArgmaxKernel<T>
          <<<num_blocks, kBlockThreads, 0, stream>>>(params, static_cast<Label>(params.not_finite_label), labels);
    };
    if (params.labels.dtype == DType::kUint8) {
      launch(static_cast<uint8_t*>(params.labels.data));
    } else {
      launch(static_cast<uint16_t*>(params.labels.data));
    }
    return LaunchStatus(stream);
  });
}

}  // namespace voxserve::kernels::cuda
