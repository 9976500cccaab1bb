// The fuzzer's input is a file model.textproto, a byte of 0 and a file weights.safetensors. If the network is valid, it
// is also compiled for the CPU.

#include "engine/compiler/compiler.h"
#include "engine/model/graph_validator.h"
#include "engine/model/safetensors.h"
#include "engine/model/text_file.h"
#include "tests/fuzz/fuzz.h"
#include "voxserve/model/v1/model.pb.h"

using namespace voxserve;  // NOLINT(google-build-using-namespace): FUZZER is in no namespace

FUZZER(model) {
  const auto [text, weights] = fuzz::SplitAt(fuzz::Text(data, size), '\0');
  Problems problems;
  model::v1::Model model;
  const bool is_parsed = ParseTextProto(text, "model.textproto", &model, &problems);
  FUZZ_CHECK(is_parsed == problems.empty());
  StoredTensors tensors = ParseSafetensors(weights, &problems);
  if (!is_parsed) return 0;
  // The loader checks a network against the header alone first, which must not refuse what is valid.
  Problems without_data = problems;
  tensors.has_data = false;
  ValidateGraph(model, tensors, &without_data);
  tensors.has_data = true;
  const Graph graph = ValidateGraph(model, tensors, &problems);
  for (const std::string& problem : problems) FUZZ_CHECK(!problem.empty());
  FUZZ_CHECK(!problems.empty() || without_data.empty());
  if (problems.empty()) (void)Compile(graph, Plan(), CompileTarget());
  return 0;
}
