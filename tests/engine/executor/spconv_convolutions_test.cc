// Compares convolutions of every kind in 1 to 4 dimensions with stored results of spconv (spconv_cases.h). Each case is
// written as a model that runs through the loader, the compiler and a device. The result must have the same sites, and
// the same rows up to the rounding of float32.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/executor/spconv_cases.h"

namespace voxserve::spconv_convolutions_test {
namespace {

class SpconvConvolutionsTest : public ::testing::TestWithParam<support::Device> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam()); }

  // Calls `run` for each stored case of a kind, with a model that has the case's voxels and its first node, "conv".
  static void ForEach(SpconvCase::Kind kind, const std::string& kind_text, size_t num_cases,
                      const std::function<void(const SpconvCase&, support::TestModel)>& run) {
    const auto cases = ReadSpconvCases();
    ASSERT_TRUE(cases.ok()) << cases.status();
    size_t num_run = 0;
    for (const SpconvCase& one : *cases) {
      if (one.kind != kind) continue;
      ++num_run;
      SCOPED_TRACE(one.name);
      support::TestModel model{.graph = Voxels(one.in)};
      const std::string geometry =
          kind == SpconvCase::kSubmanifold
              ? absl::StrCat("kernel_size: ", AxesText(one.geometry.kernel_size, one.geometry.dimension),
                             " dilation: ", AxesText(one.geometry.dilation, one.geometry.dimension))
              : GeometryText(one.geometry);
      if (kind == SpconvCase::kInverseOfPool) {
        absl::StrAppend(&model.graph, "nodes { name: \"conv\" inputs: \"voxels\" pool { ", kind_text, " ", geometry,
                        " } }\n");
      } else {
        AddConv("conv", "voxels", absl::StrCat(kind_text, " ", geometry), one.weight, &model);
      }
      ASSERT_NO_FATAL_FAILURE(run(one, model));
    }
    EXPECT_EQ(num_run, num_cases);
  }

  static void AddConv(const std::string& name, const std::string& input, const std::string& text,
                      const support::NpyArray& weight, support::TestModel* model) {
    absl::StrAppend(&model->graph, "nodes { name: \"", name, "\" inputs: \"", input, "\" sparse_conv { ", text,
                    " out_channels: ", weight.shape[2], " } }\n");
    model->weights[name + ".weight"] = support::FloatTensor(weight.shape, weight.values<float>());
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, SpconvConvolutionsTest, support::AllDevices(), support::DeviceName);

TEST_P(SpconvConvolutionsTest, Submanifold) {
  ForEach(SpconvCase::kSubmanifold, "kind: KIND_SUBMANIFOLD", 36,
          [](const SpconvCase& one, const support::TestModel& model) {
            ExpectAtVoxels(GetParam(), model, "conv", one.in, one.out.samples);
          });
}

TEST_P(SpconvConvolutionsTest, Strided) {
  ForEach(SpconvCase::kStrided, "kind: KIND_STRIDED rule: RULE_PADDED", 70,
          [](const SpconvCase& one, const support::TestModel& model) {
            ExpectThroughVoxels(GetParam(), model, "conv", one.in, one.geometry, MadeBy::kStrided, one.out.channels,
                                one.out.samples);
          });
}

TEST_P(SpconvConvolutionsTest, Transposed) {
  ForEach(SpconvCase::kTransposed, "kind: KIND_TRANSPOSED", 64,
          [](const SpconvCase& one, const support::TestModel& model) {
            ExpectThroughVoxels(GetParam(), model, "conv", one.in, one.geometry, MadeBy::kTransposed, one.out.channels,
                                one.out.samples);
          });
}

TEST_P(SpconvConvolutionsTest, Inverse) {
  ForEach(SpconvCase::kInverse, "kind: KIND_STRIDED rule: RULE_PADDED", 32,
          [](const SpconvCase& one, support::TestModel model) {
            AddConv("inverse", "conv", "kind: KIND_INVERSE paired_with: \"conv\"", one.back_weight, &model);
            ASSERT_NO_FATAL_FAILURE(ExpectAtVoxels(GetParam(), model, "inverse", one.in, one.out.samples));
            model.graph += Outputs("inverse");
            ExpectSites(GetParam(), model, "conv", one.in, one.middle);
          });
}

// spconv ignores the dilation when it computes the output's shape. So its sites are the engine's sites, cropped to
// spconv's shape.
TEST_P(SpconvConvolutionsTest, DilatedTransposedWithACrop) {
  ForEach(SpconvCase::kDilatedTransposed, "kind: KIND_TRANSPOSED", 24,
          [](const SpconvCase& one, support::TestModel model) {
            const std::vector<int64_t> zeros(one.out.shape.size(), 0);
            absl::StrAppend(&model.graph,
                            "nodes { name: \"cropped\" inputs: \"conv\" crop { lower_bound: ", AxesText(zeros),
                            " upper_bound: ", AxesText(one.out.shape), " } }\n");
            ExpectThroughVoxels(GetParam(), model, "cropped", one.in, one.geometry, MadeBy::kTransposed,
                                one.out.channels, one.out.samples);
          });
}

// An inverse convolution may name the indice_key of a SparseMaxPool. spconv computes a maximum from 0 upwards, so the
// model has a ReLU after the pool.
TEST_P(SpconvConvolutionsTest, InverseOfAPool) {
  ForEach(SpconvCase::kInverseOfPool, "reduce: REDUCE_MAX kind: KIND_STRIDED rule: RULE_PADDED", 24,
          [](const SpconvCase& one, support::TestModel model) {
            model.graph += "nodes { name: \"relu\" inputs: \"conv\" activation { function: FUNCTION_RELU } }\n";
            AddConv("inverse", "relu", "kind: KIND_INVERSE paired_with: \"conv\"", one.back_weight, &model);
            ASSERT_NO_FATAL_FAILURE(ExpectAtVoxels(GetParam(), model, "inverse", one.in, one.out.samples));
            model.graph += Outputs("inverse");
            ExpectSites(GetParam(), model, "conv", one.in, one.middle);
          });
}

}  // namespace
}  // namespace voxserve::spconv_convolutions_test
