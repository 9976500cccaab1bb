#pragma once

// Checks that a sample has the same bytes alone and in batches with others.

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/engine/executor/program_comparison.h"
#include "tests/engine/executor/same_bytes.h"

namespace voxserve {

// Says how queries, keys and values follow from a row. On the CPU the bits of a linear layer depend on the batch's
// number of rows, those of a convolution do not.
enum class Products { kLinear, kConvolutions };

// Adds such a product, of 8 channels.
inline int Product(GraphBuilder& b, int input, bool has_bias, Products products) {
  return products == Products::kLinear ? b.Linear(input, 8, has_bias) : b.Submanifold(input, 8, has_bias);
}

// Runs each cloud alone, then the batches, which name clouds by index, and all of it again by another context. Expects
// of each sample the bytes that it had alone in the first run. On a GPU the network runs in float16.
inline void ExpectSameInCompany(support::Device device, const Graph& graph, const std::vector<PointCloud>& clouds,
                                const std::vector<std::vector<size_t>>& batches) {
  const bool on_cuda = device == support::Device::kCuda;
  const Variant variant{.device = device,
                        .precision = on_cuda ? ModelConfig::Precision::kFloat16 : ModelConfig::Precision::kFloat32,
                        .plan = on_cuda ? kDefaultCudaConvPlan : ConvPlan{},
                        .is_deterministic = true};
  std::vector<BatchReport> first_run;
  for (int run = 0; run < 2; ++run) {
    SCOPED_TRACE(run);
    const auto runner = DeviceRunner::Create({.device = device});
    ASSERT_TRUE(runner.ok()) << runner.status();
    const auto program = (*runner)->Compile(graph, variant);
    ASSERT_TRUE(program.ok()) << program.status();
    std::vector<BatchReport> alone;
    for (const PointCloud& cloud : clouds) alone.push_back((*runner)->Run(*program, {&cloud}, true));
    for (const std::vector<size_t>& batch : batches) {
      std::vector<const PointCloud*> together;
      for (const size_t cloud : batch) together.push_back(&clouds[cloud]);
      const BatchReport output = (*runner)->Run(*program, together, true);
      ASSERT_TRUE(output.status.ok()) << output.status;
      for (size_t i = 0; i < batch.size(); ++i) {
        const InferResult &sample = output.samples[i], &expected = alone[batch[i]].samples[0];
        ASSERT_EQ(sample.outputs.size(), expected.outputs.size());
        for (size_t j = 0; j < expected.outputs.size(); ++j) {
          ASSERT_TRUE(sample.outputs[j].bytes == expected.outputs[j].bytes) << batch[i] << ": " << i;
        }
      }
    }
    for (size_t i = 0; i < first_run.size(); ++i) ASSERT_NO_FATAL_FAILURE(ExpectSameBytes(alone[i], first_run[i]));
    if (run == 0) first_run = std::move(alone);
  }
}

}  // namespace voxserve
