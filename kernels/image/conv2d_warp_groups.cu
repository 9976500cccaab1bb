#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/image/conv2d_tile_choice.cuh"
#include "kernels/image/conv2d_warp_groups.cuh"

namespace voxserve::kernels::cuda {
namespace {

// The shared memory of a Hopper SM that a block can use for stages, in bytes. The rest is for the table of positions
// and for the system.
constexpr int kStageBytesOfSm = 222000;

// A block that has an SM for itself has as many stages as fit, at most six. With only three stages, a product must be
// done before the next begins; otherwise only one stage could be loading.
template <typename T, int kWarpGroups, int kColumns>
struct WholeSm {
  static constexpr int kStages = std::min(
      6, kStageBytesOfSm / (WarpGroupProducts<T, kWarpGroups, kColumns, 1, 0>::kRows + kColumns) / kStageRowBytes);
  using Product = WarpGroupProducts<T, kWarpGroups, kColumns, 1, kStages == 3 ? 0 : 1>;
  using Block = Conv2dBlock<Product, kStages>;
  static constexpr int kHopperBlockBytes = 227 << 10;
  static_assert(kStages >= 3 && Block::kSharedBytes + Block::kTableBytes <= kHopperBlockBytes);
};

template <int kWarpGroups, int kColumns, typename T>
cudaError_t LaunchWholeSm(const Conv2dArguments<T>& arguments, const DeviceTraits& traits, cudaStream_t stream) {
  using Sm = WholeSm<T, kWarpGroups, kColumns>;
  return LaunchTiles<T, typename Sm::Product, Sm::kStages>(arguments, traits, stream);
}

template <int kColumns, typename T>
cudaError_t LaunchColumns(const Conv2dArguments<T>& arguments, Conv2dTiling tiling, const DeviceTraits& traits,
                          cudaStream_t stream) {
  switch (tiling) {
    case Conv2dTiling::kThreeWarpGroups:
      return LaunchWholeSm<3, kColumns>(arguments, traits, stream);
    case Conv2dTiling::kFourWarpGroups:
      return LaunchWholeSm<4, kColumns>(arguments, traits, stream);
    case Conv2dTiling::kFiveWarpGroups:
      return LaunchWholeSm<5, kColumns>(arguments, traits, stream);
    default:  // two blocks per SM
      break;
  }
  constexpr int kStages = kColumns == 64 ? 4 : 3;
  return LaunchTiles<T, WarpGroupProducts<T, 2, kColumns, 2, kStages == 3 ? 0 : 1>, kStages>(arguments, traits, stream);
}

constexpr TileShape kTileShapes[] = {
    {Conv2dTiling::kTwoWarpGroups, 128, 0, 2},    {Conv2dTiling::kThreeWarpGroups, 192, 0, 1},
    {Conv2dTiling::kFourWarpGroups, 256, 0, 1},   {Conv2dTiling::kFiveWarpGroups, 320, 0, 1},
    {Conv2dTiling::kWideWarpGroups, 128, 256, 1},
};

// A cost model of warp groups, in units of the time to load one row of a stage. Per chunk, an SM takes kRowsOfAChunk
// plus all rows of its blocks. Per tile, it takes kRowsOfATile for the beginning and the end; blocks that share an SM
// share this time, since they overlap. The constants were fitted to measurements on an H200. Other Hopper GPUs mainly
// differ in the unit.
constexpr int64_t kRowsOfAChunk = 256;
constexpr int64_t kRowsOfATile = 3200;
// With fewer chunks, the beginning and the end of a tile take most of the time, and the model is poor. Two blocks then
// share an SM (kTwoWarpGroups).
constexpr int32_t kMinChunksOfWholeSm = 8;

}  // namespace

template <typename T>
Conv2dTiling ChooseWarpGroups(const Conv2dArguments<T>& arguments, const DeviceTraits& traits) {
  const int32_t cells = MaxPhaseCells(arguments.geometry, 0) * MaxPhaseCells(arguments.geometry, 1);
  const int64_t num_chunks = (int64_t{cells} * arguments.padded_in_channels - 1) / kChunkValues<T> + 1;
  if (num_chunks < kMinChunksOfWholeSm) return Conv2dTiling::kTwoWarpGroups;
  return CheapestTiling(kTileShapes, arguments, [&](const TileShape& shape, int64_t columns, int64_t num_tiles) {
    const auto time = [&](int64_t blocks) {
      return kRowsOfATile / shape.blocks_an_sm + num_chunks * (kRowsOfAChunk + blocks * (shape.rows + columns));
    };
    const int64_t at_once = int64_t{traits.num_sms} * shape.blocks_an_sm;
    const int64_t rest = num_tiles % at_once;
    return num_tiles / at_once * time(shape.blocks_an_sm) + (rest > 0 ? time((rest - 1) / traits.num_sms + 1) : 0);
  });
}

template <typename T>
cudaError_t LaunchWarpGroups(const Conv2dArguments<T>& arguments, Conv2dTiling tiling, const DeviceTraits& traits,
                             cudaStream_t stream) {
  if (tiling == Conv2dTiling::kWideWarpGroups) {
    using Wide = WarpGroupProducts<T, 2, 256, 1, 1>;
    return LaunchTiles<T, Wide, 4>(arguments, traits, stream);
  }
  return Fill(arguments.group_out_channels, 128) ? LaunchColumns<128>(arguments, tiling, traits, stream)
                                                 : LaunchColumns<64>(arguments, tiling, traits, stream);
}

template Conv2dTiling ChooseWarpGroups(const Conv2dArguments<float>&, const DeviceTraits&);
template Conv2dTiling ChooseWarpGroups(const Conv2dArguments<__half>&, const DeviceTraits&);
template Conv2dTiling ChooseWarpGroups(const Conv2dArguments<__nv_bfloat16>&, const DeviceTraits&);
template cudaError_t LaunchWarpGroups(const Conv2dArguments<__half>&, Conv2dTiling, const DeviceTraits&, cudaStream_t);
template cudaError_t LaunchWarpGroups(const Conv2dArguments<__nv_bfloat16>&, Conv2dTiling, const DeviceTraits&,
                                      cudaStream_t);

}  // namespace voxserve::kernels::cuda
