#include "tests/kernels/coordinates/conv_cases.h"

#include <iostream>
#include <limits>
#include <map>

#include "tests/support/npz.h"
#include "tests/support/paths.h"

namespace voxserve::kernels::fixtures {
namespace {

Axes ReadAxes(const int32_t*& at) {
  Axes axes;
  for (int32_t& value : axes) value = *at++;
  return axes;
}

std::vector<uint64_t> ReadKeys(const support::NpyArray& array, int32_t dimension) {
  const CoordinateKey layout(dimension);
  const auto* values = array.data<int16_t>();
  std::vector<uint64_t> keys;
  for (int64_t row = 0; row < array.shape[0]; ++row) {
    Axes coordinate = {0, 0, 0, 0};
    for (int axis = 0; axis < dimension; ++axis) coordinate[axis] = values[row * (1 + dimension) + 1 + axis];
    keys.push_back(layout.Pack(values[row * (1 + dimension)], coordinate));
  }
  return keys;
}

ConvCase ReadCase(const std::map<std::string, support::NpyArray>& arrays, const std::string& name) {
  constexpr int32_t kSubmanifold = 3;
  constexpr int32_t kNoBound = std::numeric_limits<int32_t>::min();
  ConvCase c;
  c.name = name;
  const int32_t* at = arrays.at(name + "_params").data<int32_t>();
  c.geometry.dimension = *at++;
  const int32_t rule = *at++;
  c.is_submanifold = rule == kSubmanifold;
  if (!c.is_submanifold) c.rule = static_cast<CoordinateRule>(rule);
  c.num_samples = *at++;
  c.geometry.kernel_size = ReadAxes(at);
  c.geometry.stride = ReadAxes(at);
  c.geometry.dilation = ReadAxes(at);
  c.geometry.padding = ReadAxes(at);
  c.shape = ReadAxes(at);
  c.out_shape = ReadAxes(at);
  c.lower = ReadAxes(at);
  c.upper = ReadAxes(at);
  c.has_lower = c.lower[0] != kNoBound;
  c.has_upper = c.upper[0] != kNoBound;
  c.in_keys = ReadKeys(arrays.at(name + "_in"), c.geometry.dimension);
  c.out_keys = ReadKeys(arrays.at(name + "_out"), c.geometry.dimension);

  const CoordinateKey layout(c.geometry.dimension);
  const support::NpyArray& pairs = arrays.at(name + "_pairs");
  const auto* pair = pairs.data<int16_t>();
  for (int64_t i = 0; i < pairs.shape[0]; ++i, pair += 3) {
    const uint64_t in = c.in_keys.at(static_cast<size_t>(pair[1]));
    const uint64_t out = c.out_keys.at(static_cast<size_t>(pair[2]));
    c.pairs.emplace_back(pair[0], layout.Sample(in), layout.Unpack(in), layout.Unpack(out));
  }
  return c;
}

}  // namespace

OutputCoordinatesParams ConvCase::OutputParams() const {
  OutputCoordinatesParams params;
  params.rule = rule;
  params.geometry = geometry;
  params.out_shape = out_shape;
  params.has_lower = has_lower;
  params.has_upper = has_upper;
  params.lower = lower;
  params.upper = upper;
  params.num_samples = num_samples;
  return params;
}

const std::vector<ConvCase>& AllConvCases() {
  static const auto* cases = [] {
    const auto arrays = support::ReadNpz(support::SourceDir() + "/tests/kernels/data/conv_cases.npz");
    if (!arrays.ok()) {
      std::cerr << arrays.status() << std::endl;
      std::abort();
    }
    auto* read = new std::vector<ConvCase>;
    for (const auto& [name, array] : *arrays) {
      if (name.ends_with("_params")) read->push_back(ReadCase(*arrays, name.substr(0, name.size() - 7)));
    }
    return read;
  }();
  return *cases;
}

}  // namespace voxserve::kernels::fixtures
