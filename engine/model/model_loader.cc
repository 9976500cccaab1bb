#include "engine/model/model_loader.h"

#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
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

// Returns the size of a file in bytes; 0 if it cannot be read.
int64_t SizeOf(const std::filesystem::path& path) {
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  return error ? 0 : static_cast<int64_t>(bytes);
}

// Returns the bytes of all tensors as float32, their type in the graph.
int64_t BytesOfTensors(const StoredTensors& tensors) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors.by_name) {
    if (IsFloatTensor(tensor)) bytes += NumValues(tensor) * static_cast<int64_t>(sizeof(float));
  }
  return bytes;
}

}  // namespace

absl::StatusOr<Graph> LoadGraph(const std::filesystem::path& version_folder, MemoryBudget::Reservation* memory) {
  MemoryBudget::Reservation uncounted;
  if (memory == nullptr) memory = &uncounted;
  const int64_t text_bytes = SizeOf(version_folder / kGraphFile);
  RETURN_IF_ERROR(memory->Resize(text_bytes));
  Problems problems;
  const auto problems_of_model = [&] {
    return StatusOfProblems(absl::StrCat("model ", Quoted(version_folder.string())), problems);
  };
  const std::optional<std::string> text = ReadFile(version_folder / kGraphFile, &problems);
  std::optional<WeightsFile> weights = WeightsFile::Open(version_folder / kWeightsFile, &problems);
  model::v1::Model model;
  const bool is_parsed = text && ParseTextProto(*text, kGraphFile, &model, &problems);
  StoredTensors tensors;
  if (weights) {
    RETURN_IF_ERROR(memory->Resize(text_bytes + weights->header_bytes()));
    tensors = weights->ReadHeader(&problems);
  }
  // Checks names, types and shapes before the tensors' values are read, since the values may be large and these checks
  // do not need them.
  if (is_parsed) ValidateGraph(model, tensors, &problems);
  if (!problems.empty()) return problems_of_model();

  const int64_t graph_bytes = BytesOfTensors(tensors);
  RETURN_IF_ERROR(memory->Resize(text_bytes + weights->file_bytes() + graph_bytes));
  if (!weights->ReadData(&tensors, &problems)) return problems_of_model();
  Graph graph = ValidateGraph(model, tensors, &problems);
  if (!problems.empty()) return problems_of_model();
  graph.digest = Sha256OfParts({*text, weights->content()});
  model.clear_name();
  model.clear_description();
  // Plans stay valid for a network that now states ranges, since these change no result.
  for (model::v1::Node& node : *model.mutable_nodes()) {
    if (!node.has_voxelize()) continue;
    for (model::v1::Feature& feature : *node.mutable_voxelize()->mutable_features()) feature.clear_range();
  }
  graph.network_digest = Sha256OfParts({model.SerializeAsString()});
  RETURN_IF_ERROR(memory->Resize(graph_bytes));
  return graph;
}

}  // namespace voxserve
