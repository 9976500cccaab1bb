#pragma once

// Reads the convolutions of tests/golden/spconv_convolutions.npz: sites and features as spconv made them
// (tests/oracles/spconv_convolutions.py, which also compares spconv with PyTorch's dense convolutions).

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/status_macros.h"
#include "kernels/coordinates/conv_geometry.h"
#include "tests/engine/executor/sparse_tensor.h"
#include "tests/support/npz.h"
#include "tests/support/paths.h"

namespace voxserve {

struct SpconvCase {
  // kDilatedTransposed is a transposed convolution with a dilation. It is a kind of its own, because spconv ignores the
  // dilation when it computes the output's shape, and the engine does not. kInverseOfPool is a max pool followed by an
  // inverse convolution, kInverse a strided convolution followed by an inverse one.
  enum Kind { kSubmanifold, kStrided, kInverse, kTransposed, kDilatedTransposed, kInverseOfPool };

  std::string name;
  Kind kind = kSubmanifold;
  kernels::ConvGeometry geometry;  // the arguments of spconv's layer; the padding is 0 for kSubmanifold
  SparseTensor in, out;
  support::NpyArray weight;  // [K, in, out]; not for kInverseOfPool
  // Only for kInverse and kInverseOfPool: the sites between the two nodes, without rows, and the weight of the second
  // node.
  std::vector<Rows> middle = {};
  support::NpyArray back_weight;
};

// Returns all cases of the file, or the error of ReadNpz.
inline absl::StatusOr<std::vector<SpconvCase>> ReadSpconvCases() {
  ASSIGN_OR_RETURN(const auto arrays, support::ReadNpz(support::SourceDir() + "/tests/golden/spconv_convolutions.npz"));
  std::vector<SpconvCase> cases;
  for (const auto& [name, params] : arrays) {
    if (!name.ends_with("_params")) continue;
    SpconvCase one{.name = name.substr(0, name.size() - 7)};
    const auto* at = params.data<int32_t>();
    one.geometry.dimension = *at++;
    one.kind = static_cast<SpconvCase::Kind>(*at++);
    const int32_t num_samples = *at++;
    for (kernels::Axes* axes :
         {&one.geometry.kernel_size, &one.geometry.stride, &one.geometry.dilation, &one.geometry.padding}) {
      for (int32_t& value : *axes) value = *at++;
    }
    const auto read = [&](const char* sites, const char* features, SparseTensor* tensor) {
      tensor->shape.assign(at, at + one.geometry.dimension);
      at += kernels::kMaxDimension;
      const support::NpyArray& rows = arrays.at(one.name + features);
      tensor->samples = ReadRows<int16_t>(arrays.at(one.name + sites), &rows, num_samples);
      tensor->channels = static_cast<int>(rows.shape[1]);
    };
    read("_in", "_x", &one.in);
    read("_out", "_y", &one.out);
    if (one.kind != SpconvCase::kInverseOfPool) one.weight = arrays.at(one.name + "_w");
    if (one.kind == SpconvCase::kInverse || one.kind == SpconvCase::kInverseOfPool) {
      one.middle = ReadRows<int16_t>(arrays.at(one.name + "_mid"), nullptr, num_samples);
      one.back_weight = arrays.at(one.name + "_w2");
    }
    cases.push_back(std::move(one));
  }
  return cases;
}

}  // namespace voxserve
