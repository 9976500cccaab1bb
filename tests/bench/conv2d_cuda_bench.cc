// Times the image convolutions of CenterPoint's, SECOND's and DSVT's networks on a GPU in float16. For each tiling it
// prints the device's own time and its rate of useful operations.
//
//   conv2d_cuda_bench [images a convolution, default 1]
//
// conv2d_peer_bench.py prints the same table for PyTorch.

#include <cuda_fp16.h>

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <vector>

#include "kernels/image/conv2d.h"
#include "tests/bench/event_timer.h"
#include "tests/support/test_device.h"

namespace voxserve::bench {
namespace {

using kernels::Conv2dGeometry;
using kernels::Conv2dTiling;
using kernels::DType;
using support::Device;
using support::DeviceArray;

constexpr int kNumRuns = 50;

struct Layer {
  const char* name;
  int32_t size;  // rows and columns of the input
  int32_t in_channels, out_channels;
  Conv2dGeometry geometry;
};

constexpr Conv2dGeometry kThree = {.kernel_size = {3, 3}, .padding = {1, 1}};
constexpr Conv2dGeometry kThreeHalving = {.kernel_size = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
constexpr Conv2dGeometry kDoubling = {.kernel_size = {2, 2}, .stride = {2, 2}, .is_transposed = true};

// conv2d_peer_bench.py must have the same list.
constexpr Layer kLayers[] = {
    {"3x3", 188, 256, 128, kThree},
    {"3x3", 188, 128, 128, kThree},
    {"3x3", 180, 256, 128, kThree},
    {"3x3", 180, 128, 128, kThree},
    {"3x3 s2", 188, 128, 256, kThreeHalving},
    {"3x3 s2", 180, 128, 256, kThreeHalving},
    {"3x3", 94, 256, 256, kThree},
    {"3x3", 90, 256, 256, kThree},
    {"3x3", 188, 256, 256, kThree},
    {"1x1", 188, 128, 256, {}},
    {"1x1", 180, 256, 256, {}},
    {"transposed 2x2 s2", 94, 256, 256, kDoubling},
    {"transposed 2x2 s2", 90, 256, 256, kDoubling},
    {"3x3", 188, 512, 64, kThree},
    {"3x3", 180, 512, 64, kThree},
    {"3x3", 180, 64, 64, kThree},
    {"3x3", 180, 64, 2304, kThree},
    {"3x3", 468, 192, 128, kThree},
    {"3x3", 468, 128, 128, kThree},
    {"3x3", 468, 384, 64, kThree},
    {"3x3", 468, 64, 384, kThree},
    {"3x3 s2", 468, 128, 128, kThreeHalving},
    {"3x3", 234, 128, 128, kThree},
    {"3x3 s2", 234, 128, 256, kThreeHalving},
    {"3x3", 117, 256, 256, kThree},
    {"3x3 in 36 groups", 180, 2304, 108, {.kernel_size = {3, 3}, .padding = {1, 1}, .groups = 36}},
    {"3x3 in 6 groups", 188, 384, 18, {.kernel_size = {3, 3}, .padding = {1, 1}, .groups = 6}},
};

constexpr struct {
  const char* name;
  Conv2dTiling tiling;
} kTilings[] = {
    {"chosen", Conv2dTiling::kChosen},           {"warps", Conv2dTiling::kWarps},
    {"few outputs", Conv2dTiling::kFewOutputs},  {"2 warp groups", Conv2dTiling::kTwoWarpGroups},
    {"3", Conv2dTiling::kThreeWarpGroups},       {"4", Conv2dTiling::kFourWarpGroups},
    {"5", Conv2dTiling::kFiveWarpGroups},        {"2 wide", Conv2dTiling::kWideWarpGroups},
    {"2 im2col", Conv2dTiling::kTwoIm2col},      {"3 im2col", Conv2dTiling::kThreeIm2col},
    {"4 im2col", Conv2dTiling::kFourIm2col},     {"128 by 136", Conv2dTiling::kIm2col128By136},
    {"64 by 272", Conv2dTiling::kIm2col64By272},
};

// Returns random values in [-1, 1). A GPU's power, and therefore its clock, depends on the values.
DeviceArray<__half> RandomHalfs(size_t count) {
  std::vector<__half> values(count);
  uint32_t state = 1;
  for (__half& value : values) {
    state = state * 1664525u + 1013904223u;
    value = __float2half(static_cast<float>(state >> 8) / static_cast<float>(1u << 23) - 1.0f);
  }
  return DeviceArray<__half>(Device::kCuda, values);
}

void PrintLayer(const Layer& layer, int64_t num_images) {
  const Conv2dGeometry& geometry = layer.geometry;
  const int64_t in_positions = num_images * layer.size * layer.size;
  const int64_t out_positions = num_images * geometry.OutSize(0, layer.size) * geometry.OutSize(1, layer.size);
  const int64_t cells = int64_t{geometry.kernel_size[0]} * geometry.kernel_size[1];
  const int64_t num_weights = cells * layer.out_channels * layer.in_channels / geometry.groups;
  const double operations = 2.0 * static_cast<double>(num_weights) *
                            static_cast<double>(geometry.is_transposed ? in_positions : out_positions);
  const DeviceArray<__half> in = RandomHalfs(static_cast<size_t>(in_positions * layer.in_channels));
  const DeviceArray<__half> weights =
      RandomHalfs(kernels::cuda::PackConv2dWeights(geometry, layer.in_channels, layer.out_channels, DType::kFloat16,
                                                   std::vector<float>(static_cast<size_t>(num_weights)).data())
                      .size());
  const DeviceArray<float> bias(Device::kCuda, std::vector<float>(static_cast<size_t>(layer.out_channels), 0.125f));
  const DeviceArray<__half> out(Device::kCuda, static_cast<size_t>(out_positions * layer.out_channels));
  std::printf("| %s | %d | %d | %d |", layer.name, layer.size, layer.in_channels, layer.out_channels);
  for (const auto& [name, tiling] : kTilings) {
    const kernels::Conv2dParams params = {
        .geometry = geometry,
        .num_images = num_images,
        .in_rows = layer.size,
        .in_columns = layer.size,
        .in = kernels::Rows::Packed(in.data(), DType::kFloat16, in_positions, layer.in_channels),
        .weights = weights.data(),
        .out = kernels::Rows::Packed(out.data(), DType::kFloat16, out_positions, layer.out_channels),
        .epilogue = {.bias = bias.data(), .activation = kernels::ActivationFunction::kRelu},
        .tiling = tiling};
    if (kernels::cuda::Conv2d(params, support::TestStream()) != cudaError_t{}) {
      std::printf(" | |");
      continue;
    }
    const GpuTimes times = TimeOnGpu(
        support::TestStream(), /*num_steps=*/0,
        [&](const MarkStep&) { support::ExpectCudaSuccess(kernels::cuda::Conv2d(params, support::TestStream())); },
        kNumRuns);
    std::printf(" %.1f | %.0f |", times.back_to_back_ms * 1e3, operations / times.back_to_back_ms * 1e-9);
  }
  std::puts("");
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  const int64_t num_images = argc > 1 ? std::atoll(argv[1]) : 1;
  if (argc > 2 || num_images < 1) {
    std::fprintf(stderr, "usage: %s [images]\n", argv[0]);
    return 2;
  }
  if (!support::HasDevice(Device::kCuda)) {
    std::puts("skipped: no CUDA device here");
    return 0;
  }
  std::printf("%d image(s), float16, bias and ReLU, medians of %d runs\n\n", static_cast<int>(num_images), kNumRuns);
  std::printf("| kernel | size | in | out |");
  for (const auto& [name, tiling] : kTilings) std::printf(" %s us | TFLOP/s |", name);
  std::printf("\n|---|--:|--:|--:|");
  for (size_t i = 0; i < std::size(kTilings); ++i) std::printf("--:|--:|");
  std::puts("");
  for (const Layer& layer : kLayers) PrintLayer(layer, num_images);
  return 0;
}

}  // namespace
}  // namespace voxserve::bench

int main(int argc, char** argv) { return voxserve::bench::Main(argc, argv); }
