#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/core/device_code.h"
#include "kernels/image/conv2d_boxes_launch.cuh"
#include "kernels/image/conv2d_im2col_launch.cuh"
#include "kernels/image/int8/int8_im2col.h"
#include "kernels/image/int8/int8_im2col_positions.cuh"
#include "kernels/image/int8/int8_im2col_weights.h"

namespace voxserve::kernels::cuda {
namespace {

constexpr TileShape kTileShapes[] = {{Conv2dTiling::kTwoIm2col, 128, 0, 1},
                                     {Conv2dTiling::kThreeIm2col, 192, 0, 1},
                                     {Conv2dTiling::kFourIm2col, 256, 0, 1},
                                     {Conv2dTiling::kThreeBoxes, 192, 0, 1, {12, kImageBoxColumns}},
                                     {Conv2dTiling::kFourBoxes, 256, 0, 1, {16, kImageBoxColumns}}};

// Fitted to the times of `conv2d_cuda_bench int8` on an H200.
constexpr TileCost kCost{.products_a_cycle = 1600, .sums_a_cycle = 12, .bytes_a_cycle = 48, .start_cycles = 3000};
constexpr TileCost kBoxCost{.products_a_cycle = 2000, .sums_a_cycle = 12, .bytes_a_cycle = 48, .start_cycles = 3000};

template <int kWarpGroups, int kTileChannels, int kWideStages>
using WideRows = Int8PositionRowsShape<kWarpGroups, kTileChannels, kWideStages, 128>;
template <int kWarpGroups, int kTileChannels, int kWideStages>
using NarrowRows = Int8PositionRowsShape<kWarpGroups, kTileChannels, kWideStages, 64>;

// Launches a tiling of boxes, with chunks of kBytes.
template <int kBytes, typename T>
cudaError_t LaunchInt8Boxes(const Conv2dArguments<T>& conv, const Im2colOutputs<T>& outputs, Conv2dTiling tiling,
                            const DeviceTraits& traits, cudaStream_t stream) {
  if (!ShareInputBoxes(conv.geometry)) return cudaErrorInvalidValue;
  const auto launch = [&]<typename Shape>() {
    return LaunchBoxShape<Shape>(conv, outputs, ActiveBoxList(), traits, stream);
  };
  const bool is_narrow = !Fill(conv.group_out_channels, 128);
  if (tiling == Conv2dTiling::kThreeBoxes) {
    return is_narrow ? launch.template operator()<Int8BoxShape<3, 64, 4, 12, kBytes>>()
                     : launch.template operator()<Int8BoxShape<3, 128, 3, 8, kBytes>>();
  }
  return is_narrow ? launch.template operator()<Int8BoxShape<4, 64, 4, 9, kBytes>>()
                   : launch.template operator()<Int8BoxShape<4, 128, 3, 7, kBytes>>();
}

bool IsServed(const Int8Im2colParams& params) {
  const ConstRows& residual = params.epilogue.residual;
  const auto is_stored = [](DType dtype) {
    return dtype == DType::kUint8 || dtype == DType::kInt8 || dtype == DType::kFloat16 || dtype == DType::kFloat32;
  };
  return (params.in.dtype == DType::kUint8 || params.in.dtype == DType::kInt8) && is_stored(params.out.dtype) &&
         (residual.data == nullptr || is_stored(residual.dtype)) && params.epilogue.multiplier != nullptr &&
         CommonAlignment().Add(params.in).bytes() == kVectorBytes &&
         IsForInt8Im2col(params.geometry, params.in_rows, params.in_columns, params.in.channels);
}

template <typename T>
Conv2dArguments<T> ArgumentsOf(const Int8Im2colParams& params, const Int8Im2colWeights& weights) {
  return {.geometry = params.geometry,
          .num_images = params.num_images,
          .in_rows = params.in_rows,
          .in_columns = params.in_columns,
          .out_rows = static_cast<int32_t>(params.geometry.OutSize(0, params.in_rows)),
          .out_columns = static_cast<int32_t>(params.geometry.OutSize(1, params.in_columns)),
          .in = static_cast<const T*>(params.in.data),
          .in_pitch = params.in.pitch,
          .group_in_channels = params.in.channels,
          .padded_in_channels = params.in.channels,
          .in_vectors = true,
          .weights = static_cast<const unsigned char*>(params.weights),
          .num_chunks = weights.num_chunks,
          .group_out_channels = params.out.channels,
          .padded_out_channels = weights.padded_out_channels,
          .num_column_tiles = 0,  // the launchers set it
          // The kernel stores by Int8Im2colOutputs instead.
          .out = nullptr,
          .out_pitch = 0,
          .is_out_float = false,
          .out_vectors = false,
          .epilogue = TypedEpilogue<T, float>(Epilogue())};
}

template <typename T>
cudaError_t Launch(const Int8Im2colParams& params, const DeviceTraits& traits, cudaStream_t stream) {
  const Int8Im2colWeights weights(params.geometry, params.in.channels, params.out.channels);
  const Conv2dArguments<T> arguments = ArgumentsOf<T>(params, weights);
  // Rows of the output are counted in 32 bits too.
  const int64_t out_positions = params.num_images * arguments.out_rows * arguments.out_columns;
  if (!HasCountablePositions(arguments) || out_positions > std::numeric_limits<int32_t>::max()) {
    return cudaErrorNotSupported;
  }
  Int8Epilogue epilogue = params.epilogue;
  if (SizeOf(params.out.dtype) > 1) epilogue.inverse_scale = nullptr;  // the kernel multiplies floats by it too
  Im2colOutputs<T> outputs{{.out = params.out.data,
                            .out_pitch = params.out.pitch,
                            .out_channels = params.out.channels,
                            .out_dtype = params.out.dtype,
                            .has_out_vectors = HasOutVectors(params.out, epilogue),
                            .epilogue = TypedInt8Epilogue(epilogue)}};
  Conv2dTiling tiling = params.tiling;
  const bool share_boxes = ShareInputBoxes(params.geometry);
  if (tiling == Conv2dTiling::kChosen) {
    tiling = CheapestTiling(kTileShapes, arguments, [&](const TileShape& shape, int64_t columns, int64_t num_tiles) {
      const bool is_box = shape.box.rows > 0;
      if (is_box && !share_boxes) return std::numeric_limits<int64_t>::max();
      return TilesCycles(is_box ? kBoxCost : kCost, {shape.rows, CopiedRows(shape), columns, weights.row_bytes},
                         weights.num_chunks, num_tiles, traits);
    });
  }
  const bool is_wide = weights.row_bytes == 128;
  if (tiling == Conv2dTiling::kThreeBoxes || tiling == Conv2dTiling::kFourBoxes) {
    return is_wide ? LaunchInt8Boxes<128>(arguments, outputs, tiling, traits, stream)
                   : LaunchInt8Boxes<64>(arguments, outputs, tiling, traits, stream);
  }
  return is_wide ? LaunchPositionRows<WideRows>(arguments, outputs, tiling, traits, stream)
                 : LaunchPositionRows<NarrowRows>(arguments, outputs, tiling, traits, stream);
}

}  // namespace

bool SupportsInt8Im2col() { return CodeVersion() == kWarpGroupCode; }

cudaError_t Int8Im2col(const Int8Im2colParams& params, cudaStream_t stream) {
  const int64_t out_rows = params.geometry.OutSize(0, params.in_rows),
                out_columns = params.geometry.OutSize(1, params.in_columns);
  if (!IsServed(params) || !SupportsInt8Im2col() || out_rows > std::numeric_limits<int32_t>::max() ||
      out_columns > std::numeric_limits<int32_t>::max()) {
    return cudaErrorInvalidValue;
  }
  if (params.num_images <= 0 || params.out.channels == 0) return cudaSuccess;
  const NvtxRange range("Int8Im2col");
  DeviceTraits traits;
  VOXSERVE_RETURN_IF_CUDA(ReadTraits(traits));
  return params.in.dtype == DType::kUint8 ? Launch<uint8_t>(params, traits, stream)
                                          : Launch<int8_t>(params, traits, stream);
}

}  // namespace voxserve::kernels::cuda
