#include <cudaTypedefs.h>

#include <atomic>
#include <cstdint>

#include "kernels/conv/implicit_gemm/launch_resident.cuh"
#include "kernels/conv/implicit_gemm/linear_rows.cuh"
#include "kernels/conv/implicit_gemm/linear_rows.h"
#include "kernels/core/device_code.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/tensor_map.cuh"

namespace voxserve::kernels::cuda {
namespace {

template <bool kMayRotate>
using NarrowShape = LinearRowsShape<64, 4, kMayRotate>;
template <bool kMayRotate>
using WideShape = LinearRowsShape<128, 2, kMayRotate>;
constexpr int kNarrow = 0, kWide = 1;

// Describes the inputs. Returns false if the driver refuses the description.
template <typename T, typename Shape>
bool FillMap(const ConstRows& in, CUtensorMap& map) {
  static const auto encode = FindMapFunction<PFN_cuTensorMapEncodeTiled_v12000>("cuTensorMapEncodeTiled");
  if (encode == nullptr) return false;
  // Sizes go from the innermost axis outwards: channels, rows.
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(in.channels), static_cast<cuuint64_t>(in.capacity)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(in.pitch_bytes())};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(Shape::kStageRowBytes / sizeof(T)), Shape::kRows};
  const cuuint32_t steps[] = {1, 1};
  return encode(&map, kTensorMapType<T>, 2, const_cast<void*>(in.data), sizes, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <typename T, typename Shape>
cudaError_t LaunchLinearRows(const ImplicitGemmParams& params, cudaStream_t stream) {
  static std::atomic<int> resident[kMaxDevices] = {};
  LinearRowsArguments<T> arguments{.in = {},
                                   .gemm = ImplicitGemmArguments<T>(params, params.operands.epilogue),
                                   .num_stages = 0,
                                   .num_column_tiles = 0};
  const ImplicitGemmArguments<T>& gemm = arguments.gemm;
  const int32_t num_slices = gemm.axis.num_slices;
  constexpr int64_t kFewestStages = 2;
  arguments.num_stages = static_cast<int32_t>(Shape::NumStages(num_slices));
  arguments.num_column_tiles = (gemm.out_channels + Shape::kColumns - 1) / Shape::kColumns;
  if (arguments.num_stages < kFewestStages || num_slices > Shape::kMaxChunks * kSlicesAStage ||
      arguments.num_column_tiles > NumSms()) {
    return cudaErrorNotSupported;
  }
  if (!FillMap<T, Shape>(params.operands.in, arguments.in)) return cudaErrorNotSupported;
  const int64_t row_tiles = (gemm.tiles.out_capacity + Shape::kRows - 1) / Shape::kRows;
  return LaunchResident(LinearRowsKernel<T, Shape>, arguments, Shape::kThreads, Shape::kSharedBytes,
                        /*waits_itself=*/true, row_tiles * arguments.num_column_tiles, resident, stream);
}

template <typename T>
cudaError_t LaunchLinearRows(const ImplicitGemmParams& params, int shape, cudaStream_t stream) {
  if (params.rotation.angles.data != nullptr) {
    return shape == kWide ? LaunchLinearRows<T, WideShape<true>>(params, stream)
                          : LaunchLinearRows<T, NarrowShape<true>>(params, stream);
  }
  return shape == kWide ? LaunchLinearRows<T, WideShape<false>>(params, stream)
                        : LaunchLinearRows<T, NarrowShape<false>>(params, stream);
}

// Returns true if the params ask for no more than the kernel has.
bool IsLinear(const ImplicitGemmParams& params) {
  const TilesView& tiles = params.tiles;
  const ConvOperands& operands = params.operands;
  const ConstRows& in = operands.in;
  return tiles.num_offsets == 1 && tiles.out_rows == nullptr && tiles.masks == nullptr && tiles.in_rows == nullptr &&
         SizeOf(in.dtype) == 2 && in.channels > 0 && in.capacity > 0 && operands.out.channels > 0 &&
         CommonAlignment().Add(in).bytes() == kVectorBytes && params.labels.data == nullptr &&
         operands.shortcut_in.data == nullptr && params.block.rows == 0;
}

// Returns the shape for a layer. Blocks of 64 columns are about as fast as others, or faster (linear_cuda_bench).
// Long rows that begin within cache lines are the exception: each read of them takes the L2 cache longer, and wide
// blocks read them half as often.
int ShapeFor(const ImplicitGemmParams& params) {
  constexpr int64_t kCacheLineBytes = 128;
  constexpr int32_t kLongRow = 192;  // channels
  const ConstRows& in = params.operands.in;
  const bool begins_within_lines = in.pitch_bytes() % kCacheLineBytes != 0;
  return begins_within_lines && in.channels > kLongRow ? kWide : kNarrow;
}

}  // namespace

cudaError_t LinearRows(const ImplicitGemmParams& params, cudaStream_t stream) {
  const int shape = ShapeFor(params);
  const cudaError_t status = LinearRowsOfShape(params, shape, stream);
  // The weights of fewer columns may fit shared memory.
  return status == cudaErrorNotSupported && shape == kWide ? LinearRowsOfShape(params, kNarrow, stream) : status;
}

LinearRowsShapeSizes SizesOfLinearRowsShape(int number) {
  constexpr auto kSizes = [](auto shape) { return LinearRowsShapeSizes{shape.kColumns, shape.kGroups}; };
  return number == kWide ? kSizes(WideShape<false>{}) : kSizes(NarrowShape<false>{});
}

cudaError_t LinearRowsOfShape(const ImplicitGemmParams& params, int number, cudaStream_t stream) {
  if (CodeVersion() != kWarpGroupCode || !IsLinear(params)) return cudaErrorNotSupported;
  return params.operands.in.dtype == DType::kFloat16 ? LaunchLinearRows<__half>(params, number, stream)
                                                     : LaunchLinearRows<__nv_bfloat16>(params, number, stream);
}

}  // namespace voxserve::kernels::cuda
