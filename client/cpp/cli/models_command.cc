#include <cmath>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cpp/cli/commands.h"
#include "client/cpp/cli/printable.h"
#include "client/cpp/cli/report.h"
#include "client/cpp/view/count_text.h"

namespace voxserve::client {
namespace {

struct ModelsArguments {
  Connection connection;
  int64_t version = 0;

  std::vector<Flag> Flags() {
    return connection.Flags(
        {IntFlag("version", "N", "The version of NAME. Without this flag it is the newest that is ready.", 1, INT64_MAX,
                 &version)});
  }
};

std::string StateOf(const v1::ModelVersion& model) {
  switch (model.state()) {
    case v1::MODEL_STATE_LOADING:
      return "loading";
    case v1::MODEL_STATE_READY:
      return "ready";
    case v1::MODEL_STATE_FAILED:
      return "failed";
    default:
      return "unknown";
  }
}

std::string VoxelSize(const v1::ModelVersion& model) {
  return absl::StrCat(absl::StrJoin(model.voxel_size(), " x ",
                                    [](std::string* out, float size) { absl::StrAppendFormat(out, "%g", size); }),
                      " m");
}

// Returns true if the model answers with labels. Servers of versions that knew no boxes report neither labels nor
// boxes; their models, if ready, answer with labels.
bool HasLabels(const v1::ModelVersion& model) {
  return model.has_labels() ||
         (model.state() == v1::MODEL_STATE_READY && !model.has_boxes() && model.tensors().empty());
}

// Returns "" for a version that is not ready, since its outputs are unknown.
std::string AnswersOf(const v1::ModelVersion& model) {
  std::vector<std::string> answers;
  if (HasLabels(model)) answers.push_back(model.has_scores() ? "labels, with scores on request" : "labels");
  if (model.has_boxes()) answers.push_back(model.has_velocities() ? "boxes with velocities" : "boxes");
  if (!model.tensors().empty()) {
    answers.push_back(absl::StrCat(
        "tensors ", absl::StrJoin(model.tensors(), ", ", [](std::string* out, const v1::TensorInfo& tensor) {
          absl::StrAppend(out, tensor.name());
        })));
  }
  return absl::StrJoin(answers, "; ");
}

// Returns what one request may hold. Older servers tell only the points.
std::string LimitsOf(const v1::ModelVersion& model) {
  std::string text = absl::StrCat(WithSeparators(model.max_points()), " points a request");
  if (model.max_voxels() > 0) {
    const char* const overflow =
        model.voxel_overflow() == v1::VOXEL_OVERFLOW_NEAREST_FIRST ? "the nearest ones are kept"
        : model.voxel_overflow() == v1::VOXEL_OVERFLOW_FIRST_SEEN  ? "the first ones are kept"
                                                                   : "a request with more is refused";
    absl::StrAppend(&text, ", ", WithSeparators(model.max_voxels()), " voxels (", overflow, ")");
  }
  if (model.max_message_bytes() > 0) {
    absl::StrAppend(&text, ", ", WithSeparators(model.max_message_bytes()), " bytes");
  }
  return text;
}

std::string ReachOf(const v1::Reach& reach) {
  const auto format = [](std::string* out, float distance) {
    absl::StrAppend(out, std::isfinite(distance) ? absl::StrFormat("%g", distance) : "unbounded");
  };
  return absl::StrCat(
      absl::StrJoin(reach.distance(), " x ", format), " m",
      reach.unbounded_by().empty() ? "" : absl::StrCat(" (", reach.unbounded_by(), " reads whole clouds)"));
}

std::string FormatTable(const std::vector<v1::ModelVersion>& models) {
  if (models.empty()) return "no models\n";
  std::string text = absl::StrFormat("  %-20s %7s  %-8s %8s %12s  %s\n", "model", "version", "state", "classes",
                                     "parameters", "device");
  for (const v1::ModelVersion& model : models) {
    absl::StrAppendFormat(&text, "  %-20s %7d  %-8s %8d %12s  %s\n", model.name(), model.version(), StateOf(model),
                          model.classes_size(), WithSeparators(model.num_parameters()), model.device());
    for (const std::string& problem : model.problems()) absl::StrAppend(&text, "      ", problem, "\n");
  }
  return text;
}

std::string FormatDetails(const v1::ModelVersion& model, const Terminal& terminal) {
  std::string text = absl::StrCat(model.name(), " version ", model.version(), ": ", StateOf(model), "\n");
  const auto row = [&](absl::string_view name, const std::string& value) {
    if (!value.empty()) absl::StrAppendFormat(&text, "  %-12s %s\n", name, value);
  };
  row("description", model.description());
  row("device", model.device());
  row("parameters", WithSeparators(model.num_parameters()));
  if (model.voxel_size_size() > 0) row("voxels", VoxelSize(model));
  if (model.max_points() > 0) row("limit", LimitsOf(model));
  if (model.has_reach()) row("reach", ReachOf(model.reach()));
  row("answers", AnswersOf(model));
  row("digest", model.digest());
  std::vector<std::string> features;
  for (const v1::FeatureInfo& feature : model.features()) {
    const std::string unit = feature.unit() == "1" ? "0..1" : feature.unit();
    features.push_back(absl::StrCat(feature.name(), unit.empty() ? "" : " ", unit,
                                    feature.has_default_value() ? " (default " : "",
                                    feature.has_default_value() ? absl::StrCat(feature.default_value(), ")") : ""));
  }
  row("reads", absl::StrJoin(features, ", "));
  for (const std::string& problem : model.problems()) row("problem", problem);
  if (model.classes_size() > 0) absl::StrAppend(&text, "  classes\n");
  for (const v1::ClassInfo& info : model.classes()) {
    absl::StrAppendFormat(&text, "    %s%3d  %-20s #%06x\n", Swatch(info.color_rgb(), terminal), info.id(), info.name(),
                          info.color_rgb());
  }
  if (model.classes_size() > 0 && HasLabels(model)) {
    absl::StrAppendFormat(&text, "    %d  not labelled\n", model.ignore_label());
  }
  return text;
}

int RunModels(const std::vector<std::string>& words, const Terminal& terminal) {
  ModelsArguments arguments;
  std::vector<std::string> names;
  if (absl::Status status = ParseFlags(words, arguments.Flags(), &names); !status.ok()) {
    return FailUsage("models", status);
  }
  if (names.size() > 1) return FailUsage("models", absl::InvalidArgumentError("give one model only"));
  if (names.empty() && arguments.version != 0) {
    return FailUsage("models", absl::InvalidArgumentError("--version needs the model's name"));
  }
  const absl::StatusOr<std::unique_ptr<Client>> client = arguments.connection.Connect();
  if (!client.ok()) return Fail(client.status());
  if (names.empty()) {
    absl::StatusOr<std::vector<v1::ModelVersion>> models = (*client)->ListModels();
    if (!models.ok()) return Fail(models.status());
    for (v1::ModelVersion& model : *models) MakePrintable(&model);
    std::cout << FormatTable(*models);
    return kExitOk;
  }
  absl::StatusOr<v1::ModelVersion> model = (*client)->GetModel(names[0], arguments.version);
  if (!model.ok()) return Fail(model.status());
  MakePrintable(&*model);
  std::cout << FormatDetails(*model, terminal);
  return kExitOk;
}

}  // namespace

Command ModelsCommand() {
  return {
      {"models", "[NAME] [FLAGS]", "lists the server's models, or describes one",
       "Without a name: every version of every model with its state, and all problems of a failed one. With a name: "
       "its classes and colours, its outputs, the fields that it reads of a point, and its limits.",
       "  voxserve-client models\n"
       "  voxserve-client models minkunet\n"
       "  voxserve-client models minkunet --version 1 --address truck-7:8500\n"},
      ListFlags<ModelsArguments>,
      RunModels};
}

}  // namespace voxserve::client
