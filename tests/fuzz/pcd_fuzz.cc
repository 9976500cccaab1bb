// The fuzzer's input is a PCD file of points.

#include "client/cpp/io/pcd_reader.h"
#include "tests/fuzz/scan_files.h"

using namespace voxserve;  // NOLINT(google-build-using-namespace): FUZZER is in no namespace

FUZZER(pcd) {
  const std::string_view contents = fuzz::Text(data, size);
  fuzz::CheckCloud(client::ReadPcd(std::string(contents), nullptr));
  return 0;
}
