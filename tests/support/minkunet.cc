#include "tests/support/minkunet.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <map>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/model/model_loader.h"

namespace voxserve::support {
namespace {

using KernelSize = std::array<int, 3>;

constexpr KernelSize kCube1 = {1, 1, 1};
constexpr KernelSize kCube2 = {2, 2, 2};
constexpr KernelSize kCube3 = {3, 3, 3};

// The mean of the squares of a scan's x, y, z (in m) and intensity. The first norm divides by it.
constexpr double kInputMeanSquare = 75;
// These are the gains of the norms in the two branches of a residual block. They make the sum of the branches about as
// large as the block's input.
constexpr double kResidualGain = 0.5;
constexpr double kShortcutGain = 0.8;

std::string Axes(const KernelSize& sizes) { return absl::StrCat("[", absl::StrJoin(sizes, ", "), "]"); }

// Returns how many cells of the kernel typically hold a site; the initial weights are scaled by it. In
// semantickitti-00/000000 the average is 3.8 of 27 cells at a voxel size of 5 cm, 9.3 of 27 at 80 cm, and 1.5 to 2.4 of
// 8. The returned counts are above these averages, because the largest values arise where points are densest.
double OccupiedCells(const KernelSize& kernel) {
  const int cells = kernel[0] * kernel[1] * kernel[2];
  return cells == 27 ? 10 : cells == 8 ? 2.5 : cells;
}

// Writes a model folder node by node. Each method appends a node with its tensors and returns the node's name.
class NetworkWriter {
 public:
  NetworkWriter(const std::string& name, const NetworkOptions& options) : random_(options.seed), options_(options) {
    model_.graph = absl::StrCat("name: \"", name, "\"\n");
    const float size = options.voxel_size_m;
    std::string op = absl::StrCat("voxelize { voxel_size: [", absl::StrJoin({size, size, size}, ", "),
                                  "] rounding: ROUNDING_HALF_EVEN origin: ORIGIN_MINIMUM reduce: REDUCE_FIRST");
    for (const std::string& feature : options.features) absl::StrAppend(&op, " features { name: \"", feature, "\" }");
    Append("voxels", {}, op + " }", static_cast<int>(options.features.size()));
  }

  int Channels(int at_width_1) const { return static_cast<int>(options_.width * at_width_1); }

  std::string Submanifold(const std::string& name, const std::string& input, const KernelSize& kernel, int channels) {
    AddConvWeight(name, input, kernel, OccupiedCells(kernel), channels);
    return Append(name, {input},
                  absl::StrCat("sparse_conv { kind: KIND_SUBMANIFOLD kernel_size: ", Axes(kernel),
                               " out_channels: ", channels, " }"),
                  channels);
  }

  std::string Strided(const std::string& name, const std::string& input, const std::string& rule,
                      const KernelSize& kernel, const KernelSize& stride, int channels) {
    AddConvWeight(name, input, kernel, OccupiedCells(kernel), channels);
    kernels_[name] = kernel;
    return Append(name, {input},
                  absl::StrCat("sparse_conv { kind: KIND_STRIDED rule: ", rule, " kernel_size: ", Axes(kernel),
                               " stride: ", Axes(stride), " out_channels: ", channels, " }"),
                  channels);
  }

  std::string Inverse(const std::string& name, const std::string& input, const std::string& partner, int channels) {
    AddConvWeight(name, input, kernels_.at(partner), 1.5, channels);
    return Append(
        name, {input},
        absl::StrCat("sparse_conv { kind: KIND_INVERSE paired_with: \"", partner, "\" out_channels: ", channels, " }"),
        channels);
  }

  std::string Linear(const std::string& name, const std::string& input, int channels, bool bias) {
    const int in_channels = channels_.at(input);
    AddTensor(name + ".weight", {channels, in_channels}, Normal(0, 1 / std::sqrt(in_channels)));
    if (bias) AddTensor(name + ".bias", {channels}, Normal(0, 0.1));
    return Append(name, {input}, absl::StrCat("linear { out_channels: ", channels, bias ? " bias: true }" : " }"),
                  channels);
  }

