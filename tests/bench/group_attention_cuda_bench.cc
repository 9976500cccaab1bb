// Times group attention on a GPU in float16, on the levels of PTv3-base (X. Wu et al., "Point Transformer V3") for one
// SemanticKITTI scan at 5 cm. It prints a level's time, exponentials and operations, and the time of all of the
// network's attention.
//
//   group_attention_cuda_bench [channels of a head, default 16] [group size, 1024] [largest magnitude of a value, 2]
//
// With "rotary" it times the levels of LitePT-S that have attention: products of queries, keys and values, rotary, and
// attention, once with a rotary beside the products, and once with rotations inside them.
//
//   group_attention_cuda_bench rotary

#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/conv/implicit_gemm/implicit_gemm.h"
#include "kernels/rows/attention/group_attention.h"
#include "kernels/rows/rotary.h"
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

// ---- rotary

constexpr Level kRotaryLevels[] = {{"encoder 4", 14400, 14, 6}, {"encoder 5", 5900, 28, 2}};
constexpr int32_t kRotaryChannels = 18, kRotaryPairs = 3;  // of a head; of an axis in a head
constexpr float kRotaryBase = 100;

// Rows in device memory, padded to vectors of 16 bytes.
class BenchRows {
 public:
  BenchRows(DType dtype, int32_t rows, int32_t channels)
      : dtype_(dtype),
        rows_(rows),
        channels_(channels),
        pitch_((channels + 7) / 8 * 8),
        bytes_(Device::kCuda,
               std::vector<char>(static_cast<size_t>(int64_t{rows} * pitch_ * kernels::SizeOf(dtype)), 0)) {}

  kernels::Rows View() const {
    return {.data = bytes_.data(), .dtype = dtype_, .channels = channels_, .pitch = pitch_, .capacity = rows_};
  }

 private:
  DType dtype_;
  int32_t rows_, channels_;
  int64_t pitch_;
  DeviceArray<char> bytes_;
};

// The launches of a block at one level.
class RotaryBlock {
 public:
  RotaryBlock(const Level& level, std::mt19937& random)
      : level_(level),
        width_(level.num_heads * kRotaryChannels),
        order_(level, kRotaryChannels, 1, random),
        begins_(Device::kCuda, std::vector<int64_t>{0, level.rows}),
        keys_(Device::kCuda, Keys(level.rows)),
        in_(Device::kCuda, Input::Halfs(int64_t{level.rows} * Pitch(width_), 1, random)),
        weights_(Device::kCuda, Input::Halfs(int64_t{4} * Pitch(width_) * Pitch(width_), 0.1f, random)),
        rows_(DType::kFloat16, level.rows, 3 * width_),
        wide_(DType::kFloat32, level.rows, 2 * width_),
        queries_(DType::kFloat16, level.rows, width_),
        rotated_keys_(DType::kFloat16, level.rows, width_),
        angles_(DType::kFloat32, level.rows, kernels::AngleTableChannels(kRotaryChannels / 2)),
        out_(DType::kFloat16, level.rows, width_) {}

  // out = the input times a weight, rotated in its first columns if `rotation` has angles.
  void Multiply(const kernels::Rows& out, const kernels::PairRotation& rotation = {}) const {
    const ConstRows in{.data = in_.data(),
                       .dtype = DType::kFloat16,
                       .channels = width_,
                       .pitch = Pitch(width_),
                       .capacity = level_.rows};
    support::ExpectCudaSuccess(
        kernels::cuda::ImplicitGemm({.tiles = {.num_offsets = 1, .out_capacity = level_.rows},
                                     .operands = {.in = in, .out = out, .weights = weights_.data()},
                                     .rotation = rotation},
                                    support::TestStream()));
  }
  void MultiplyBeside() const {
    Multiply(wide_.View());
    kernels::Rows values = rows_.View();
    values.channels = width_;
    Multiply(values);
  }
  void MultiplyInside() const {
    Multiply(rows_.View(), {.angles = angles_.View(), .head_pairs = kRotaryChannels / 2, .num_columns = 2 * width_});
  }
  void Rotate() const {
    for (const bool are_keys : {false, true}) {
      kernels::RotaryParams params{.num_heads = level_.num_heads,
                                   .keys = keys_.data(),
                                   .in = ConstRows(wide_.View()).Columns(are_keys ? width_ : 0, width_),
                                   .out = are_keys ? rotated_keys_.View() : queries_.View()};
      kernels::SetRotaryFrequencies(kRotaryBase, &params);
      support::ExpectCudaSuccess(kernels::cuda::Rotary(params, support::TestStream()));
    }
  }
  void MakeAngles() const {
    kernels::RotaryAnglesParams params{.pairs = kRotaryPairs, .keys = keys_.data(), .out = angles_.View()};
    kernels::SetRotaryFrequencies(kRotaryBase, &params);
    support::ExpectCudaSuccess(kernels::cuda::RotaryAngles(params, support::TestStream()));
  }
  void AttendBeside() const {
    ConstRows values = rows_.View();
    Attend(queries_.View(), rotated_keys_.View(), values.Columns(0, width_));
  }
  void AttendInside() const {
    const ConstRows all = rows_.View();
    Attend(all.Columns(0, width_), all.Columns(width_, width_), all.Columns(2 * width_, width_));
  }

