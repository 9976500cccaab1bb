#include "engine/model/model_loader.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/quoted.h"
#include "engine/model/digest.h"
#include "engine/model/graph_validator.h"
#include "engine/model/problems.h"
#include "engine/model/safetensors.h"
#include "engine/model/text_file.h"
#include "voxserve/model/v1/model.pb.h"

namespace voxserve {

absl::StatusOr<Graph> LoadGraph(const std::filesystem::path& version_folder) {
  Problems problems;
  const std::optional<std::string> text = ReadFile(version_folder / "model.textproto", &problems);
  const std::optional<std::string> weights = ReadFile(version_folder / "weights.safetensors", &problems);
  model::v1::Model model;
  const bool is_parsed = text && ParseTextProto(*text, "model.textproto", &model, &problems);
  StoredTensors tensors;
  if (weights) tensors = ParseSafetensors(*weights, &problems);

  Graph graph;
  if (is_parsed) graph = ValidateGraph(model, tensors, &problems);
  if (!problems.empty()) return StatusOfProblems(absl::StrCat("model ", Quoted(version_folder.string())), problems);
  graph.digest = Sha256OfParts({*text, *weights});
  model.clear_name();
  model.clear_description();
  graph.network_digest = Sha256OfParts({model.SerializeAsString()});
  return graph;
}

}  // namespace voxserve
