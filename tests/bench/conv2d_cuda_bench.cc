// Times the image convolutions of CenterPoint's, SECOND's and DSVT's networks on a GPU in float16. For each tiling it
// prints the device's own time and its rate of useful operations.
//
//   conv2d_cuda_bench [images a convolution, default 1]
//   conv2d_cuda_bench int8 [images]     8 bits beside the chosen tiling in float16, for the layers that 8 bits serve
//
// conv2d_peer_bench.py prints the first table for PyTorch. In 8 bits inputs and outputs are uint8, with bias and ReLU.

#include <cuda_fp16.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <vector>

#include "kernels/conv/int8_epilogue.h"
#include "kernels/image/conv2d.h"
#include "kernels/image/int8/int8_im2col.h"
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
constexpr Conv2dGeometry kQuadrupling = {.kernel_size = {4, 4}, .stride = {4, 4}, .is_transposed = true};

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
    {"transposed 2x2 s2", 234, 128, 128, kDoubling},
    {"transposed 4x4 s4", 117, 256, 128, kQuadrupling},
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
    {"3x3 in 6 groups", 468, 384, 18, {.kernel_size = {3, 3}, .padding = {1, 1}, .groups = 6}},
};

constexpr struct {
  const char* name;
  Conv2dTiling tiling;
} kTilings[] = {
    {"chosen", Conv2dTiling::kChosen},
    {"warps", Conv2dTiling::kWarps},
    {"few outputs", Conv2dTiling::kFewOutputs},
    {"2 warp groups", Conv2dTiling::kTwoWarpGroups},
    {"3", Conv2dTiling::kThreeWarpGroups},
    {"4", Conv2dTiling::kFourWarpGroups},
    {"5", Conv2dTiling::kFiveWarpGroups},
    {"2 wide", Conv2dTiling::kWideWarpGroups},
    {"2 im2col", Conv2dTiling::kTwoIm2col},
    {"3 im2col", Conv2dTiling::kThreeIm2col},
    {"4 im2col", Conv2dTiling::kFourIm2col},
    {"128 by 136", Conv2dTiling::kIm2col128By136},
    {"64 by 272", Conv2dTiling::kIm2col64By272},
    {"3 boxes", Conv2dTiling::kThreeBoxes},
    {"4 boxes", Conv2dTiling::kFourBoxes},
    {"boxes 128 by 144", Conv2dTiling::kBoxes128By144},
    {"boxes 64 by 288", Conv2dTiling::kBoxes64By288},
};

constexpr struct {
  const char* name;
  Conv2dTiling tiling;
} kInt8Tilings[] = {{"chosen", Conv2dTiling::kChosen},        {"2 im2col", Conv2dTiling::kTwoIm2col},
                    {"3 im2col", Conv2dTiling::kThreeIm2col}, {"4 im2col", Conv2dTiling::kFourIm2col},
                    {"3 boxes", Conv2dTiling::kThreeBoxes},   {"4 boxes", Conv2dTiling::kFourBoxes}};

// Returns random values that make(number) makes of numbers in [-1, 1). A GPU's power, and therefore its clock, depends
// on the values.
template <typename T, typename Make>
DeviceArray<T> RandomValues(size_t count, const Make& make) {
  std::vector<T> values(count);
  uint32_t state = 1;
  for (T& value : values) {
    state = state * 1664525u + 1013904223u;
    value = make(static_cast<float>(state >> 8) / static_cast<float>(1u << 23) - 1.0f);
  }
  return DeviceArray<T>(Device::kCuda, values);
}
DeviceArray<__half> RandomHalfs(size_t count) {
  return RandomValues<__half>(count, [](float number) { return __float2half(number); });
}

// The numbers of a layer's values.
struct Counts {
  int64_t in_positions, out_positions, num_weights;
  double operations;

