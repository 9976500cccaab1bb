// Times the MLPs of transformer blocks on a GPU (kernels/rows/mlp/mlp.h) beside the layers that one replaces: layer
// norms (NormalizeRows) and two products (ImplicitGemm). The sizes are those of PTv3-base and LitePT-S for a
// SemanticKITTI scan and of PTv3-base for a nuScenes key frame, both at 5 cm, and of DSVT and FlatFormer for a Waymo
// frame. It prints microseconds of one MLP, and of all MLPs of a network that have a kernel.
//
//   mlp_cuda_bench [float16 (default) or bfloat16]

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/conv/implicit_gemm/implicit_gemm.h"
#include "kernels/rows/mlp/mlp.h"
#include "kernels/rows/row_norm.h"
#include "tests/bench/event_timer.h"
#include "tests/kernels/core/feature_testing.h"
#include "tests/support/test_device.h"

namespace voxserve::bench {
namespace {

using kernels::DeviceValues;
using kernels::DType;
using kernels::MlpParams;
using kernels::Rows;
using support::Device;

constexpr int kNumRuns = 30;
// A launch never has the rows of the launch before it.
constexpr int kNumInputs = 3;

struct Case {
  const char* network;
  const char* stage;
  int32_t rows;
  int32_t in, hidden, out;
  bool has_post_norms;  // DSVT's and FlatFormer's: the norm is the residual, and another norm follows
  int count;            // of such MLPs in the network
};
constexpr Case kCases[] = {
    {"PTv3-base, SemanticKITTI", "encoder 1", 91767, 32, 128, 32, false, 2},
    {"PTv3-base, SemanticKITTI", "decoder 1", 91767, 64, 256, 64, false, 2},
    {"PTv3-base, SemanticKITTI", "level 2", 60012, 64, 256, 64, false, 4},
    {"PTv3-base, SemanticKITTI", "level 3", 31800, 128, 512, 128, false, 4},
    {"PTv3-base, SemanticKITTI", "level 4", 14400, 256, 1024, 256, false, 8},
    {"PTv3-base, nuScenes", "encoder 1", 24117, 32, 128, 32, false, 2},
    {"PTv3-base, nuScenes", "decoder 1", 24117, 64, 256, 64, false, 2},
    {"PTv3-base, nuScenes", "level 2", 18400, 64, 256, 64, false, 4},
    {"PTv3-base, nuScenes", "level 3", 12200, 128, 512, 128, false, 4},
    {"PTv3-base, nuScenes", "level 4", 6900, 256, 1024, 256, false, 8},
    {"LitePT-S, SemanticKITTI", "level 4", 14400, 252, 1008, 252, false, 6},
    {"DSVT", "block", 13600, 192, 384, 192, true, 8},
    {"DSVT", "position", 13600, 3, 192, 192, false, 8},
    {"FlatFormer", "block", 13600, 128, 256, 128, true, 8},
};

// The rows and weights of a case on the GPU, and what reads them.
class Mlp {
 public:
  Mlp(const Case& of, DType dtype, std::mt19937& random)
      : case_(of),
        dtype_(dtype),
        shape_(kernels::MlpShapeOf(of.in, of.hidden, of.out)),
        hidden_bias_(Device::kCuda, DType::kFloat32, Values(shape_.padded_hidden, 1, random)),
        bias_(Device::kCuda, DType::kFloat32, Values(shape_.padded_out, 1, random)),
        norm_(Device::kCuda, DType::kFloat32, Values(shape_.padded_in + shape_.padded_out, 1, random)),
        x_(Device::kCuda, dtype, Values(int64_t{of.rows} * Pitch(of.in), 1, random)),
        y_(Device::kCuda, dtype, Values(int64_t{of.rows} * Pitch(of.in), 1, random)),
        hidden_(Device::kCuda, dtype, Values(int64_t{of.rows} * Pitch(of.hidden), 1, random)),
        sum_(Device::kCuda, dtype, Values(int64_t{of.rows} * Pitch(of.out), 1, random)),
        out_(Device::kCuda, dtype, Values(int64_t{of.rows} * Pitch(of.out), 1, random)) {
    const std::vector<float> first = Values(int64_t{of.in} * of.hidden, of.in, random);
    const std::vector<float> second = Values(int64_t{of.hidden} * of.out, of.hidden, random);
    weights_ = Upload(kernels::PackMlpWeights(of.in, of.hidden, of.out, first.data(), second.data()));
    first_ = Upload(kernels::PackImplicitGemmWeights(1, of.in, of.hidden, dtype, first.data()));
    second_ = Upload(kernels::PackImplicitGemmWeights(1, of.hidden, of.out, dtype, second.data()));
  }

  cudaError_t RunFused(cudaStream_t stream) const {
    MlpParams params{.in = View(x_, case_.in),
                     .out = View(out_, case_.out),
                     .hidden_channels = case_.hidden,
                     .weights = weights_->data(),
                     .hidden_bias = static_cast<const float*>(hidden_bias_.data()),
                     .bias = static_cast<const float*>(bias_.data())};
    if (HasNorm()) {
      params.input_norm = {.weight = Norm(), .bias = Norm(), .epsilon = 1e-5f};
      params.adds_normed_input = case_.has_post_norms;
      if (!case_.has_post_norms) params.residual = params.in;
    }
    if (case_.has_post_norms) {
      params.num_norms = 1;
      params.norms[0] = {.weight = Norm(), .bias = Norm(), .epsilon = 1e-5f, .residual = params.in};
    }
    return kernels::cuda::Mlp(params, stream);
  }

