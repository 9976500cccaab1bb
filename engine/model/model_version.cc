#include "engine/model/model_version.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"
#include "engine/model/text_file.h"

namespace voxserve {
namespace {

namespace fs = std::filesystem;

// A link that leads nowhere, or a folder without permission, does not count as a missing file, since the defaults might
// contradict what the model's owner wrote.
bool IsMissing(const fs::path& path) {
  std::error_code error;
  return fs::symlink_status(path, error).type() == fs::file_type::not_found;
}

// Returns the text of a config; "" if the file does not exist. Reports a problem if it cannot be read.
std::string ReadConfig(const fs::path& path, Problems* problems) {
  return IsMissing(path) ? "" : ReadFile(path, problems).value_or("");
}

}  // namespace

VersionPolicy ReadVersionPolicy(const fs::path& model_folder, Problems* problems) {
  Problems found;
  const ModelConfig config =
      ParseModelConfig(ReadConfig(model_folder / kConfigFile, &found), kUnknownNumClasses, &found);
  problems->Add(found);
  return found.empty() ? config.version_policy : VersionPolicy();
}

fs::path ConfigPathOf(const fs::path& model_folder, int64_t version) {
  fs::path of_version = model_folder / absl::StrCat(version) / kConfigFile;
  return IsMissing(of_version) ? model_folder / kConfigFile : of_version;
}

absl::StatusOr<LoadedModel> LoadModelVersion(const fs::path& model_folder, int64_t version,
                                             const LoadOptions& options) {
  const fs::path version_folder = model_folder / absl::StrCat(version);
  absl::StatusOr<Graph> graph = LoadGraph(version_folder, options);
  if (!graph.ok() && !absl::IsInvalidArgument(graph.status())) return graph.status();
  Problems problems = ProblemsOf(graph.status());

  MemoryBudget::Reservation uncounted;
  MemoryBudget::Reservation& memory = options.memory == nullptr ? uncounted : *options.memory;
  const int64_t graph_bytes = memory.bytes();
  const fs::path config_path = ConfigPathOf(model_folder, version);
  RETURN_IF_ERROR(memory.Resize(graph_bytes + BytesOfTextFile(config_path)));
  const std::string config_text = ReadConfig(config_path, &problems);
  ModelConfig config = ParseModelConfig(config_text, graph.ok() ? graph->num_classes : kUnknownNumClasses, &problems,
                                        config_path.lexically_relative(model_folder).string());
  if (!problems.empty()) {
    return StatusOfProblems(absl::StrCat("model ", Quoted(version_folder.string())), problems);
  }
  RETURN_IF_ERROR(memory.Resize(graph_bytes));
  std::string content = absl::StrCat(graph->digest, "\n", config_text);
  return LoadedModel{*std::move(graph), std::move(config), std::move(content)};
}

}  // namespace voxserve
