#pragma once

// Makes random weights for the networks of operator_networks.h. Also has the features of their voxels (kFeatures)
// and their end, as text of a model file.

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/model_folder.h"

namespace voxserve {

inline constexpr char kFeatures[] =
    R"(features { name: "x" } features { name: "y" } features { name: "z" } features { name: "f" })";

// The end of a model file whose node "head" has the scores of its voxels.
inline constexpr char kLabelsAndScores[] = R"(
nodes { name: "best" inputs: "head" argmax {} }
nodes { name: "labels" inputs: ["best", "voxels"] voxel_to_point {} }
nodes { name: "scores" inputs: ["head", "voxels"] voxel_to_point {} }
outputs { kind: KIND_LABELS node: "labels" } outputs { kind: KIND_SCORES node: "scores" }
)";

// Adds random tensors to a model, which must outlive this object. The same calls give the same values.
class Weights {
 public:
  explicit Weights(support::TestModel* model) : model_(*model), random_(1) {}

  // Adds "<node>.weight". `inputs` is the number of input values that are summed for an output; the weights shrink with
  // it, so that results are about as large as inputs.
  Weights& Weight(const std::string& node, std::vector<int64_t> shape, int64_t inputs) {
    return Fill(node + ".weight", std::move(shape), -1.0f, 1.0f, 2.0f / static_cast<float>(inputs));
  }
  // Adds the weight [cells, in, out] of a sparse convolution.
  Weights& Conv(const std::string& node, int64_t cells, int64_t in, int64_t out) {
    return Weight(node, {cells, in, out}, cells * in / 4 + 1);
  }
  Weights& Linear(const std::string& node, int64_t out, int64_t in) { return Weight(node, {out, in}, in); }
  Weights& Bias(const std::string& node, int64_t channels) { return Fill(node + ".bias", {channels}, -1, 1, 0.5f); }
  Weights& Affine(const std::string& node, int64_t channels) {
    return Fill(node + ".weight", {channels}, 0.5f, 1.5f, 1).Bias(node, channels);
  }
  Weights& BatchNorm(const std::string& node, int64_t channels) {
    return Affine(node, channels)
        .Fill(node + ".running_mean", {channels}, -0.5f, 0.5f, 1)
        .Fill(node + ".running_var", {channels}, 0.5f, 2, 1);
  }

 private:
  Weights& Fill(const std::string& name, std::vector<int64_t> shape, float low, float high, float factor) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    std::uniform_real_distribution<float> value(low * factor, high * factor);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& v : values) v = value(random_);
    model_.weights[name] = support::FloatTensor(std::move(shape), values);
    return *this;
  }

  support::TestModel& model_;
  std::mt19937 random_;
};

}  // namespace voxserve
