// The fuzzer's input is one byte with the network's number of classes (255 if it is unknown) and then a file
// config.textproto.

#include "engine/model/model_config.h"
#include "tests/fuzz/fuzz.h"

using namespace voxserve;  // NOLINT(google-build-using-namespace): FUZZER is in no namespace

FUZZER(model_config) {
  if (size == 0) return 0;
  const int num_classes = data[0] == 255 ? kUnknownNumClasses : data[0];
  Problems problems;
  const ModelConfig config = ParseModelConfig(fuzz::Text(data + 1, size - 1), num_classes, &problems);
  if (!problems.empty()) return 0;
  FUZZ_CHECK(num_classes == kUnknownNumClasses || static_cast<int>(config.classes.size()) == num_classes);
  FUZZ_CHECK(config.max_points > 0 && config.batching.max_batch_requests > 0 && config.batching.priority_levels > 0);
  return 0;
}
