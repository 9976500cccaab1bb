// The fuzzer's input is a PLY file of points.

#include "client/cpp/io/ply_reader.h"
#include "tests/fuzz/scan_files.h"

using namespace voxserve;  // NOLINT(google-build-using-namespace): FUZZER is in no namespace

FUZZER(ply) {
  const std::string_view contents = fuzz::Text(data, size);
  fuzz::CheckCloud(client::ReadPly(std::string(contents), nullptr));
  return 0;
}
