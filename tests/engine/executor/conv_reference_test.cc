// Compares the reference convolutions of conv_reference.h with stored results of spconv. conv_kinds_test.cc compares
// the engine with this reference. So without this test, both could share one misreading of the definitions.

#include "tests/engine/executor/conv_reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "kernels/coordinates/output_coordinates.h"
#include "tests/engine/executor/spconv_cases.h"

namespace voxserve::conv_reference_test {
namespace {

// Returns the case's convolution. If `weight` is null, the convolution has deltas but no weights, as a pool needs.
ReferenceConv ConvOf(const SpconvCase& c, const support::NpyArray* weight) {
  const kernels::ConvGeometry& geometry = c.geometry;
  ReferenceConv conv{.dimension = geometry.dimension, .stride = geometry.stride};
  conv.deltas = BoxDeltas(
      geometry.dimension, geometry.kernel_size, geometry.dilation,
      c.kind == SpconvCase::kSubmanifold ? CentredPadding(geometry.kernel_size, geometry.dilation) : geometry.padding);
  if (weight == nullptr) return conv;
  conv.out_channels = static_cast<int>(weight->shape[2]);
  conv.weight = weight->values<float>();
  return conv;
}

void ExpectRows(const Rows& rows, const Rows& expected) {
  ASSERT_EQ(SitesOf(rows), SitesOf(expected));
  for (const auto& [site, row] : expected) {
    for (size_t c = 0; c < row.size(); ++c) ASSERT_NEAR(rows.at(site)[c], row[c], 1e-4);
  }
}

template <typename Axes>
void ExpectShape(const Axes& shape, const std::vector<int64_t>& expected) {
  for (size_t axis = 0; axis < expected.size(); ++axis) EXPECT_EQ(shape[axis], expected[axis]);
}

TEST(ConvReferenceTest, IsWhatSpconvMakes) {
  const auto cases = ReadSpconvCases();
  ASSERT_TRUE(cases.ok()) << cases.status();
  std::map<SpconvCase::Kind, int> num_cases;
  for (const SpconvCase& c : *cases) {
    SCOPED_TRACE(c.name);
    ++num_cases[c.kind];
    ReferenceConv conv = ConvOf(c, c.kind == SpconvCase::kInverseOfPool ? nullptr : &c.weight);
    Place shape = {1, 1, 1, 1}, out_shape = shape;
    std::copy(c.in.shape.begin(), c.in.shape.end(), shape.begin());
    std::copy(c.out.shape.begin(), c.out.shape.end(), out_shape.begin());
    for (size_t sample = 0; sample < c.in.samples.size(); ++sample) {
      const Rows& in = c.in.samples[sample];
      const Rows& expected = c.out.samples[sample];
      switch (c.kind) {
        case SpconvCase::kSubmanifold:
          ExpectRows(Convolve(conv, in, SitesOf(in)), expected);
          break;
        case SpconvCase::kStrided:
          ExpectShape(kernels::OutputShape(c.geometry, shape), c.out.shape);
          ExpectRows(Convolve(conv, in, PaddedSites(conv, in, out_shape)), expected);
          break;
        case SpconvCase::kInverseOfPool:
          conv.reduce = kernels::PoolReduce::kMax;
          conv.out_channels = c.in.channels;
          [[fallthrough]];
        case SpconvCase::kInverse: {
          Rows middle = Convolve(conv, in, SitesOf(c.middle[sample]));
          for (auto& [site, row] : middle) {  // spconv computes a maximum from 0 upwards
            for (double& value : row) value = conv.reduce ? std::max(value, 0.0) : value;
          }
          const ReferenceConv back = ConvOf(c, &c.back_weight);
          ExpectRows(ConvolveTransposed(back, middle, SitesOf(in)), expected);
          break;
        }
        case SpconvCase::kTransposed:
          ExpectShape(kernels::TransposedShape(c.geometry, shape, {0, 0, 0, 0}), c.out.shape);
          [[fallthrough]];
        case SpconvCase::kDilatedTransposed:
          ExpectRows(ConvolveTransposed(conv, in, TransposedSites(conv, in, out_shape)), expected);
          break;
      }
      if (HasFatalFailure()) return;
    }
  }
  for (const auto kind : {SpconvCase::kSubmanifold, SpconvCase::kStrided, SpconvCase::kInverse, SpconvCase::kTransposed,
                          SpconvCase::kDilatedTransposed, SpconvCase::kInverseOfPool}) {
    EXPECT_GE(num_cases[kind], 24);
  }
}

}  // namespace
}  // namespace voxserve::conv_reference_test
