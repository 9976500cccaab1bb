#include "engine/model/model_loader.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"
#include "engine/model/digest.h"
#include "engine/model/graph_validator.h"
#include "engine/model/problems.h"
#include "engine/model/safetensors.h"
#include "engine/model/text_file.h"
#include "engine/model/weights_file.h"
#include "voxserve/model/v1/model.pb.h"

namespace voxserve {

namespace {

constexpr char kGraphFile[] = "model.textproto";
constexpr char kWeightsFile[] = "weights.safetensors";

// Returns the bytes of all tensors as float32, their type in the graph.
int64_t BytesOfTensors(const StoredTensors& tensors) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors.by_name) {
    if (IsFloatTensor(tensor)) bytes += NumValues(tensor) * static_cast<int64_t>(sizeof(float));
  }
  return bytes;
}

}  // namespace

absl::StatusOr<Graph> LoadGraph(const std::filesystem::path& version_folder, const LoadOptions& options) {
  MemoryBudget::Reservation uncounted;
  MemoryBudget::Reservation& memory = options.memory == nullptr ? uncounted : *options.memory;
  const int64_t text_bytes = BytesOfTextFile(version_folder / kGraphFile);
  RETURN_IF_ERROR(memory.Resize(text_bytes));
  Problems problems;
  const auto problems_of_model = [&] {
    if (options.stop.stop_requested()) return DrainingError();  // what follows from that is no problem of the model
    return StatusOfProblems(absl::StrCat("model ", Quoted(version_folder.string())), problems);
  };
  const std::optional<std::string> text = ReadFile(version_folder / kGraphFile, &problems);
  std::optional<WeightsFile> weights = WeightsFile::Open(version_folder / kWeightsFile, &problems, options.stop);
  model::v1::Model model;
  const bool is_parsed = text && ParseTextProto(*text, kGraphFile, &model, &problems);
  StoredTensors tensors;
  int64_t header_bytes = 0;
  if (weights) {
    header_bytes = weights->header_bytes() * (1 + kBytesOfParsedHeader);
    RETURN_IF_ERROR(memory.Resize(text_bytes + header_bytes));
    tensors = weights->ReadHeader(&problems);
  }
  // Checks names, types and shapes before the tensors' values are read, since the values may be large and these checks
  // do not need them.
  if (is_parsed) ValidateGraph(model, tensors, &problems, options.stop);
  if (!problems.empty() || options.stop.stop_requested()) return problems_of_model();

  const int64_t graph_bytes = BytesOfTensors(tensors);
  RETURN_IF_ERROR(memory.Resize(text_bytes + header_bytes + weights->file_bytes() + graph_bytes));
  if (!weights->ReadData(&tensors, &problems)) return problems_of_model();
  Graph graph = ValidateGraph(model, tensors, &problems, options.stop);
  if (!problems.empty() || options.stop.stop_requested()) return problems_of_model();
  graph.digest = Sha256OfParts({*text, weights->content()}, options.stop);
  if (options.stop.stop_requested()) return problems_of_model();
  model.clear_name();
  model.clear_description();
  // Plans stay valid for a network that now states ranges, since these change no result.
  for (model::v1::Node& node : *model.mutable_nodes()) {
    if (!node.has_voxelize()) continue;
    for (model::v1::Feature& feature : *node.mutable_voxelize()->mutable_features()) feature.clear_range();
  }
  graph.network_digest = Sha256OfParts({model.SerializeAsString()});
  RETURN_IF_ERROR(memory.Resize(graph_bytes));
  return graph;
}

}  // namespace voxserve
