#include "kernels/core/binary_search.cuh"
#include "kernels/core/floats.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_chunks.cuh"
#include "kernels/core/row_tiles.cuh"
#include "kernels/points/voxel_to_point.h"

namespace voxserve::kernels::cuda {
namespace {

// ---- Kernels -----------------------------------------------------------------------------------------------------

// A thread handles several neighbouring points, since the labels may lie in host memory, to which single bytes are
// slow.
constexpr int kLabelsAThread = 4;
// A block adds up the counts of this many samples; it adds points of later samples to num_filled one by one.
constexpr int32_t kSamplesABlock = 64;

// Adds the block's points that get fill_label from their row to num_filled. is_filled: which of the thread's points,
// of which `first` is the first one, do. num_filled may lie in host memory, to which an addition takes a microsecond,
// so the block adds up before. All threads of the block call it.
__device__ void CountFilled(const VoxelToPointParams& params, int64_t first, const bool (&is_filled)[kLabelsAThread]) {
  __shared__ uint32_t counts[kSamplesABlock];
  const auto sample_of = [&](int64_t point) {
    return RunOf(params.point_begin, params.num_samples, params.first_point + point);
  };
  const int32_t first_sample = sample_of(int64_t{blockIdx.x} * kBlockThreads * kLabelsAThread);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t i = thread; i < kSamplesABlock; i += kBlockThreads) counts[i] = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kLabelsAThread; ++i) {
    if (!is_filled[i]) continue;
    const int32_t sample = sample_of(first + i), at = sample - first_sample;
    atomicAdd(at < kSamplesABlock ? &counts[at] : &params.num_filled[sample], 1u);
  }
  __syncthreads();
  for (int32_t i = thread; i < kSamplesABlock; i += kBlockThreads) {
    if (counts[i] > 0) atomicAdd(&params.num_filled[first_sample + i], counts[i]);
  }
}

template <typename Label>
__global__ void __launch_bounds__(kBlockThreads)
    LabelsToPointsKernel(const __grid_constant__ VoxelToPointParams params, Label fill_label) {
  WaitForEarlierKernels();
  const int64_t num_points = NumRows(params.points.capacity, params.points.num_rows);
  const int64_t first = (int64_t{blockIdx.x} * kBlockThreads + threadIdx.x) * kLabelsAThread;
  Pack<Label, kLabelsAThread> labels;
  bool is_filled[kLabelsAThread], has_filled = false;
#pragma unroll
  for (int i = 0; i < kLabelsAThread; ++i) {
    const int64_t point = first + i;
    labels.values[i] = fill_label;
    is_filled[i] = false;
    const int32_t voxel = point < num_points ? params.point_to_voxel[point] : -1;
    if (voxel < 0) continue;
    labels.values[i] =
        static_cast<const Label*>(params.rows.data)[(params.rows_are_points ? point : voxel) * params.rows.pitch];
    is_filled[i] = labels.values[i] == fill_label;
    has_filled |= is_filled[i];
  }
  if (params.num_filled != nullptr && __syncthreads_or(has_filled) != 0) CountFilled(params, first, is_filled);
  auto* const to = static_cast<Label*>(params.points.data) + first;
  if (first + kLabelsAThread <= num_points && reinterpret_cast<uintptr_t>(to) % sizeof(labels) == 0) {
    *reinterpret_cast<Pack<Label, kLabelsAThread>*>(to) = labels;
    return;
  }
#pragma unroll
  for (int i = 0; i < kLabelsAThread; ++i) {
    if (first + i < num_points) to[i] = labels.values[i];
  }
}

struct ScoresArguments {
  RowChunks rows;
  const int32_t* point_to_voxel;
  bool rows_are_points;
  bool keeps_not_finite;
  int32_t channels;
  const float* in;
  int64_t in_pitch;
  float* points;
};

// A thread copies kValues of a point's row; the threads of a warp copy neighbouring values. Each thread checks whether
// the whole row is finite; its neighbours read the rest of the row anyway.
template <int kValues>
__global__ void __launch_bounds__(kBlockThreads) ScoresToPointsKernel(const ScoresArguments arguments) {
  arguments.rows.ForEach([&](int64_t point, int32_t chunk) {
    const int32_t voxel = arguments.point_to_voxel[point];
    const float* const row = arguments.in + (arguments.rows_are_points ? point : voxel) * arguments.in_pitch;
    bool is_copied = voxel >= 0;
    if (!arguments.keeps_not_finite) {
      for (int32_t c = 0; is_copied && c < arguments.channels; ++c) is_copied = IsFinite(row[c]);
    }
    Pack<float, kValues> scores{};
    if (is_copied) scores = LoadPack<kValues>(row + chunk * kValues);
    *reinterpret_cast<Pack<float, kValues>*>(arguments.points + point * arguments.channels + chunk * kValues) = scores;
  });
}

// ---- Launchers ---------------------------------------------------------------------------------------------------

template <typename Label>
cudaError_t LabelsToPoints(const VoxelToPointParams& params, cudaStream_t stream) {
  const unsigned num_blocks = NumBlocks((params.points.capacity + kLabelsAThread - 1) / kLabelsAThread);
  return LaunchEarly(LabelsToPointsKernel<Label>, num_blocks, kBlockThreads, 0, stream, params,
                     static_cast<Label>(params.fill_label));
}

template <int kValues>
cudaError_t ScoresToPoints(const VoxelToPointParams& params, cudaStream_t stream) {
  const ScoresArguments arguments{
      .rows = RowChunks(params.points.capacity, params.points.channels / kValues, params.points.num_rows),
      .point_to_voxel = params.point_to_voxel,
      .rows_are_points = params.rows_are_points,
      .keeps_not_finite = params.keeps_not_finite,
      .channels = params.points.channels,
      .in = static_cast<const float*>(params.rows.data),
      .in_pitch = params.rows.pitch,
      .points = static_cast<float*>(params.points.data)};
  ScoresToPointsKernel<kValues><<<arguments.rows.NumBlocks(), kBlockThreads, 0, stream>>>(arguments);
  return LaunchStatus(stream);
}

}  // namespace

cudaError_t VoxelToPoint(const VoxelToPointParams& params, cudaStream_t stream) {
  if (params.points.capacity == 0 || params.points.channels == 0) return cudaSuccess;
  const NvtxRange range("VoxelToPoint");
  switch (params.rows.dtype) {
    case DType::kUint8:
      return LabelsToPoints<uint8_t>(params, stream);
    case DType::kUint16:
      return LabelsToPoints<uint16_t>(params, stream);
    case DType::kFloat32:
      break;
    default:
      return cudaErrorInvalidValue;
  }
  const int64_t row_bytes = params.points.channels * SizeOf(DType::kFloat32);
  const int64_t aligned = CommonAlignment().Add(params.rows).Add(params.points.data).Add(row_bytes).bytes();
  constexpr int kVectorValues = kVectorBytes / sizeof(float);
  return aligned == kVectorBytes ? ScoresToPoints<kVectorValues>(params, stream) : ScoresToPoints<1>(params, stream);
}

}  // namespace voxserve::kernels::cuda
