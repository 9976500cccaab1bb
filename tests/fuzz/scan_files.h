#pragma once

// Has the check that the fuzzers of scan files share.

#include <string>

#include "absl/status/statusor.h"
#include "client/cpp/api/point_cloud.h"
#include "tests/fuzz/fuzz.h"

namespace voxserve::fuzz {

// Checks that a reader refused its file with InvalidArgument, or that the cloud has as many bytes as its fields need.
inline void CheckCloud(const absl::StatusOr<client::PointCloud>& cloud) {
  if (!cloud.ok()) {
    FUZZ_CHECK(cloud.status().code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  FUZZ_CHECK(cloud->data().size() == cloud->num_points() * cloud->point_step());
  for (const client::PointField& field : cloud->fields()) {
    FUZZ_CHECK(client::FieldValues(*cloud, field.name()).ok());
  }
}

}  // namespace voxserve::fuzz
