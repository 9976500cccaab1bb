// The reference of convolutions against what spconv made (tests/oracles/spconv_convolutions.py, which holds spconv
// against PyTorch's dense convolutions): what conv_kinds_test.cc compares the engine with is not ours alone.

#include "tests/engine/graph/conv_reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "kernels/output_coordinates.h"
#include "tests/support/npz.h"
#include "tests/support/paths.h"

namespace voxserve {
namespace {

enum Kind { kSubmanifold, kStrided, kInverse, kTransposed };

struct SpconvCase {
  int dimension = 0;
  Kind kind = kSubmanifold;
  int32_t num_samples = 0;
  Place kernel_size, stride, dilation, padding, shape, out_shape;
};

using Arrays = std::map<std::string, support::NpyArray>;

SpconvCase ReadCase(const support::NpyArray& params) {
  const auto* at = params.data<int32_t>();
  SpconvCase c;
  c.dimension = *at++;
  c.kind = static_cast<Kind>(*at++);
  c.num_samples = *at++;
  for (Place* axes : {&c.kernel_size, &c.stride, &c.dilation, &c.padding, &c.shape, &c.out_shape}) {
    for (int32_t& value : *axes) value = *at++;
  }
  return c;
}

// Rows of one sample; without features, rows of nothing.
Rows ReadRows(const support::NpyArray& sites, const support::NpyArray* features, int dimension, int32_t sample) {
  Rows rows;
  const auto* at = sites.data<int16_t>();
  const int64_t channels = features == nullptr ? 0 : features->shape[1];
  for (int64_t row = 0; row < sites.shape[0]; ++row, at += 1 + dimension) {
    if (at[0] != sample) continue;
    Place site = {0, 0, 0, 0};
    std::copy_n(at + 1, dimension, site.begin());
    std::vector<double>& values = rows[site];
    for (int64_t c = 0; c < channels; ++c) values.push_back(features->data<float>()[row * channels + c]);
  }
  return rows;
}

ReferenceConv ConvOf(const SpconvCase& c, const support::NpyArray& weight) {
  ReferenceConv conv{.dimension = c.dimension, .stride = c.stride};
  const Place padding = c.kind == kSubmanifold ? CentredPadding(c.kernel_size, c.dilation) : c.padding;
  conv.deltas = BoxDeltas(c.dimension, c.kernel_size, c.dilation, padding);
  conv.out_channels = static_cast<int>(weight.shape[2]);
  conv.weight = weight.values<float>();
  return conv;
}

void ExpectRows(const Rows& rows, const Rows& expected) {
  ASSERT_EQ(SitesOf(rows), SitesOf(expected));
  for (const auto& [site, row] : expected) {
    for (size_t c = 0; c < row.size(); ++c) ASSERT_NEAR(rows.at(site)[c], row[c], 1e-4);
  }
}

TEST(ConvReferenceTest, IsWhatSpconvMakes) {
  const auto arrays = support::ReadNpz(support::SourceDir() + "/tests/golden/spconv_convolutions.npz");
  ASSERT_TRUE(arrays.ok()) << arrays.status();
  std::map<Kind, int> num_cases;
  for (const auto& [name, params] : *arrays) {
    if (!name.ends_with("_params")) continue;
    const std::string prefix = name.substr(0, name.size() - 6);
    SCOPED_TRACE(prefix);
    const SpconvCase c = ReadCase(params);
    ++num_cases[c.kind];
    const ReferenceConv conv = ConvOf(c, arrays->at(prefix + "w"));
    kernels::ConvGeometry geometry{.dimension = c.dimension,
                                   .kernel_size = c.kernel_size,
                                   .stride = c.stride,
                                   .dilation = c.dilation,
                                   .padding = c.padding};
    for (int32_t sample = 0; sample < c.num_samples; ++sample) {
      const Rows in = ReadRows(arrays->at(prefix + "in"), &arrays->at(prefix + "x"), c.dimension, sample);
      const Rows expected = ReadRows(arrays->at(prefix + "out"), &arrays->at(prefix + "y"), c.dimension, sample);
      switch (c.kind) {
        case kSubmanifold:
          ExpectRows(Convolve(conv, in, SitesOf(in)), expected);
          break;
        case kStrided: {
          const kernels::Axes shape = kernels::OutputShape(geometry, c.shape);
          for (size_t axis = 0; axis < static_cast<size_t>(c.dimension); ++axis) {
            EXPECT_EQ(shape[axis], c.out_shape[axis]);
          }
          ExpectRows(Convolve(conv, in, PaddedSites(conv, in, c.out_shape)), expected);
          break;
        }
        case kInverse: {
          const Rows middle_sites = ReadRows(arrays->at(prefix + "mid"), nullptr, c.dimension, sample);
          const Rows middle = Convolve(conv, in, SitesOf(middle_sites));
          const ReferenceConv back = ConvOf(c, arrays->at(prefix + "w2"));
          ExpectRows(ConvolveTransposed(back, middle, SitesOf(in)), expected);
          break;
        }
        case kTransposed: {
          const auto shape = kernels::TransposedShape(geometry, c.shape, {0, 0, 0, 0});
          for (size_t axis = 0; axis < static_cast<size_t>(c.dimension); ++axis) {
            EXPECT_EQ(shape[axis], c.out_shape[axis]);
          }
          ExpectRows(ConvolveTransposed(conv, in, TransposedSites(conv, in, c.out_shape)), expected);
          break;
        }
      }
      if (HasFatalFailure()) return;
    }
  }
  for (const Kind kind : {kSubmanifold, kStrided, kInverse, kTransposed}) EXPECT_GE(num_cases[kind], 30);
}

}  // namespace
}  // namespace voxserve
