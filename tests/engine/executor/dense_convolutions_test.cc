// Compares every kind of convolution with stored results of PyTorch's dense convolutions
// (tests/oracles/dense_convolutions.py), which are masked to the sites that the kind makes active. The cases have
// dilation, groups, and kernels, strides and grids that differ by axis, in 1 to 3 dimensions.

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/engine/executor/expected_scores.h"
#include "tests/support/npz.h"
#include "tests/support/paths.h"

namespace voxserve::dense_convolutions_test {
namespace {

using Arrays = std::map<std::string, support::NpyArray>;

ScoredCloud ReadSample(const Arrays& arrays, const std::string& prefix, int number) {
  const support::NpyArray& sites = arrays.at(absl::StrCat(prefix, "sites", number));
  const support::NpyArray& x = arrays.at(absl::StrCat(prefix, "x", number));
  Rows voxels;  // in the order of the file's sites
  for (int64_t row = 0; row < sites.shape[0]; ++row) {
    Place site = {0, 0, 0, 0};
    std::copy_n(sites.data<int8_t>() + row * sites.shape[1], sites.shape[1], site.begin());
    const float* const values = x.data<float>() + row * x.shape[1];
    voxels[site].assign(values, values + x.shape[1]);
  }
  const std::vector<float> scores = arrays.at(absl::StrCat(prefix, "y", number)).values<float>();
  return {.cloud = CloudOf(voxels, static_cast<int>(sites.shape[1]), static_cast<int>(x.shape[1])),
          .scores = {scores.begin(), scores.end()}};
}

class DenseConvolutionsTest : public ::testing::TestWithParam<support::Device> {};
INSTANTIATE_TEST_SUITE_P(Devices, DenseConvolutionsTest, support::AllDevices(), support::DeviceName);

TEST_P(DenseConvolutionsTest, EveryKindIsTheDenseOneAtItsSites) {
  SKIP_WITHOUT(GetParam());
  const auto arrays = support::ReadNpz(support::SourceDir() + "/tests/golden/dense_convolutions.npz");
  ASSERT_TRUE(arrays.ok()) << arrays.status();
  std::map<std::string, int> num_cases;  // by kind, which is in the model's first line
  for (const auto& [name, model_text] : *arrays) {
    if (!absl::EndsWith(name, "/model")) continue;
    const std::string prefix = name.substr(0, name.size() - std::string("model").size());
    SCOPED_TRACE(prefix);
    support::TestModel model{.graph = model_text.bytes};
    std::vector<ScoredCloud> samples;
    for (auto array = arrays->lower_bound(prefix); array != arrays->end() && absl::StartsWith(array->first, prefix);
         ++array) {
      const std::string part = array->first.substr(prefix.size());
      if (absl::EndsWith(part, ".weight") || absl::EndsWith(part, ".bias")) {
        model.weights[part] = support::FloatTensor(array->second.shape, array->second.values<float>());
      } else if (absl::StartsWith(part, "sites")) {
        samples.push_back(ReadSample(*arrays, prefix, static_cast<int>(samples.size())));
      }
    }
    ++num_cases[model.graph.substr(0, model.graph.find('\n'))];
    ASSERT_NO_FATAL_FAILURE(ExpectScores(GetParam(), model, samples));
  }
  EXPECT_EQ(num_cases.size(), 8u);
  for (const auto& [kind, count] : num_cases) EXPECT_GE(count, 16) << kind;
}

}  // namespace
}  // namespace voxserve::dense_convolutions_test
