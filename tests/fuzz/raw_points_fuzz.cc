// The fuzzer's input is a field specification, a line feed and a file of packed points.

#include "client/cpp/io/field_spec.h"
#include "client/cpp/io/raw_reader.h"
#include "tests/fuzz/scan_files.h"

using namespace voxserve;  // NOLINT(google-build-using-namespace): FUZZER is in no namespace

FUZZER(raw_points) {
  const auto [text, points] = fuzz::SplitAt(fuzz::Text(data, size), '\n');
  const auto spec = client::ParseFieldSpec(std::string(text));
  if (!spec.ok()) {
    FUZZ_CHECK(spec.status().code() == absl::StatusCode::kInvalidArgument);
    return 0;
  }
  if (spec->point_step == 0) {
    FUZZ_CHECK(!spec->renames.empty());
    return 0;
  }
  absl::StatusOr<client::PointCloud> cloud = client::ReadRaw(std::string(points), *spec);
  if (cloud.ok()) {
    const absl::Status status = client::ApplyRenames(spec->renames, &*cloud);
    if (!status.ok()) cloud = status;
  }
  fuzz::CheckCloud(cloud);
  return 0;
}
