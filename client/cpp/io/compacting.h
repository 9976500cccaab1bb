#pragma once

// Compact makes a cloud of 16-bit values: half the bytes of float32 ones on the way to the server, and the same points.
// The Python client's voxserve.compact makes the same bytes.
//
// x, y and z become int16. An axis' step is its extent by 65,534, at least 1 mm. The steps begin at the smallest
// coordinate, which stays what it is. So a grid that begins there (ORIGIN_MINIMUM) stays where it is, and only points
// within half a step of a voxel's border can change their voxel. An intensity or reflectivity becomes uint16, in steps
// of its range, which begins at 0 unless a value is negative. Coordinates that are integers of 32 bits keep their
// values where their range fits 16 bits. Other fields, and values of 16 bits or fewer, stay as they are. Rows lose
// their padding, and values become little endian.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/api/point_cloud.h"

namespace voxserve::client {

// Says what the 16 bits of a cloud cost.
struct CompactLoss {
  struct OfField {
    std::string name;
    double largest_change = 0;  // of a value, in the field's unit
  };
  std::vector<OfField> fields;  // those that were converted
  uint64_t num_bytes_before = 0;
  uint64_t num_bytes = 0;
  // Why the cloud stays as it is; "" if it was converted. Reasons: a coordinate or an intensity is not a finite number
  // (the server leaves such points out, and 16-bit integers have no such value); an axis is longer than 1.3 km; no
  // value has more than 16 bits.
  std::string reason;
  bool is_compact_already = false;  // the last of these reasons
};

// Returns INVALID_ARGUMENT, and leaves the cloud as it is, if it has no x, y or z, or if its data does not match its
// fields and number of points.
absl::StatusOr<CompactLoss> Compact(PointCloud* cloud);

// Returns the loss as text: "124668 points, 1994688 -> 997344 bytes, x within 0.0012 m, ...".
std::string Describe(const CompactLoss& loss, uint64_t num_points);

}  // namespace voxserve::client