  // Adds a norm named "<input>.norm". `power` is the mean square of the input; the output has a root mean square of
  // about `gain`.
  std::string Norm(const std::string& input, double gain = 1, double power = 1) {
    const std::string name = input + ".norm";
    const int channels = channels_.at(input);
    AddTensor(name + ".weight", {channels}, Uniform(0.6 * gain, 1.2 * gain));
    AddTensor(name + ".bias", {channels}, Normal(0, 0.1));
    AddTensor(name + ".running_mean", {channels}, Normal(0, 0.1 * std::sqrt(power)));
    AddTensor(name + ".running_var", {channels}, Uniform(0.5 * power, 1.5 * power));
    return Append(name, {input}, "batch_norm { epsilon: 1e-05 }", channels);
  }

  std::string Relu(const std::string& name, const std::string& input) {
    return Append(name, {input}, "activation { function: FUNCTION_RELU }", channels_.at(input));
  }

  std::string NormRelu(const std::string& input, double power = 1) {
    return Relu(input + ".relu", Norm(input, 1, power));
  }

  std::string Concat(const std::string& name, const std::string& left, const std::string& right) {
    return Append(name, {left, right}, "concat {}", channels_.at(left) + channels_.at(right));
  }

  // Adds two convolutions with norms and a shortcut, their sum, and a ReLU. The shortcut is the input itself, or a
  // linear layer and a norm if the number of channels changes.
  std::string Residual(const std::string& name, const std::string& input, const KernelSize& kernel, int channels) {
    const std::string first = NormRelu(Submanifold(name + ".conv1", input, kernel, channels));
    const std::string second = Norm(Submanifold(name + ".conv2", first, kernel, channels), kResidualGain);
    std::string shortcut = input;
    if (channels_.at(input) != channels) {
      shortcut = Norm(Linear(name + ".shortcut", input, channels, /*bias=*/false), kShortcutGain);
    }
    return Relu(name + ".relu", Append(name + ".add", {second, shortcut}, "add {}", channels));
  }

  // Adds the classifier and the outputs (labels and scores of points), and returns the complete model.
  support::TestModel Finish(const std::string& input) {
    const std::string scores = Linear("classifier", input, options_.num_classes, /*bias=*/true);
    Append("argmax", {scores}, "argmax {}", 1);
    Append("labels", {"argmax", "voxels"}, "voxel_to_point {}", 1);
    Append("scores", {scores, "voxels"}, "voxel_to_point {}", options_.num_classes);
    for (const auto& [kind, node] : {std::pair("KIND_LABELS", "labels"), std::pair("KIND_SCORES", "scores")}) {
      absl::StrAppend(&model_.graph, "outputs { kind: ", kind, " node: \"", node, "\" }\n");
    }
    return std::move(model_);
  }

 private:
  using Normal = std::normal_distribution<double>;
  using Uniform = std::uniform_real_distribution<double>;

  std::string Append(const std::string& name, const std::vector<std::string>& inputs, const std::string& op,
                     int channels) {
    absl::StrAppend(&model_.graph, "nodes { name: \"", name, "\" ");
    if (!inputs.empty()) absl::StrAppend(&model_.graph, "inputs: [\"", absl::StrJoin(inputs, "\", \""), "\"] ");
    absl::StrAppend(&model_.graph, op, " }\n");
    channels_[name] = channels;
    return name;
  }

  // Uses He initialisation: with `occupied` cells that hold a site, the output has the same mean square as the input
  // (after a ReLU).
  void AddConvWeight(const std::string& name, const std::string& input, const KernelSize& kernel, double occupied,
                     int channels) {
    const int in_channels = channels_.at(input);
    AddTensor(name + ".weight", {kernel[0] * kernel[1] * kernel[2], in_channels, channels},
              Normal(0, std::sqrt(2 / (occupied * in_channels))));
  }

