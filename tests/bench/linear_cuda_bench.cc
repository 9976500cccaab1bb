// Times linear layers in 16 bits on a GPU: what ImplicitGemm chooses, and the kernel for contiguous rows
// (kernels/conv/implicit_gemm/linear_rows.h) with each shape of its blocks, beside the fastest block that looks up
// rows. The sizes are those of PTv3-base and LitePT-S for a SemanticKITTI scan at 5 cm, and of DSVT and FlatFormer for
// a Waymo frame. Launches are those of a captured graph, one after the other. The number of rows is on the device; the
// capacity is an eighth larger. The program fails if two kernels give different bytes, or write behind the last row.
//
//   linear_cuda_bench [float16 (default) or bfloat16]

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/conv/implicit_gemm/implicit_gemm.h"
#include "kernels/conv/implicit_gemm/linear_rows.h"
#include "kernels/conv/pair_rotation.h"
#include "tests/kernels/core/feature_testing.h"
#include "tests/support/test_device.h"

namespace voxserve::bench {
namespace {

using kernels::DeviceValues;
using kernels::DType;
using kernels::ImplicitGemmParams;
using kernels::Rows;
using support::Device;
using support::ExpectCudaSuccess;

constexpr int kNumSets = 3;       // a launch never has the rows of the launch before it
constexpr int kNumLaunches = 12;  // in a graph
constexpr int kNumRuns = 15, kTurns = 3;

struct Case {
  const char* network;
  int32_t rows, in, out;
  bool has_residual, is_gelu;
  int32_t head_pairs;  // 0: nothing is rotated
  int count;           // of such layers in the network
};
constexpr Case kCases[] = {
    {"PTv3-base", 91852, 64, 192, false, false, 0, 2},   {"PTv3-base", 91852, 64, 64, true, false, 0, 2},
    {"PTv3-base", 60012, 64, 192, false, false, 0, 4},   {"PTv3-base", 60012, 64, 64, true, false, 0, 4},
    {"PTv3-base", 31883, 128, 384, false, false, 0, 4},  {"PTv3-base", 31883, 128, 128, true, false, 0, 4},
    {"PTv3-base", 14454, 256, 768, false, false, 0, 8},  {"PTv3-base", 14454, 256, 256, true, false, 0, 8},
    {"PTv3-base", 5908, 512, 1536, false, false, 0, 2},  {"PTv3-base", 5908, 512, 512, true, false, 0, 2},
    {"PTv3-base", 5908, 512, 2048, false, true, 0, 2},   {"PTv3-base", 5908, 2048, 512, true, false, 0, 2},
    {"LitePT-S", 91852, 36, 144, false, true, 0, 2},     {"LitePT-S", 91852, 144, 36, true, false, 0, 2},
    {"LitePT-S", 14454, 252, 756, false, false, 9, 6},   {"LitePT-S", 14454, 252, 756, false, false, 0, 1},
    {"LitePT-S", 14454, 252, 252, true, false, 0, 6},    {"LitePT-S", 5908, 504, 1512, false, false, 9, 2},
    {"LitePT-S", 5908, 504, 1512, false, false, 0, 1},   {"LitePT-S", 5908, 504, 504, true, false, 0, 2},
    {"DSVT", 13600, 192, 576, false, false, 0, 8},       {"DSVT", 13600, 192, 192, true, false, 0, 8},
    {"FlatFormer", 13600, 128, 384, false, false, 0, 8}, {"FlatFormer", 13600, 128, 128, true, false, 0, 8},
};

using DeviceBits = support::DeviceArray<uint16_t>;
using Launch = std::function<cudaError_t(int set)>;

// The rows and weights of a case on the GPU.
class Layer {
 public:
  Layer(const Case& of, DType dtype, std::mt19937& random)
      : case_(of),
        dtype_(dtype),
        capacity_(of.rows + of.rows / 8),
        num_rows_(Device::kCuda, std::vector<int64_t>{of.rows}),
        bias_(Device::kCuda, DType::kFloat32, Values(of.out, random)) {
    const std::vector<float> weights = Values(int64_t{of.in} * of.out, random);
    weights_ = Upload(kernels::PackImplicitGemmWeights(1, of.in, of.out, dtype, weights.data()), dtype);
    const std::vector<uint16_t> in = Bits(capacity_ * Pitch(of.in), random);
    const std::vector<uint16_t> residual = Bits(capacity_ * Pitch(of.out), random);
    for (int set = 0; set < kNumSets; ++set) {
      in_.push_back(std::make_unique<DeviceBits>(Device::kCuda, in));
      residual_.push_back(std::make_unique<DeviceBits>(Device::kCuda, residual));
      out_.push_back(std::make_unique<DeviceBits>(Device::kCuda, residual.size()));
    }
    if (of.head_pairs > 0) {
      angles_ = Upload(Values(capacity_ * kernels::AngleTableChannels(of.head_pairs), random), DType::kFloat32);
    }
  }

