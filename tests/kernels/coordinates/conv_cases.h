#pragma once

// Reads the stored cases of output sites and rulebooks that tests/oracles/geometry_oracle.py computed.

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/coordinates/conv_geometry.h"
#include "kernels/coordinates/output_coordinates.h"
#include "tests/kernels/coordinates/geometry_testing.h"

namespace voxserve::kernels::fixtures {

struct ConvCase {
  std::string name;
  bool is_submanifold = false;
  CoordinateRule rule = CoordinateRule::kFloor;
  ConvGeometry geometry;
  int32_t num_samples = 0;
  Axes shape = {};      // the input's spatial shape; for kPadded
  Axes out_shape = {};  // the output's spatial shape; for kPadded
  // The bounds of the output sites that `lower` and `upper` give; for kExpand.
  bool has_lower = false, has_upper = false;
  Axes lower = {}, upper = {};
  std::vector<uint64_t> in_keys;   // unordered
  std::vector<uint64_t> out_keys;  // unordered
  std::vector<PairSites> pairs;    // unordered

  OutputCoordinatesParams OutputParams() const;
};

// Returns all cases. Ends the test program if the file cannot be read, since nothing could be tested.
const std::vector<ConvCase>& AllConvCases();

}  // namespace voxserve::kernels::fixtures
