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

// Calls visit(shape) for each shape.
template <typename Visitor>
void ForEachLinearShape(const Visitor& visit) {
  visit(LinearRowsShape<64, 4, 1, 64, 1>{});
  visit(LinearRowsShape<64, 3, 2, 32, 1>{});
  visit(LinearRowsShape<96, 4, 1, 32, 2>{});
  visit(LinearRowsShape<128, 4, 1, 32, 1>{});
  visit(LinearRowsShape<128, 3, 1, 32, 4>{});
  visit(LinearRowsShape<128, 3, 1, 128, 1>{});
  visit(LinearRowsShape<128, 2, 1, 128, 1>{});
  visit(LinearRowsShape<160, 3, 1, 32, 2>{});
  visit(LinearRowsShape<192, 3, 1, 32, 1>{});
  visit(LinearRowsShape<192, 2, 1, 96, 1>{});
  visit(LinearRowsShape<256, 2, 1, 32, 4>{});
  visit(LinearRowsShape<128, 3, 1, 32, 4, true>{});
}

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
      arguments.num_column_tiles > NumSms() || Shape::kMayRotate != (gemm.angles != nullptr)) {
    return cudaErrorNotSupported;
  }
  if (!FillMap<T, Shape>(params.operands.in, arguments.in)) return cudaErrorNotSupported;
  const int64_t row_tiles = (gemm.tiles.out_capacity + Shape::kRows - 1) / Shape::kRows;
  return LaunchResident(LinearRowsKernel<T, Shape>, arguments, Shape::kThreads, Shape::kSharedBytes,
                        /*waits_itself=*/true, row_tiles * arguments.num_column_tiles, resident, stream);
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

}  // namespace

int NumLinearRowsShapes() {
  int count = 0;
  ForEachLinearShape([&](auto) { ++count; });
  return count;
}

LinearRowsShapeSizes SizesOfLinearRowsShape(int number) {
  LinearRowsShapeSizes sizes{};
  int i = 0;
  ForEachLinearShape([&](auto shape) {
    using Shape = decltype(shape);
    if (i++ == number) {
      sizes = {Shape::kColumns,     Shape::kGroups,     Shape::kBlocksAnSm,
               Shape::kPartColumns, Shape::kEarlyParts, Shape::kMayRotate};
    }
  });
  return sizes;
}

cudaError_t LinearRowsOfShape(const ImplicitGemmParams& params, int number, cudaStream_t stream) {
  if (CodeVersion() != kWarpGroupCode || !IsLinear(params)) return cudaErrorNotSupported;
  cudaError_t status = cudaErrorNotSupported;
  int i = 0;
  ForEachLinearShape([&](auto shape) {
    using Shape = decltype(shape);
    if (i++ != number) return;
    status = params.operands.in.dtype == DType::kFloat16 ? LaunchLinearRows<__half, Shape>(params, stream)
                                                         : LaunchLinearRows<__nv_bfloat16, Shape>(params, stream);
  });
  return status;
}

}  // namespace voxserve::kernels::cuda