  ImplicitGemmParams Params(int set) const {
    const auto s = static_cast<size_t>(set);
    ImplicitGemmParams params{
        .tiles = {.num_offsets = 1, .num_out = num_rows_.data(), .out_capacity = capacity_},
        .operands = {.in = View(*in_[s], case_.in),
                     .out = View(*out_[s], case_.out),
                     .weights = weights_->data(),
                     .epilogue = {.bias = bias_.data(),
                                  .activation = case_.is_gelu ? kernels::ActivationFunction::kGelu
                                                              : kernels::ActivationFunction::kNone}}};
    if (case_.has_residual) params.operands.epilogue.residual = View(*residual_[s], case_.out);
    if (angles_ != nullptr) {
      const int32_t channels = kernels::AngleTableChannels(case_.head_pairs);
      params.rotation = {.angles = Rows::Packed(angles_->data(), DType::kFloat32, capacity_, channels),
                         .head_pairs = case_.head_pairs,
                         .num_columns = case_.out / 3 * 2};
    }
    return params;
  }

  // Returns the values of the first output after a launch, which finds the same values there each time.
  std::vector<uint16_t> BitsAfter(const Launch& launch, cudaStream_t stream) const {
    ExpectCudaSuccess(cudaMemsetAsync(out_[0]->data(), 0xFF, 2 * out_[0]->size(), stream));
    ExpectCudaSuccess(launch(0));
    ExpectCudaSuccess(cudaStreamSynchronize(stream));
    return out_[0]->ToHost();
  }
  bool IsUntouchedAfterLastRow(const std::vector<uint16_t>& bits) const {
    return std::all_of(bits.begin() + static_cast<ptrdiff_t>(case_.rows * Pitch(case_.out)), bits.end(),
                       [](uint16_t value) { return value == 0xFFFF; });
  }

  // Returns the bytes that a launch must read and write.
  double NeededBytes() const {
    const double of_rows = double(case_.rows) * (case_.in + case_.out * (case_.has_residual ? 2.0 : 1.0));
    return 2 * (of_rows + double(case_.in) * case_.out);
  }
  double Flops() const { return 2.0 * case_.rows * case_.in * case_.out; }

 private:
  static int64_t Pitch(int32_t channels) { return (channels + 7) / 8 * 8; }
  static std::vector<float> Values(int64_t count, std::mt19937& random) {
    std::uniform_real_distribution<float> uniform(-0.5f, 0.5f);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = uniform(random);
    return values;
  }
  // Returns a few random values of the layer's type, over and over.
  std::vector<uint16_t> Bits(int64_t count, std::mt19937& random) const {
    std::vector<uint16_t> bits(static_cast<size_t>(count));
    constexpr int64_t kPeriod = 65537;
    const std::vector<float> values = Values(std::min(count, kPeriod), random);
    for (size_t i = 0; i < bits.size(); ++i) {
      bits[i] = i < values.size() ? kernels::ToBits(dtype_, values[i]) : bits[i - values.size()];
    }
    return bits;
  }
  static std::unique_ptr<DeviceValues> Upload(const std::vector<float>& values, DType dtype) {
    return std::make_unique<DeviceValues>(Device::kCuda, dtype, values);
  }
  Rows View(const DeviceBits& values, int32_t channels) const {
    return {
        .data = values.data(), .dtype = dtype_, .channels = channels, .pitch = Pitch(channels), .capacity = capacity_};
  }

