#include "kernels/image/conv2d_boxes.cuh"
#include "kernels/image/conv2d_boxes_launch.cuh"

namespace voxserve::kernels::cuda {
namespace {

// A block with three cells a slot of inputs that computes all boxes.
template <int kWarpGroups, int kTileChannels, int kNumInputSlots, int kNumWeightSlots>
using Shape = BoxShape<kWarpGroups, kTileChannels, 3, kNumInputSlots, kNumWeightSlots, /*kIsListed=*/false>;

template <typename Shape, typename T>
cudaError_t LaunchAll(const Conv2dArguments<T>& arguments, const DeviceTraits& traits, cudaStream_t stream) {
  return LaunchBoxShape<Shape>(arguments, {}, ActiveBoxList(), traits, stream);
}

}  // namespace

template <typename T>
cudaError_t LaunchBoxes(const Conv2dArguments<T>& arguments, Conv2dTiling tiling, const DeviceTraits& traits,
                        cudaStream_t stream) {
  if (!ShareInputBoxes(arguments.geometry)) return cudaErrorInvalidValue;
  const bool is_narrow = !Fill(arguments.group_out_channels, 128);
  switch (tiling) {
    case Conv2dTiling::kThreeBoxes:
      return is_narrow ? LaunchAll<Shape<3, 64, 4, 12>>(arguments, traits, stream)
                       : LaunchAll<Shape<3, 128, 3, 8>>(arguments, traits, stream);
    case Conv2dTiling::kFourBoxes:
      return is_narrow ? LaunchAll<Shape<4, 64, 4, 7>>(arguments, traits, stream)
                       : LaunchAll<Shape<4, 128, 3, 6>>(arguments, traits, stream);
    case Conv2dTiling::kBoxes128By144:
      return LaunchAll<BoxChannelRowsShape<2, 9, 128, 4, 8>>(arguments, traits, stream);
    case Conv2dTiling::kBoxes64By288:
      return LaunchAll<BoxChannelRowsShape<2, 18, 64, 4, 7>>(arguments, traits, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

template cudaError_t LaunchBoxes(const Conv2dArguments<__half>&, Conv2dTiling, const DeviceTraits&, cudaStream_t);
template cudaError_t LaunchBoxes(const Conv2dArguments<__nv_bfloat16>&, Conv2dTiling, const DeviceTraits&,
                                 cudaStream_t);

}  // namespace voxserve::kernels::cuda