 private:
  static int32_t Pitch(int32_t channels) { return (channels + 7) / 8 * 8; }
  static std::vector<uint64_t> Keys(int32_t rows) {
    std::vector<uint64_t> keys(static_cast<size_t>(rows));
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = i * 1009;  // some coordinates of several thousand
    return keys;
  }
  void Attend(const ConstRows& queries, const ConstRows& keys, const ConstRows& values) const {
    support::ExpectCudaSuccess(
        kernels::cuda::GroupAttention({.groups = {.row_of_place = order_.row_of_place.data(),
                                                  .sample_begin = begins_.data(),
                                                  .num_samples = 1,
                                                  .size = 1024},
                                       .num_heads = level_.num_heads,
                                       .scale = 1.0f / std::sqrt(static_cast<float>(kRotaryChannels)),
                                       .queries = queries,
                                       .keys = keys,
                                       .values = values,
                                       .out = out_.View()},
                                      support::TestStream()));
  }

  const Level& level_;
  int32_t width_;
  Input order_;
  DeviceArray<int64_t> begins_;
  DeviceArray<uint64_t> keys_;
  DeviceArray<__half> in_, weights_;
  BenchRows rows_, wide_, queries_, rotated_keys_, angles_, out_;
};

void TimeRotary() {
  std::printf("float16, heads of %d channels, groups of 1024, medians of %d runs, us\n\n", kRotaryChannels, kNumRuns);
  std::puts(
      "| level | rows | heads | products | rotaries | attention | beside, in all | product with rotations | attention "
      "| "
      "inside, in all | angles, once a level | blocks |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
  std::mt19937 random(1);
  double saved_us = 0;
  for (const Level& level : kRotaryLevels) {
    const RotaryBlock block(level, random);
    block.MakeAngles();
    // Returns the microseconds of each part of a launch, and of all.
    const auto time = [&](const auto&... parts) {
      const GpuTimes times = TimeOnGpu(
          support::TestStream(), static_cast<int>(sizeof...(parts)),
          [&](const MarkStep& mark) {
            int step = 0;
            ((parts(), mark(step++)), ...);
          },
          kNumRuns);
      std::vector<double> us;
      for (const double ms : times.step_ms) us.push_back(ms * 1e3);
      us.push_back(times.back_to_back_ms * 1e3);
      return us;
    };
    const std::vector<double> beside =
        time([&] { block.MultiplyBeside(); }, [&] { block.Rotate(); }, [&] { block.AttendBeside(); });
    const std::vector<double> inside = time([&] { block.MultiplyInside(); }, [&] { block.AttendInside(); });
    const std::vector<double> angles = time([&] { block.MakeAngles(); });
    std::printf("| %s | %d | %d | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | %d |\n", level.stage,
                level.rows, level.num_heads, beside[0], beside[1], beside[2], beside[3], inside[0], inside[1],
                inside[2], angles.back(), level.blocks);
    std::fflush(stdout);
    saved_us += level.blocks * (beside[3] - inside[2]) - angles.back();
  }
  std::printf("\nsaved in all blocks: %.1f us\n", saved_us);
}

int Main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "rotary") == 0) {
    if (!support::HasDevice(Device::kCuda)) {
      std::puts("skipped: no CUDA device here");
      return 0;
    }
    TimeRotary();
    return 0;
  }
  const int32_t channels = argc > 1 ? std::atoi(argv[1]) : 16, size = argc > 2 ? std::atoi(argv[2]) : 1024;
  const float magnitude = argc > 3 ? static_cast<float>(std::atof(argv[3])) : 2;
  if (argc > 4 || channels < 1 || size < 1 || size > kernels::kMaxGroupSize) {
    std::fprintf(stderr, "usage: %s [channels of a head] [group size] [magnitude]\n       %s rotary\n", argv[0],
                 argv[0]);
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
