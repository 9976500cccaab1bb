// Times pools, layer norms and additions of rows on a GPU (kernels/rows/pool.h, row_norm.h, scale_shift.h). The sizes
// are those of LitePT-S and PTv3-base for a SemanticKITTI scan at 5 cm, in float16. It prints microseconds, the bytes
// that the kernel has to move per second, and a hash of the results: two builds with the same hashes compute the same
// bytes.
//
//   rows_cuda_bench

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/rows/pool.h"
#include "kernels/rows/row_norm.h"
#include "kernels/rows/scale_shift.h"
#include "tests/bench/event_timer.h"
#include "tests/kernels/core/feature_testing.h"
#include "tests/support/test_device.h"

namespace voxserve::bench {
namespace {

using kernels::DType;
using kernels::Rows;
using support::Device;
using support::DeviceArray;

constexpr int kNumRuns = 30;
// A launch never has the rows of the launch before it.
constexpr int kNumInputs = 3;
constexpr int32_t kNumOffsets = 8;
constexpr int64_t kValueBytes = 2;
constexpr float kEpsilon = 1e-5f;

struct Network {
  const char* name;
  std::vector<int32_t> rows;      // of each level
  std::vector<int32_t> channels;  // of each level, in the encoder
  std::vector<int32_t> decoder;   // of each level but the last
};
const std::vector<Network>& Networks() {
  static const auto* const networks = new std::vector<Network>{
      {"LitePT-S", {91852, 60236, 31883, 14454, 5908}, {36, 72, 144, 252, 504}, {72, 72, 144, 252}},
      {"PTv3-base", {91852, 60236, 31883, 14454, 5908}, {32, 64, 128, 256, 512}, {64, 64, 128, 256}},
  };
  return *networks;
}

// Returns random values in float16, `count` of them. All calls draw from the same million values.
std::vector<uint16_t> HalfValues(int64_t count, kernels::Random& random) {
  static const auto* const drawn = [&] {
    auto* const halves = new std::vector<uint16_t>;
    for (const float value : random.Floats(1 << 20)) halves->push_back(kernels::ToBits(DType::kFloat16, value));
    return halves;
  }();
  std::vector<uint16_t> values(static_cast<size_t>(count));
  size_t from = std::uniform_int_distribution<size_t>(0, drawn->size() - 1)(random.engine());
  for (uint16_t& value : values) {
    value = (*drawn)[from];
    if (++from == drawn->size()) from = 0;
  }
  return values;
}

// Rows on the GPU.
struct GpuRows {
  GpuRows(int64_t num_rows, int32_t num_channels, kernels::Random& random)
      : rows(num_rows), channels(num_channels), values(Device::kCuda, HalfValues(num_rows * num_channels, random)) {}
  Rows View() const { return Rows::Packed(values.data(), DType::kFloat16, rows, channels); }
  int64_t bytes() const { return rows * channels * kValueBytes; }

  int64_t rows;
  int32_t channels;
  DeviceArray<uint16_t> values;
};

// The tables of neighbours between a level and the next coarser one. Rows of one cell follow each other, as they do in
// a sorted level.
struct Tables {
  Tables(int64_t num_fine, int64_t num_coarse, kernels::Random& random)
      : down(static_cast<size_t>(kNumOffsets * num_coarse), -1), up(static_cast<size_t>(kNumOffsets * num_fine), -1) {
    // Every cell has a row, and the other rows fall into random cells that have room.
    std::vector<int32_t> rows_of(static_cast<size_t>(num_coarse), 1);
    std::uniform_int_distribution<size_t> any_cell(0, rows_of.size() - 1);
    for (int64_t left = num_fine - num_coarse; left > 0;) {
      int32_t& rows = rows_of[any_cell(random.engine())];
      if (rows == kNumOffsets) continue;
      ++rows;
      --left;
    }
    int64_t fine = 0;
    std::vector<int32_t> offsets(kNumOffsets);
    for (int64_t coarse = 0; coarse < num_coarse; ++coarse) {
      for (int32_t k = 0; k < kNumOffsets; ++k) offsets[static_cast<size_t>(k)] = k;
      std::shuffle(offsets.begin(), offsets.end(), random.engine());
      const int32_t count = rows_of[static_cast<size_t>(coarse)];
      std::sort(offsets.begin(), offsets.begin() + count);
      for (int32_t i = 0; i < count; ++i, ++fine) {
        const int64_t k = offsets[static_cast<size_t>(i)];
        down[static_cast<size_t>(k * num_coarse + coarse)] = static_cast<int32_t>(fine);
        up[static_cast<size_t>(k * num_fine + fine)] = static_cast<int32_t>(coarse);
      }
    }
  }