  template <typename Distribution>
  void AddTensor(const std::string& name, std::vector<int64_t> shape, Distribution distribution) {
    size_t size = 1;
    for (const int64_t length : shape) size *= static_cast<size_t>(length);
    std::vector<float> values(size);
    for (float& value : values) value = static_cast<float>(distribution(random_));
    model_.weights[name] = support::FloatTensor(std::move(shape), values);
  }

  std::mt19937 random_;
  const NetworkOptions options_;
  support::TestModel model_;
  std::map<std::string, int> channels_;        // by the node's name
  std::map<std::string, KernelSize> kernels_;  // by the node's name; strided convolutions only
};

}  // namespace

support::TestModel MinkUNet(const NetworkOptions& options) {
  NetworkWriter net("MinkUNet", options);
  std::array<int, 9> channels = {32, 32, 64, 128, 256, 256, 128, 96, 96};
  for (int& count : channels) count = net.Channels(count);

  std::string x = net.NormRelu(net.Submanifold("stem.0", "voxels", kCube3, channels[0]), kInputMeanSquare);
  x = net.NormRelu(net.Submanifold("stem.1", x, kCube3, channels[0]));
  std::vector<std::string> skips = {x};
  for (size_t i = 1; i <= 4; ++i) {
    const std::string stage = absl::StrCat("stage", i);
    x = net.NormRelu(net.Strided(stage + ".down", x, "RULE_FLOOR", kCube2, kCube2, channels[i - 1]));
    x = net.Residual(stage + ".0", x, kCube3, channels[i]);
    x = net.Residual(stage + ".1", x, kCube3, channels[i]);
    skips.push_back(x);
  }
  for (size_t i = 1; i <= 4; ++i) {
    const std::string up = absl::StrCat("up", i);
    x = net.NormRelu(net.Inverse(up + ".up", x, absl::StrCat("stage", 5 - i, ".down"), channels[4 + i]));
    x = net.Concat(up + ".concat", x, skips[4 - i]);
    x = net.Residual(up + ".0", x, kCube3, channels[4 + i]);
    x = net.Residual(up + ".1", x, kCube3, channels[4 + i]);
  }
  return net.Finish(x);
}

support::TestModel SparseResNet21D(const NetworkOptions& options) {
  struct Stage {
    int num_blocks;
    int channels;
    KernelSize kernel;
    KernelSize stride;
  };
  const std::vector<Stage> stages = {{3, 16, kCube3, kCube1},
                                     {3, 32, kCube3, kCube2},
                                     {3, 64, kCube3, kCube2},
                                     {3, 128, kCube3, kCube2},
                                     {1, 128, {1, 3, 1}, {1, 2, 1}}};
  constexpr int kHeadChannels = 8;

  NetworkWriter net("SparseResNet21D", options);
  std::string x = "voxels";
  std::vector<std::string> strided;
  for (size_t i = 0; i < stages.size(); ++i) {
    const Stage& stage = stages[i];
    const std::string name = absl::StrCat("stage", i);
    const int channels = net.Channels(stage.channels);
    if (stage.stride == kCube1) {
      x = net.Submanifold(name + ".0", x, stage.kernel, channels);
    } else {
      x = net.Strided(name + ".0", x, "RULE_EXPAND", stage.kernel, stage.stride, channels);
      strided.push_back(x);
    }
    x = net.NormRelu(x, i == 0 ? kInputMeanSquare : 1);
    for (int block = 1; block < stage.num_blocks; ++block) {
      x = net.Residual(absl::StrCat(name, ".", block), x, stage.kernel, channels);
    }
  }
  for (; !strided.empty(); strided.pop_back()) {
    x = net.NormRelu(net.Inverse(strided.back() + ".up", x, strided.back(), kHeadChannels));
  }
  return net.Finish(x);
}

absl::StatusOr<Graph> LoadNetwork(const support::TestModel& model) {
  const support::TemporaryFolder folder;
  model.WriteTo(folder.path());
  return LoadGraph(folder.path() / "1");
}

}  // namespace voxserve::support
