// The fuzzer's input is a file model.textproto, a byte of 0 and a file weights.safetensors. If the network is valid, it
// is also compiled for the CPU.

#include "engine/compiler/compiler.h"
#include "engine/model/graph_validator.h"
#include "engine/model/safetensors.h"
#include "engine/model/text_file.h"
#include "tests/fuzz/fuzz.h"
#include "voxserve/model/v1/model.pb.h"

using namespace voxserve;  // NOLINT(google-build-using-namespace): the entry point has no namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto [text, weights] = fuzz::SplitAt(fuzz::Text(data, size), '\0');
  Problems problems;
  model::v1::Model model;
  const bool is_parsed = ParseTextProto(text, "model.textproto", &model, &problems);
  FUZZ_CHECK(is_parsed == problems.empty());
  const StoredTensors tensors = ParseSafetensors(weights, &problems);
  if (!is_parsed) return 0;
  const Graph graph = ValidateGraph(model, tensors, &problems);
  for (const std::string& problem : problems) FUZZ_CHECK(!problem.empty());
  if (problems.empty()) (void)Compile(graph, Plan(), CompileTarget());
  return 0;
}