  std::vector<int32_t> down, up;  // [kNumOffsets, coarse rows], [kNumOffsets, fine rows]
};

uint64_t Hash(const std::vector<uint16_t>& values) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a, two bytes at a time
  for (const uint16_t value : values) hash = (hash ^ value) * 1099511628211u;
  return hash;
}

// Prints a row of the table. launch(input, stream) launches the kernel for one of the inputs.
void Print(const std::string& kernel, int64_t rows, int32_t channels, int64_t bytes,
           const std::vector<const GpuRows*>& results, const std::function<cudaError_t(int, cudaStream_t)>& launch) {
  const cudaStream_t stream = support::TestStream();
  const GpuTimes times = TimeOnGpu(
      stream, /*num_steps=*/0,
      [&](const MarkStep&) {
        for (int input = 0; input < kNumInputs; ++input) support::ExpectCudaSuccess(launch(input, stream));
      },
      kNumRuns);
  const double us = times.back_to_back_ms * 1e3 / kNumInputs;
  uint64_t hash = 0;
  for (const GpuRows* result : results) hash = hash * 31 + Hash(result->values.ToHost());
  std::printf("| %s | %lld | %d | %.1f | %.1f | %.0f | %016llx |\n", kernel.c_str(), static_cast<long long>(rows),
              channels, us, static_cast<double>(bytes) * 1e-6, static_cast<double>(bytes) / us * 1e-3,
              static_cast<unsigned long long>(hash));
  std::fflush(stdout);
}

std::vector<std::unique_ptr<GpuRows>> Inputs(int64_t rows, int32_t channels, kernels::Random& random) {
  std::vector<std::unique_ptr<GpuRows>> inputs;
  for (int i = 0; i < kNumInputs; ++i) inputs.push_back(std::make_unique<GpuRows>(rows, channels, random));
  return inputs;
}
std::vector<const GpuRows*> All(const std::vector<std::unique_ptr<GpuRows>>& inputs) {
  std::vector<const GpuRows*> all;
  for (const auto& input : inputs) all.push_back(input.get());
  return all;
}
const GpuRows& At(const std::vector<std::unique_ptr<GpuRows>>& inputs, int i) {
  return *inputs[static_cast<size_t>(i)];
}

// End says which layers follow a pool.
enum class End { kNothing, kNormAndGelu, kAddition };

void TimePool(const std::string& name, const std::vector<int32_t>& table, int64_t num_in, int64_t num_out,
              int32_t channels, End end, kernels::Random& random) {
  const DeviceArray<int32_t> neighbours(Device::kCuda, table);
  const DeviceArray<float> scale(Device::kCuda, random.Floats(channels)), bias(Device::kCuda, random.Floats(channels));
  const auto ins = Inputs(num_in, channels, random), outs = Inputs(num_out, channels, random);
  const auto residuals = Inputs(end == End::kAddition ? num_out : 0, channels, random);
  const int64_t bytes = At(ins, 0).bytes() + At(outs, 0).bytes() + At(residuals, 0).bytes() +
                        static_cast<int64_t>(table.size() * sizeof(int32_t));
  Print(name, num_out, channels, bytes, All(outs), [&](int i, cudaStream_t stream) {
    kernels::cuda::PoolParams params{.neighbours = {.num_offsets = kNumOffsets,
                                                    .rows = neighbours.data(),
                                                    .pitch = num_out,
                                                    .num_in_rows = num_in,
                                                    .num_out_rows = num_out},
                                     .reduce = kernels::PoolReduce::kMax,
                                     .in = At(ins, i).View(),
                                     .out = At(outs, i).View()};
    if (end == End::kNormAndGelu) {
      params.scale = scale.data();
      params.epilogue = {.bias = bias.data(), .activation = kernels::ActivationFunction::kGelu};
    }
    if (end == End::kAddition) params.epilogue.residual = At(residuals, i).View();
    return kernels::cuda::Pool(params, stream);
  });
}

void TimeNorm(const std::string& name, int64_t rows, int32_t channels, bool has_second, kernels::Random& random) {
  const DeviceArray<float> weight(Device::kCuda, random.Floats(channels)), bias(Device::kCuda, random.Floats(channels));
  const auto ins = Inputs(rows, channels, random), residuals = Inputs(rows, channels, random);
  const auto outs = Inputs(rows, channels, random), seconds = Inputs(has_second ? rows : 0, channels, random);
  std::vector<const GpuRows*> results = All(outs);
  if (has_second) {
    for (const auto& second : seconds) results.push_back(second.get());
  }
  const int64_t bytes = (has_second ? 4 : 3) * At(ins, 0).bytes();
  Print(name, rows, channels, bytes, results, [&](int i, cudaStream_t stream) {
    kernels::RowNormParams params{.kind = kernels::RowNorm::kLayerNorm,
                                  .epsilon = kEpsilon,
                                  .weight = weight.data(),
                                  .bias = bias.data(),
                                  .residual = At(residuals, i).View(),
                                  .in = At(ins, i).View(),
                                  .out = At(outs, i).View()};
    if (has_second) {
      params.second = {.epsilon = kEpsilon, .weight = weight.data(), .bias = bias.data(), .out = At(seconds, i).View()};
    }
    return kernels::cuda::NormalizeRows(params, stream);
  });
}

void TimeAddition(const std::string& name, int64_t rows, int32_t channels, kernels::Random& random) {
  const auto ins = Inputs(rows, channels, random), residuals = Inputs(rows, channels, random);
  const auto outs = Inputs(rows, channels, random);
  Print(name, rows, channels, 3 * At(ins, 0).bytes(), All(outs), [&](int i, cudaStream_t stream) {
    return kernels::cuda::ScaleShift(
        {.in = At(ins, i).View(), .out = At(outs, i).View(), .epilogue = {.residual = At(residuals, i).View()}},
        stream);
  });
}

int Main() {
  if (!support::HasDevice(Device::kCuda)) {
    std::puts("skipped: no GPU");
    return 0;
  }
  std::printf("float16, medians of %d runs of %d launches\n\n", kNumRuns, kNumInputs);
  std::puts("| kernel | rows | channels | us | MB | GB/s | hash |");
  std::puts("|---|--:|--:|--:|--:|--:|---|");
  kernels::Random random(1);
  for (const Network& network : Networks()) {
    const std::string name = network.name;
    for (size_t level = 0; level < network.rows.size(); ++level) {
      const int64_t rows = network.rows[level];
      TimeNorm(name + ", norm", rows, network.channels[level], false, random);
      TimeNorm(name + ", two norms", rows, network.channels[level], true, random);
      if (level == 0) continue;
      const int64_t fine = network.rows[level - 1];
      const Tables tables(fine, rows, random);
      TimePool(name + ", pool", tables.down, fine, rows, network.channels[level], End::kNormAndGelu, random);
      const int32_t decoder = network.decoder[level - 1];
      TimePool(name + ", unpool", tables.up, rows, fine, decoder, End::kNothing, random);
      TimePool(name + ", unpool and add", tables.up, rows, fine, decoder, End::kAddition, random);
      TimeAddition(name + ", addition", fine, decoder, random);
    }
  }
  return 0;
}

}  // namespace
}  // namespace voxserve::bench

int main() { return voxserve::bench::Main(); }
