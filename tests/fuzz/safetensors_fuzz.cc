// The fuzzer's input is a file weights.safetensors.

#include "engine/model/safetensors.h"
#include "tests/fuzz/fuzz.h"

using namespace voxserve;  // NOLINT(google-build-using-namespace): FUZZER is in no namespace

FUZZER(safetensors) {
  const std::string_view file = fuzz::Text(data, size);
  Problems problems;
  const StoredTensors tensors = ParseSafetensors(file, &problems);
  FUZZ_CHECK(tensors.is_listed || !problems.empty());
  FUZZ_CHECK(tensors.broken.empty() || !problems.empty());
  for (const auto& [name, tensor] : tensors.by_name) {
    FUZZ_CHECK(tensor.bytes.empty() ||
               (tensor.bytes.data() >= file.data() && tensor.bytes.data() + tensor.bytes.size() <= file.data() + size));
    if (!IsFloatTensor(tensor)) continue;
    const HostTensor host = ToHostTensor(tensor);
    FUZZ_CHECK(static_cast<int64_t>(host.values.size()) == NumValues(tensor));
  }
  return 0;
}
