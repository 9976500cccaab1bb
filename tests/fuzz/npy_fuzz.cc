// The fuzzer's input is a NumPy file of points.

#include "client/cpp/io/npy_reader.h"
#include "tests/fuzz/scan_files.h"

using namespace voxserve;  // NOLINT(google-build-using-namespace): FUZZER is in no namespace

FUZZER(npy) {
  const std::string_view contents = fuzz::Text(data, size);
  fuzz::CheckCloud(client::ReadNpy(std::string(contents), nullptr));
  return 0;
}
