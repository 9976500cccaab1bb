#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>

#include "kernels/image/conv2d_boxes.cuh"
#include "kernels/image/conv2d_im2col.cuh"
#include "kernels/image/conv2d_im2col_channels.cuh"
#include "kernels/image/conv2d_im2col_launch.cuh"
#include "kernels/image/conv2d_im2col_positions.cuh"

namespace voxserve::kernels::cuda {
namespace {

constexpr int32_t kChunkChannels = kStageRowBytes / 2;

constexpr TileShape kTileShapes[] = {
    {Conv2dTiling::kTwoIm2col, 128, 0, 1},
    {Conv2dTiling::kThreeIm2col, 192, 0, 1},
    {Conv2dTiling::kFourIm2col, 256, 0, 1},
    {Conv2dTiling::kIm2col128By136, 136, 128, 1},
    {Conv2dTiling::kIm2col64By272, 272, 64, 1},
    {Conv2dTiling::kThreeBoxes, 192, 0, 1, {12, kImageBoxColumns}},
    {Conv2dTiling::kFourBoxes, 256, 0, 1, {16, kImageBoxColumns}},
    {Conv2dTiling::kBoxes128By144, 144, 128, 1, {9, kImageBoxColumns}},
    {Conv2dTiling::kBoxes64By288, 288, 64, 1, {18, kImageBoxColumns}},
};

constexpr TileCost CostOf(int64_t products_a_cycle) {
  return {.products_a_cycle = products_a_cycle, .sums_a_cycle = 8, .bytes_a_cycle = 56, .start_cycles = 1500};
}

// Tilings without a number of columns have positions as the rows of the products; the others have channels.
constexpr TileCost CostOf(const TileShape& shape) {
  const bool has_position_rows = shape.columns == 0;
  if (shape.box.rows > 0) return CostOf(has_position_rows ? 2100 : 1800);
  return CostOf(has_position_rows ? 1900 : 1300);
}

static_assert(std::all_of(std::begin(kTileShapes), std::end(kTileShapes), [](const TileShape& shape) {
  return shape.box.rows == 0 || shape.rows == shape.box.rows * shape.box.columns;
}));

}  // namespace

template <typename T>
bool IsForIm2col(const Conv2dArguments<T>& arguments) {
  return arguments.in_vectors && arguments.out_vectors && arguments.group_in_channels % kChunkChannels == 0 &&
         IsWithinIm2colLimits(arguments.geometry, arguments.in_rows, arguments.in_columns) &&
         HasCountablePositions(arguments);
}

template <typename T>
Conv2dTiling ChooseIm2col(const Conv2dArguments<T>& arguments, const DeviceTraits& traits) {
  const int64_t cells = int64_t{MaxPhaseCells(arguments.geometry, 0)} * MaxPhaseCells(arguments.geometry, 1);
  const int64_t num_chunks = cells * arguments.group_in_channels / kChunkChannels;
  const bool share_boxes = ShareInputBoxes(arguments.geometry);
  return CheapestTiling(kTileShapes, arguments, [&](const TileShape& shape, int64_t columns, int64_t num_tiles) {
    if (shape.box.rows > 0 && !share_boxes) return std::numeric_limits<int64_t>::max();
    return TilesCycles(CostOf(shape), {shape.rows, CopiedRows(shape), columns, kStageRowBytes}, num_chunks, num_tiles,
                       traits);
  });
}

template <typename T>
cudaError_t LaunchIm2col(const Conv2dArguments<T>& arguments, Conv2dTiling tiling, const DeviceTraits& traits,
                         cudaStream_t stream) {
  switch (tiling) {
    case Conv2dTiling::kIm2col128By136:
      return LaunchIm2colShape<ChannelRowsShape<128, 136, 6>>(arguments, {}, traits, stream);
    case Conv2dTiling::kIm2col64By272:
      return LaunchIm2colShape<ChannelRowsShape<64, 272, 5>>(arguments, {}, traits, stream);
    case Conv2dTiling::kThreeBoxes:
    case Conv2dTiling::kFourBoxes:
    case Conv2dTiling::kBoxes128By144:
    case Conv2dTiling::kBoxes64By288:
      return LaunchBoxes(arguments, tiling, traits, stream);
    default:
      return LaunchPositionRows<PositionRowsShape>(arguments, {}, tiling, traits, stream);
  }
}

template bool IsForIm2col(const Conv2dArguments<__half>&);
template bool IsForIm2col(const Conv2dArguments<__nv_bfloat16>&);
template Conv2dTiling ChooseIm2col(const Conv2dArguments<__half>&, const DeviceTraits&);
template Conv2dTiling ChooseIm2col(const Conv2dArguments<__nv_bfloat16>&, const DeviceTraits&);
template cudaError_t LaunchIm2col(const Conv2dArguments<__half>&, Conv2dTiling, const DeviceTraits&, cudaStream_t);
template cudaError_t LaunchIm2col(const Conv2dArguments<__nv_bfloat16>&, Conv2dTiling, const DeviceTraits&,
                                  cudaStream_t);

}  // namespace voxserve::kernels::cuda