  cudaError_t RunLayers(cudaStream_t stream) const {
    const Rows x = View(x_, case_.in), y = View(y_, case_.in), hidden = View(hidden_, case_.hidden);
    const Rows sum = View(sum_, case_.out), out = View(out_, case_.out);
    const auto normalize = [&](const Rows& from, const Rows& to, const kernels::ConstRows& residual) {
      return kernels::cuda::NormalizeRows({.kind = kernels::RowNorm::kLayerNorm,
                                           .epsilon = 1e-5f,
                                           .weight = Norm(),
                                           .bias = Norm(),
                                           .residual = residual,
                                           .in = from,
                                           .out = to},
                                          stream);
    };
    const auto multiply = [&](const Rows& from, const Rows& to, const DeviceValues& weights,
                              const kernels::Epilogue& epilogue) {
      return kernels::cuda::ImplicitGemm(
          {.tiles = {.num_offsets = 1, .out_capacity = from.capacity},
           .operands = {.in = from, .out = to, .weights = weights.data(), .epilogue = epilogue}},
          stream);
    };
    cudaError_t error = HasNorm() ? normalize(x, y, {}) : cudaSuccess;
    if (error != cudaSuccess) return error;
    const Rows& read = HasNorm() ? y : x;
    error = multiply(read, hidden, *first_,
                     {.bias = hidden_bias_.data(), .activation = kernels::ActivationFunction::kGelu});
    if (error != cudaSuccess) return error;
    kernels::Epilogue epilogue{.bias = bias_.data()};
    if (HasNorm()) epilogue.residual = case_.has_post_norms ? y : x;
    error = multiply(hidden, case_.has_post_norms ? sum : out, *second_, epilogue);
    return error != cudaSuccess || !case_.has_post_norms ? error : normalize(sum, out, x);
  }

 private:
  bool HasNorm() const { return case_.in == case_.out; }
  const float* Norm() const { return static_cast<const float*>(norm_.data()); }
  static int64_t Pitch(int32_t channels) { return (channels + 7) / 8 * 8; }
  Rows View(const DeviceValues& values, int32_t channels) const {
    return {
        .data = values.data(), .dtype = dtype_, .channels = channels, .pitch = Pitch(channels), .capacity = case_.rows};
  }
  std::unique_ptr<DeviceValues> Upload(const std::vector<float>& values) const {
    return std::make_unique<DeviceValues>(Device::kCuda, dtype_, values);
  }
  // Returns values whose sum over `terms` of them is about 1.
  static std::vector<float> Values(int64_t count, int32_t terms, std::mt19937& random) {
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = uniform(random) / std::sqrt(static_cast<float>(terms));
    return values;
  }

  const Case case_;
  const DType dtype_;
  const kernels::MlpShape shape_;
  const DeviceValues hidden_bias_, bias_, norm_, x_, y_, hidden_, sum_, out_;
  std::unique_ptr<DeviceValues> weights_, first_, second_;
};

// Returns the microseconds of one MLP.
double Time(const std::vector<std::unique_ptr<Mlp>>& mlps, const std::function<cudaError_t(const Mlp&)>& run) {
  const GpuTimes times = TimeOnGpu(
      support::TestStream(), /*num_steps=*/0,
      [&](const MarkStep&) {
        for (const auto& mlp : mlps) support::ExpectCudaSuccess(run(*mlp));
      },
      kNumRuns);
  return times.back_to_back_ms * 1e3 / static_cast<double>(mlps.size());
}

int Main(int argc, char** argv) {
  const std::string_view type = argc > 1 ? argv[1] : "float16";
  if (argc > 2 || (type != "float16" && type != "bfloat16")) {
    std::fprintf(stderr, "usage: %s [float16 or bfloat16]\n", argv[0]);
    return 2;
  }
  const DType dtype = type == "float16" ? DType::kFloat16 : DType::kBfloat16;
  if (!support::HasDevice(Device::kCuda) || !kernels::cuda::SupportsMlp(dtype)) {
    std::puts("skipped: no GPU here has the kernel");
    return 0;
  }
  std::printf("%s, medians of %d runs of %d launches\n\n", std::string(type).c_str(), kNumRuns, kNumInputs);
  std::puts("| network | MLP | rows | channels | layers us | one kernel us | ratio | TFLOP/s | MLPs |");
  std::puts("|---|---|--:|---|--:|--:|--:|--:|--:|");
  std::mt19937 random(1);
  double all_layers = 0, all_fused = 0;
  for (size_t i = 0; i < std::size(kCases); ++i) {
    const Case& of = kCases[i];
    std::vector<std::unique_ptr<Mlp>> mlps;
    for (int input = 0; input < kNumInputs; ++input) mlps.push_back(std::make_unique<Mlp>(of, dtype, random));
    const cudaStream_t stream = support::TestStream();
    const double layers = Time(mlps, [&](const Mlp& mlp) { return mlp.RunLayers(stream); });
    const double fused = Time(mlps, [&](const Mlp& mlp) { return mlp.RunFused(stream); });
    const double flops = 2.0 * of.rows * of.hidden * (of.in + of.out);
    std::printf("| %s | %s | %d | %d, %d, %d | %.1f | %.1f | %.2f | %.0f | %d |\n", of.network, of.stage, of.rows,
                of.in, of.hidden, of.out, layers, fused, layers / fused, flops / fused * 1e-6, of.count);
    all_layers += of.count * layers;
    all_fused += of.count * fused;
    if (i + 1 == std::size(kCases) || std::string_view(kCases[i + 1].network) != of.network) {
      std::printf("| %s | all | | | %.0f | %.0f | %.2f | | |\n", of.network, all_layers, all_fused,
                  all_layers / all_fused);
      all_layers = all_fused = 0;
    }
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace voxserve::bench

int main(int argc, char** argv) { return voxserve::bench::Main(argc, argv); }
