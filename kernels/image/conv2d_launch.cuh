#pragma once

// LaunchTiles launches the kernel of kernels/image/conv2d.cuh. This header also has what the launchers of convolutions
// of images share. Only .cu files include it.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/core/launch.cuh"
#include "kernels/image/conv2d.cuh"
#include "kernels/image/conv2d_phase.h"

namespace voxserve::kernels::cuda {

inline constexpr int64_t kMaxGridAxis = 65535;  // limit of the grid's y and z

constexpr int32_t RoundUp(int32_t value, int32_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Returns true if tiles of `columns` channels need no more padding than tiles of half that width.
constexpr bool Fill(int32_t channels, int32_t columns) {
  return RoundUp(channels, columns) == RoundUp(channels, columns / 2);
}

struct DeviceTraits {
  int device = 0;
  int code_version = 0;  // CodeVersion(): __CUDA_ARCH__ / 10 of the code that runs on the device
  int num_sms = 0;
  int block_bytes = 0;  // shared memory that a block may use
};

// Reads the traits of the current device.
inline cudaError_t ReadTraits(DeviceTraits& traits) {
  VOXSERVE_RETURN_IF_CUDA(cudaGetDevice(&traits.device));
  traits.code_version = CodeVersion();
  VOXSERVE_RETURN_IF_CUDA(cudaDeviceGetAttribute(&traits.num_sms, cudaDevAttrMultiProcessorCount, traits.device));
  return cudaDeviceGetAttribute(&traits.block_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, traits.device);
}

// Returns the number of output positions of the largest phase, in all images.
template <typename T>
int64_t NumPositions(const Conv2dArguments<T>& arguments) {
  int64_t num_positions = arguments.num_images;
  for (size_t axis = 0; axis < 2; ++axis) {
    const int64_t out_size = axis == 0 ? arguments.out_rows : arguments.out_columns;
    num_positions *= (out_size - 1) / NumPhases(arguments.geometry, axis) + 1;
  }
  return num_positions;
}

// Returns cudaErrorInvalidValue if the grid would be too large. Product: one of the classes in conv2d_products.cuh.
template <typename T, typename Product, int kStages>
cudaError_t LaunchTiles(Conv2dArguments<T> arguments, const DeviceTraits& traits, cudaStream_t stream) {
  using Block = Conv2dBlock<Product, kStages>;
  static std::atomic<uint64_t> allowed = 0;
  const auto kernel = Conv2dKernel<T, Product, kStages>;
  VOXSERVE_RETURN_IF_CUDA(AllowSharedMemory(kernel, Block::kSharedBytes, traits.device, allowed));
  arguments.num_column_tiles = (arguments.group_out_channels - 1) / Product::kColumns + 1;
  const int64_t num_tiles = ((NumPositions(arguments) - 1) / Product::kRows + 1) * arguments.num_column_tiles;
  if (num_tiles > std::numeric_limits<int32_t>::max()) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(num_tiles), static_cast<unsigned>(arguments.geometry.groups),
                  static_cast<unsigned>(NumPhases(arguments.geometry, 0) * NumPhases(arguments.geometry, 1)));
  kernel<<<grid, Product::kThreads, Block::kSharedBytes, stream>>>(arguments);
  return LaunchStatus(stream);
}

}  // namespace voxserve::kernels::cuda
