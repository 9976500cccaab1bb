// Times group attention on a GPU in float16, on the levels of PTv3-base (X. Wu et al., "Point Transformer V3") for one
// SemanticKITTI scan at 5 cm. It prints a level's time, exponentials and operations, and the time of all of the
// network's attention.
//
//   group_attention_cuda_bench [channels of a head, default 16] [group size, 1024] [largest magnitude of a value, 2]

#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/rows/attention/group_attention.h"
#include "tests/bench/event_timer.h"
#include "tests/support/test_device.h"

namespace voxserve::bench {
namespace {

using kernels::ConstRows;
using kernels::DType;
using kernels::GroupAttentionParams;
using support::Device;
using support::DeviceArray;

constexpr int kNumRuns = 30;
// A launch never has the inputs of the launch before it.
constexpr int kNumInputs = 3;

struct Level {
  const char* stage;
  int32_t rows;
  int32_t num_heads;
  int blocks;  // with attention
};
constexpr Level kLevels[] = {
    {"encoder 1", 91767, 2, 2},  {"encoder 2", 60012, 4, 2}, {"encoder 3", 31800, 8, 2},
    {"encoder 4", 14400, 16, 6}, {"encoder 5", 5900, 32, 2}, {"decoder 4", 14400, 16, 2},
    {"decoder 3", 31800, 8, 2},  {"decoder 2", 60012, 4, 2}, {"decoder 1", 91767, 4, 2},
};

// The rows of queries, keys and values lie beside each other, as one product of the block's input makes them.
struct Input {
  DeviceArray<__half> rows;
  DeviceArray<int32_t> row_of_place;

  Input(const Level& level, int32_t channels, float magnitude, std::mt19937& random)
      : rows(Device::kCuda, Halfs(int64_t{level.rows} * 3 * level.num_heads * channels, magnitude, random)),
        row_of_place(Device::kCuda, Order(level.rows, random)) {}

  static std::vector<__half> Halfs(int64_t count, float magnitude, std::mt19937& random) {
    std::vector<__half> values(static_cast<size_t>(count));
    auto state = static_cast<uint32_t>(random());
    for (__half& value : values) {
      state = state * 1664525u + 1013904223u;
      value = __float2half(magnitude * (static_cast<float>(state >> 8) / static_cast<float>(1u << 23) - 1.0f));
    }
    return values;
  }
  // A space-filling curve keeps most neighbours in another curve's order near each other.
  static std::vector<int32_t> Order(int32_t num_rows, std::mt19937& random) {
    std::vector<int32_t> order(static_cast<size_t>(num_rows));
    std::iota(order.begin(), order.end(), 0);
    for (int32_t first = 0; first < num_rows; first += 1500) {
      std::shuffle(order.begin() + first, order.begin() + std::min(first + 1500, num_rows), random);
    }
    return order;
  }
};

// Returns the microseconds of one launch.
double TimeLevel(const Level& level, int32_t channels, int32_t size, float magnitude, std::mt19937& random) {
  const int32_t width = level.num_heads * channels;
  const DeviceArray<int64_t> begins(Device::kCuda, std::vector<int64_t>{0, level.rows});
  const DeviceArray<__half> out(Device::kCuda, static_cast<size_t>(level.rows) * static_cast<size_t>(width));
  std::vector<std::unique_ptr<Input>> inputs;
  std::vector<GroupAttentionParams> launches;
  for (int i = 0; i < kNumInputs; ++i) {
    inputs.push_back(std::make_unique<Input>(level, channels, magnitude, random));
    const ConstRows all = ConstRows::Packed(inputs.back()->rows.data(), DType::kFloat16, level.rows, 3 * width);
    launches.push_back({.groups = {.row_of_place = inputs.back()->row_of_place.data(),
                                   .sample_begin = begins.data(),
                                   .num_samples = 1,
                                   .size = size},
                        .num_heads = level.num_heads,
                        .scale = 1.0f / std::sqrt(static_cast<float>(channels)),
                        .queries = all.Columns(0, width),
                        .keys = all.Columns(width, width),
                        .values = all.Columns(2 * width, width),
                        .out = kernels::Rows::Packed(out.data(), DType::kFloat16, level.rows, width)});
  }
  const GpuTimes times = TimeOnGpu(
      support::TestStream(), /*num_steps=*/0,
      [&](const MarkStep&) {
        for (const GroupAttentionParams& params : launches) {
          support::ExpectCudaSuccess(kernels::cuda::GroupAttention(params, support::TestStream()));
        }
      },
      kNumRuns);
  return times.back_to_back_ms * 1e3 / kNumInputs;
}

int Main(int argc, char** argv) {
  const int32_t channels = argc > 1 ? std::atoi(argv[1]) : 16, size = argc > 2 ? std::atoi(argv[2]) : 1024;
  const float magnitude = argc > 3 ? static_cast<float>(std::atof(argv[3])) : 2;
  if (argc > 4 || channels < 1 || size < 1 || size > kernels::kMaxGroupSize) {
    std::fprintf(stderr, "usage: %s [channels of a head] [group size] [magnitude]\n", argv[0]);
    return 2;
  }
  if (!support::HasDevice(Device::kCuda)) {
    std::puts("skipped: no CUDA device here");
    return 0;
  }
  std::printf("float16, heads of %d channels, groups of %d, medians of %d runs of %d launches\n\n", channels, size,
              kNumRuns, kNumInputs);
  std::puts("| level | rows | heads | us | T exps/s | TFLOP/s | attention blocks |\n|---|--:|--:|--:|--:|--:|--:|");
  std::mt19937 random(1);
  double all_us = 0, all_exps = 0;
  for (const Level& level : kLevels) {
    const double us = TimeLevel(level, channels, size, magnitude, random);
    const double exps = double{1} * level.rows * std::min(size, level.rows) * level.num_heads;
    std::printf("| %s | %d | %d | %.1f | %.2f | %.0f | %d |\n", level.stage, level.rows, level.num_heads, us,
                exps / us * 1e-6, 4 * channels * exps / us * 1e-6, level.blocks);
    std::fflush(stdout);
    all_us += level.blocks * us;
    all_exps += level.blocks * exps;
  }
  std::printf("| all | | | %.1f | %.2f | %.0f | |\n", all_us, all_exps / all_us * 1e-6,
              4 * channels * all_exps / all_us * 1e-6);
  return 0;
}

}  // namespace
}  // namespace voxserve::bench

int main(int argc, char** argv) { return voxserve::bench::Main(argc, argv); }
