#include "kernels/image/conv2d_boxes_launch.cuh"
#include "kernels/image/conv2d_listed_boxes.cuh"

namespace voxserve::kernels::cuda {
namespace {

// As many slots as fit. kCells: the cells that a slot of inputs serves.
template <int kCells>
using Wide = BoxShape<3, 128, kCells, /*kNumInputSlots=*/kCells == 3 ? 3 : 5,
                      /*kNumWeightSlots=*/kCells == 3 ? 8 : 5, /*kIsListed=*/true>;
template <int kCells>
using Narrow = BoxShape<4, 64, kCells, /*kNumInputSlots=*/kCells == 3 ? 4 : 5,
                        /*kNumWeightSlots=*/kCells == 3 ? 7 : 5, /*kIsListed=*/true>;

template <int kCells, typename T>
cudaError_t LaunchCells(const Conv2dArguments<T>& arguments, const ActiveBoxList& active, const DeviceTraits& traits,
                        cudaStream_t stream) {
  static_assert(Wide<kCells>::kBox == kWideImageBox && Narrow<kCells>::kBox == kNarrowImageBox);
  if (active.box == kWideImageBox) return LaunchBoxShape<Wide<kCells>>(arguments, {}, active, traits, stream);
  if (active.box == kNarrowImageBox) return LaunchBoxShape<Narrow<kCells>>(arguments, {}, active, traits, stream);
  return cudaErrorNotSupported;
}

}  // namespace

template <typename T>
cudaError_t LaunchListedBoxes(const Conv2dArguments<T>& arguments, const ActiveBoxList& active,
                              const DeviceTraits& traits, cudaStream_t stream) {
  if (!CanLeaveOutBoxes(arguments.geometry, arguments.group_in_channels, arguments.group_out_channels)) {
    return cudaErrorNotSupported;
  }
  return ShareInputBoxes(arguments.geometry) ? LaunchCells<3>(arguments, active, traits, stream)
                                             : LaunchCells<1>(arguments, active, traits, stream);
}

template cudaError_t LaunchListedBoxes(const Conv2dArguments<__half>&, const ActiveBoxList&, const DeviceTraits&,
                                       cudaStream_t);
template cudaError_t LaunchListedBoxes(const Conv2dArguments<__nv_bfloat16>&, const ActiveBoxList&, const DeviceTraits&,
                                       cudaStream_t);

}  // namespace voxserve::kernels::cuda