  const Case case_;
  const DType dtype_;
  const int64_t capacity_;
  const support::DeviceArray<int64_t> num_rows_;
  const DeviceValues bias_;
  std::unique_ptr<DeviceValues> weights_, angles_;
  std::vector<std::unique_ptr<DeviceBits>> in_, residual_, out_;
};

// A graph of kNumLaunches launches.
class Graph {
 public:
  Graph(const Launch& launch, cudaStream_t stream) : stream_(stream) {
    cudaGraph_t graph = nullptr;
    ExpectCudaSuccess(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < kNumLaunches; ++i) ExpectCudaSuccess(launch(i % kNumSets));
    ExpectCudaSuccess(cudaStreamEndCapture(stream, &graph));
    ExpectCudaSuccess(cudaGraphInstantiate(&graph_, graph, 0));
    ExpectCudaSuccess(cudaGraphDestroy(graph));
    ExpectCudaSuccess(cudaEventCreate(&begin_));
    ExpectCudaSuccess(cudaEventCreate(&end_));
  }
  ~Graph() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaGraphExecDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Returns the median time of a launch.
  double Microseconds() const {
    std::vector<double> us;
    for (int run = -3; run < kNumRuns; ++run) {
      float ms = 0;
      ExpectCudaSuccess(cudaEventRecord(begin_, stream_));
      ExpectCudaSuccess(cudaGraphLaunch(graph_, stream_));
      ExpectCudaSuccess(cudaEventRecord(end_, stream_));
      ExpectCudaSuccess(cudaEventSynchronize(end_));
      ExpectCudaSuccess(cudaEventElapsedTime(&ms, begin_, end_));
      if (run >= 0) us.push_back(ms * 1e3 / kNumLaunches);
    }
    std::nth_element(us.begin(), us.begin() + kNumRuns / 2, us.end());
    return us[kNumRuns / 2];
  }