  Counts(const Layer& layer, int64_t num_images)
      : in_positions(num_images * layer.size * layer.size),
        out_positions(num_images * layer.geometry.OutSize(0, layer.size) * layer.geometry.OutSize(1, layer.size)),
        num_weights(int64_t{layer.geometry.kernel_size[0]} * layer.geometry.kernel_size[1] * layer.out_channels *
                    layer.in_channels / layer.geometry.groups),
        operations(2.0 * static_cast<double>(num_weights) *
                   static_cast<double>(layer.geometry.is_transposed ? in_positions : out_positions)) {}
};

// The operands of a layer in float16.
class HalfLayer {
 public:
  HalfLayer(const Layer& layer, const Counts& counts, int64_t num_images)
      : in_(RandomHalfs(static_cast<size_t>(counts.in_positions * layer.in_channels))),
        weights_(RandomHalfs(
            kernels::cuda::PackConv2dWeights(layer.geometry, layer.in_channels, layer.out_channels, DType::kFloat16,
                                             std::vector<float>(static_cast<size_t>(counts.num_weights)).data())
                .size())),
        bias_(Device::kCuda, std::vector<float>(static_cast<size_t>(layer.out_channels), 0.125f)),
        out_(Device::kCuda, static_cast<size_t>(counts.out_positions * layer.out_channels)),
        params_{.geometry = layer.geometry,
                .num_images = num_images,
                .in_rows = layer.size,
                .in_columns = layer.size,
                .in = kernels::Rows::Packed(in_.data(), DType::kFloat16, counts.in_positions, layer.in_channels),
                .weights = weights_.data(),
                .out = kernels::Rows::Packed(out_.data(), DType::kFloat16, counts.out_positions, layer.out_channels),
                .epilogue = {.bias = bias_.data(), .activation = kernels::ActivationFunction::kRelu}} {}

  cudaError_t Queue(Conv2dTiling tiling) const {
    kernels::Conv2dParams params = params_;
    params.tiling = tiling;
    return kernels::cuda::Conv2d(params, support::TestStream());
  }

 private:
  const DeviceArray<__half> in_, weights_;
  const DeviceArray<float> bias_;
  const DeviceArray<__half> out_;
  const kernels::Conv2dParams params_;
};

// The operands of a layer in 8 bits.
class Int8Layer {
 public:
  Int8Layer(const Layer& layer, const Counts& counts, int64_t num_images)
      : in_(RandomValues<uint8_t>(
            static_cast<size_t>(counts.in_positions * layer.in_channels),
            [](float number) { return static_cast<uint8_t>(number > 0 ? number * 255.0f : 0.0f); })),
        weights_(RandomValues<int8_t>(
            kernels::PackInt8Im2colWeights(layer.geometry, layer.in_channels, layer.out_channels,
                                           std::vector<int8_t>(static_cast<size_t>(counts.num_weights)).data())
                .size(),
            [](float number) { return static_cast<int8_t>(number * 127.0f); })),
        multiplier_(Device::kCuda, PerChannel(layer, 1e-4f)),
        bias_(Device::kCuda, PerChannel(layer, 0.125f)),
        out_(Device::kCuda, static_cast<size_t>(counts.out_positions * layer.out_channels)),
        params_{.geometry = layer.geometry,
                .num_images = num_images,
                .in_rows = layer.size,
                .in_columns = layer.size,
                .in = kernels::Rows::Packed(in_.data(), DType::kUint8, counts.in_positions, layer.in_channels),
                .weights = weights_.data(),
                .out = kernels::Rows::Packed(out_.data(), DType::kUint8, counts.out_positions, layer.out_channels),
                .epilogue = {.multiplier = multiplier_.data(),
                             .bias = bias_.data(),
                             .activation = kernels::ActivationFunction::kRelu}} {}

  cudaError_t Queue(Conv2dTiling tiling) const {
    kernels::Int8Im2colParams params = params_;
    params.tiling = tiling;
    return kernels::cuda::Int8Im2col(params, support::TestStream());
  }

 private:
  static std::vector<float> PerChannel(const Layer& layer, float value) {
    return std::vector<float>(static_cast<size_t>(kernels::PaddedInt8Channels(layer.out_channels)), value);
  }

  const DeviceArray<uint8_t> in_;
  const DeviceArray<int8_t> weights_;
  const DeviceArray<float> multiplier_, bias_;
  const DeviceArray<uint8_t> out_;
  const kernels::Int8Im2colParams params_;
};

