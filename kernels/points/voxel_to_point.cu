#include <type_traits>

#include "kernels/core/launch.cuh"
#include "kernels/core/row_chunks.cuh"
#include "kernels/points/voxel_to_point.h"

namespace voxserve::kernels::cuda {
namespace {

template <typename Word>
struct VoxelToPointArguments {
  RowChunks rows;
  const int32_t* point_to_voxel;
  bool rows_are_points;
  const Word* in;
  int64_t in_pitch;  // words
  Word fill;
  Word* points;
};

// A thread copies one word of a point's row; a warp's words are neighbours.
template <typename Word>
__global__ void __launch_bounds__(kBlockThreads) VoxelToPointKernel(const VoxelToPointArguments<Word> arguments) {
  arguments.rows.ForEach([&](int64_t point, int32_t chunk) {
    const int32_t voxel = arguments.point_to_voxel[point];
    arguments.points[point * arguments.rows.chunks + chunk] =
        voxel < 0 ? arguments.fill
                  : arguments.in[(arguments.rows_are_points ? point : voxel) * arguments.in_pitch + chunk];
  });
}

int64_t RowBytes(const ConstRows& rows) { return rows.channels * SizeOf(rows.dtype); }

template <typename Word>
cudaError_t Launch(const VoxelToPointParams& params, Word fill, cudaStream_t stream) {
  const auto word_bytes = static_cast<int64_t>(sizeof(Word));
  const VoxelToPointArguments<Word> arguments{
      .rows = RowChunks(params.points.capacity, RowBytes(params.points) / word_bytes),
      .point_to_voxel = params.point_to_voxel,
      .rows_are_points = params.rows_are_points,
      .in = static_cast<const Word*>(params.rows.data),
      .in_pitch = params.rows.pitch_bytes() / word_bytes,
      .fill = fill,
      .points = static_cast<Word*>(params.points.data)};
  VoxelToPointKernel<<<arguments.rows.NumBlocks(), kBlockThreads, 0, stream>>>(arguments);
  return LaunchStatus(stream);
}

}  // namespace

cudaError_t VoxelToPoint(const VoxelToPointParams& params, cudaStream_t stream) {
  if (params.points.capacity == 0 || params.points.channels == 0) return cudaSuccess;
  const NvtxRange range("VoxelToPoint");
  if (params.rows.dtype == DType::kUint8) return Launch(params, static_cast<uint8_t>(params.fill_label), stream);
  const int64_t word_bytes =
      CommonAlignment().Add(params.rows).Add(params.points.data).Add(RowBytes(params.points)).bytes();
  if (params.rows.dtype == DType::kUint16) {
    if (word_bytes < 2) return cudaErrorInvalidValue;
    return Launch(params, static_cast<uint16_t>(params.fill_label), stream);
  }
  if (word_bytes == kVectorBytes) return Launch(params, uint4{}, stream);
  if (word_bytes >= 4) return Launch(params, uint32_t{0}, stream);
  if (word_bytes == 2) return Launch(params, uint16_t{0}, stream);
  return Launch(params, uint8_t{0}, stream);
}

}  // namespace voxserve::kernels::cuda