 private:
  const cudaStream_t stream_;
  cudaGraphExec_t graph_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

struct Variant {
  std::string name;
  Launch launch;
  std::unique_ptr<Graph> graph;
  double us = 1e30;
};

// Returns what ImplicitGemm chooses, then the kernels that look up rows, then the shapes of the kernel for contiguous
// rows. `num_lookups` is set to the number of the kernels that look up rows.
std::vector<Variant> VariantsOf(const Case& c, DType dtype, const Layer& layer, cudaStream_t stream,
                                size_t& num_lookups) {
  std::vector<Variant> variants;
  const auto add_block = [&](const std::string& name, const kernels::ConvBlock& block) {
    variants.push_back({name, [&layer, block, stream](int set) {
                          ImplicitGemmParams params = layer.Params(set);
                          params.block = block;
                          return kernels::cuda::ImplicitGemm(params, stream);
                        }});
  };
  add_block("chosen", {});
  for (const kernels::ConvBlock& block : kernels::cuda::ImplicitGemmBlocks(dtype, c.out)) {
    if (block.uses_mma_sync || block.split_k > 1 || (c.head_pairs > 0 && block.columns != 128)) continue;
    add_block(std::to_string(block.rows) + " rows, " + std::to_string(block.columns), block);
  }
  num_lookups = variants.size() - 1;
  for (int shape = 0; shape < kernels::cuda::kNumLinearRowsShapes; ++shape) {
    const Launch launch = [&layer, shape, stream](int set) {
      return kernels::cuda::LinearRowsOfShape(layer.Params(set), shape, stream);
    };
    if (launch(0) == cudaErrorNotSupported) continue;
    const auto sizes = kernels::cuda::SizesOfLinearRowsShape(shape);
    variants.push_back({std::to_string(sizes.columns) + " x " + std::to_string(sizes.groups), launch});
  }
  return variants;
}

// Prints a case's row of the table. Returns false if bytes differ.
bool Print(const Case& c, DType dtype, double& total_before, double& total_chosen) {
  std::mt19937 random(7);
  const Layer layer(c, dtype, random);
  cudaStream_t stream = support::TestStream();
  size_t num_lookups = 0;
  std::vector<Variant> variants = VariantsOf(c, dtype, layer, stream, num_lookups);
  const std::vector<uint16_t> expected = layer.BitsAfter(variants[1].launch, stream);
  bool is_right = layer.IsUntouchedAfterLastRow(expected);
  for (Variant& variant : variants) {
    if (layer.BitsAfter(variant.launch, stream) != expected) {
      std::printf("%s gives other bytes: %d rows, %d to %d channels\n", variant.name.c_str(), c.rows, c.in, c.out);
      is_right = false;
    }
    variant.graph = std::make_unique<Graph>(variant.launch, stream);
  }
  for (int turn = 0; turn < kTurns; ++turn) {
    for (Variant& variant : variants) variant.us = std::min(variant.us, variant.graph->Microseconds());
  }
  const auto lookups = variants.begin() + 1, shapes = lookups + static_cast<ptrdiff_t>(num_lookups);
  const Variant& before =
      *std::min_element(lookups, shapes, [](const Variant& a, const Variant& b) { return a.us < b.us; });
  const double chosen = variants.front().us;
  std::string all;
  for (auto variant = shapes; variant != variants.end(); ++variant) {
    char text[96];
    std::snprintf(text, sizeof(text), " %s: %.1f", variant->name.c_str(), variant->us);
    all += text;
  }
  total_before += c.count * before.us;
  total_chosen += c.count * chosen;
  std::printf("| %s | %d | %d | %d | %s%s%s | %.1f (%s) | %.1f | %.2f | %.0f | %.2f |%s |\n", c.network, c.rows, c.in,
              c.out, c.has_residual ? "residual " : "", c.is_gelu ? "GELU" : "", c.head_pairs > 0 ? "rotated" : "",
              before.us, before.name.c_str(), chosen, before.us / chosen, layer.Flops() / chosen * 1e-6,
              layer.NeededBytes() / chosen * 1e-6, all.c_str());
  std::fflush(stdout);
  return is_right;
}

int Main(int argc, char** argv) {
  const std::string_view type = argc > 1 ? argv[1] : "float16";
  if (argc > 2 || (type != "float16" && type != "bfloat16")) {
    std::fprintf(stderr, "usage: %s [float16 or bfloat16]\n", argv[0]);
    return 2;
  }
  if (!support::HasDevice(Device::kCuda)) {
    std::puts("skipped: no CUDA device here");
    return 0;
  }
  std::puts(
      "| network | rows | in | out | | looked up, us (block) | chosen, us | ratio | TFLOP/s | TB/s | contiguous, "
      "columns x groups: us |\n|---|--:|--:|--:|---|--:|--:|--:|--:|--:|---|");
  bool is_right = true;
  std::string network;
  double before = 0, chosen = 0;
  const auto print_total = [&] {
    if (!network.empty()) std::printf("%s: %.0f us, chosen %.0f us\n", network.c_str(), before, chosen);
    before = chosen = 0;
  };
  for (const Case& c : kCases) {
    if (network != c.network) print_total();
    network = c.network;
    is_right = Print(c, type == "float16" ? DType::kFloat16 : DType::kBfloat16, before, chosen) && is_right;
  }
  print_total();
  std::puts(is_right ? "all bytes are equal" : "BYTES DIFFER");
  return is_right ? 0 : 1;
}

}  // namespace
}  // namespace voxserve::bench

int main(int argc, char** argv) { return voxserve::bench::Main(argc, argv); }