// Returns the microseconds of a layer in a tiling; 0 if it is not served.
template <typename Operands>
double Microseconds(const Operands& operands, Conv2dTiling tiling) {
  if (operands.Queue(tiling) != cudaError_t{}) return 0;
  return TimeOnGpu(
             support::TestStream(), /*num_steps=*/0,
             [&](const MarkStep&) { support::ExpectCudaSuccess(operands.Queue(tiling)); }, kNumRuns)
             .back_to_back_ms *
         1e3;
}

void BeginRow(const Layer& layer) {
  std::printf("| %s | %d | %d | %d |", layer.name, layer.size, layer.in_channels, layer.out_channels);
}

void EndRow() {
  std::puts("");
  std::fflush(stdout);
}

void PrintTimes(double us, const Counts& counts) {
  if (us == 0) {
    std::printf(" | |");
  } else {
    std::printf(" %.1f | %.0f |", us, counts.operations / us * 1e-6);
  }
}

void PrintLayer(const Layer& layer, int64_t num_images) {
  const Counts counts(layer, num_images);
  const HalfLayer half(layer, counts, num_images);
  BeginRow(layer);
  for (const auto& [name, tiling] : kTilings) PrintTimes(Microseconds(half, tiling), counts);
  EndRow();
}

// Prints the times in float16 and in 8 bits, and adds them to the sums.
void PrintInt8Layer(const Layer& layer, int64_t num_images, double& half_us, double& int8_us) {
  if (!kernels::IsForInt8Im2col(layer.geometry, layer.size, layer.size, layer.in_channels)) return;
  const Counts counts(layer, num_images);
  const HalfLayer half(layer, counts, num_images);
  const Int8Layer int8(layer, counts, num_images);
  BeginRow(layer);
  const double of_half = Microseconds(half, Conv2dTiling::kChosen);
  PrintTimes(of_half, counts);
  double chosen = 0;
  for (const auto& [name, tiling] : kInt8Tilings) {
    const double us = Microseconds(int8, tiling);
    PrintTimes(us, counts);
    if (tiling != Conv2dTiling::kChosen) continue;
    chosen = us;
    std::printf(" %.2f |", us / of_half);
  }
  half_us += of_half;
  int8_us += chosen;
  EndRow();
}

void PrintInt8Table(int64_t num_images) {
  std::printf("| kernel | size | in | out | float16 us | TFLOP/s |");
  for (const auto& [name, tiling] : kInt8Tilings) {
    std::printf(" %s us | TOP/s |%s", name, tiling == Conv2dTiling::kChosen ? " of float16 |" : "");
  }
  std::printf("\n|---|--:|--:|--:|--:|--:|--:|");
  for (size_t i = 0; i < std::size(kInt8Tilings); ++i) std::printf("--:|--:|");
  std::puts("");
  double half_us = 0, int8_us = 0;
  for (const Layer& layer : kLayers) PrintInt8Layer(layer, num_images, half_us, int8_us);
  std::printf("\nall layers: float16 %.1f us, 8 bits %.1f us, ratio %.3f\n", half_us, int8_us, int8_us / half_us);
}

int Main(int argc, char** argv) {
  const bool is_int8 = argc > 1 && std::strcmp(argv[1], "int8") == 0;
  const int first = is_int8 ? 2 : 1;
  const int64_t num_images = argc > first ? std::atoll(argv[first]) : 1;
  if (argc > first + 1 || num_images < 1) {
    std::fprintf(stderr, "usage: %s [int8] [images]\n", argv[0]);
    return 2;
  }
  if (!support::HasDevice(Device::kCuda)) {
    std::puts("skipped: no CUDA device here");
    return 0;
  }
  std::printf("%d image(s), %s, bias and ReLU, medians of %d runs\n\n", static_cast<int>(num_images),
              is_int8 ? "float16 and 8 bits" : "float16", kNumRuns);
  if (is_int8) {
    PrintInt8Table(num_images);
    return 0;
  }
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
